"""The shared test of an adapter: two updates, an evaluation, a resumed run and its transcripts."""

import os
import signal
from pathlib import Path
from typing import Any

from mage.config.recipe import Recipe, build_recipe
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.viewer.export import collect
from mage.viewer.library import Library
from tests.processes import start, wait


class Killer(Callback):
    """Kills its own process after the second update, before it is saved."""

    def on_update(self, update: int, total: int, metrics: Any, timing: Any) -> None:
        if update == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def train_and_kill(path: Path) -> None:
    train(path, Killer(), lambda: False)


def tiny_recipe(environment: dict[str, Any], **sections: dict[str, Any]) -> Recipe:
    """Two updates of the embedded model in this environment."""
    tables: dict[str, dict[str, Any]] = {
        "environments": environment,
        "run": {
            "updates": 2,
            "threads": 1,
            "save_every": 1,
            "evaluate_every": 0,
            "episodes_every": 1,
            "move_probabilities": False,
        },
        "play": {"episodes": 2, "groups": 2, "members": 2},
        "memory": {"keep": "history"},
        "agent": {"max_tokens": 8},
        "evaluate": {"size": 2, "final_size": 2, "ceilings": False, "before": False},
    }
    return build_recipe({**tables, **sections})


def check_training(recipe: Recipe, folder: Path) -> RunFolder:
    """A killed and resumed run has the figures of a whole one, and the viewer shows its turns."""
    killed = RunFolder.create(folder / "killed", recipe)
    assert wait(start(train_and_kill, killed.path)) == -signal.SIGKILL
    train(killed.path, Callback(), lambda: False)
    whole = RunFolder.create(folder / "whole", recipe)
    train(whole.path, Callback(), lambda: False)
    assert len(whole.metrics()) == 2
    assert killed.metrics() == whole.metrics()
    assert killed.read_evaluation("after_test") == whole.read_evaluation("after_test")
    shown = dict(collect(Library([whole.path])))
    metas = [value for path, value in shown.items() if "/meta/" in path]
    assert metas
    assert all(turn["observation"] for meta in metas for turn in meta["episodes"][0]["turns"])
    return whole
