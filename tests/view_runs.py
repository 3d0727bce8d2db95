"""A small finished run with real play, credit and hostile texts, for the tests of the viewer."""

import random
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mage.config.recipe import build_recipe
from mage.credit.samples import assign_credit
from mage.environments.kuhn_poker import KuhnPoker
from mage.evaluation.panels import make_panel
from mage.evaluation.rows import write_tasks
from mage.memory.notes import Notes
from mage.opponents.base import Population
from mage.play import PlaySetup, play_groups
from mage.run_folder import RunFolder
from mage.run_folder.turn_files import TurnMoves, write_credits, write_moves
from mage.types import MetaEpisode, Task
from tests.toys import scripted_agent, summarise

CHANCES = TurnMoves(0, 0, 0, 0, 2, 0.9, (("pass", 0.625), ("bet", 0.275)))
WARNING = "60 % of the replies of the last 3 updates are not legal moves. Teach the format first."
STYLES = {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}
HOSTILE = (
    "<img src=x onerror=\"document.title='broken'\">"
    "<script>document.title='broken'</script>\x07\u202e"
)


def _reply(prompt: str) -> str:
    if "Write a short note" in prompt:
        return f"It bets often. {HOSTILE}"
    card = re.findall(r"Your card: (\w)", prompt)[-1]
    move = "bet" if card == "K" else random.Random(prompt).choice(["pass", "bet", "fold"])
    return f"{HOSTILE} <action>{move}</action>"


def play(
    split: str,
    size: int,
    members: int = 1,
    reply: Callable[[str], str] = _reply,
    keep: str = "both",
) -> list[MetaEpisode]:
    """Kuhn poker by a scripted agent; the members of a group differ by a noisy copy of the task."""
    play_setup = PlaySetup(KuhnPoker(), scripted_agent(reply), Notes(keep=keep))
    panel = make_panel(KuhnPoker(), Population(train=STYLES), "test", size=size)
    tasks = [Task(one.environment, one.seed, one.seat, one.opponent, split) for one in panel]
    return play_groups(play_setup, [[task] * members for task in tasks], 0)


def make_run(path: Path, *, updates: int = 6, lr: float = 1e-3, **advantages: float) -> RunFolder:
    """A finished run: metrics, two evaluations of the select panel, final panels, credit.

    Equal runs are copies of the first one, which takes most of a second.
    """
    options = (updates, lr, *advantages.items())
    if options in _MADE:
        shutil.copytree(_MADE[options], path)
        return RunFolder.open(path)
    folder = _make_run(path, updates, lr, advantages)
    _MADE[options] = Path(tempfile.mkdtemp(dir=_PLACE.name)) / "run"
    shutil.copytree(path, _MADE[options])
    return folder


_PLACE = tempfile.TemporaryDirectory(prefix="mage-view-runs-")
_MADE: dict[object, Path] = {}


def _make_run(path: Path, updates: int, lr: float, advantages: dict[str, float]) -> RunFolder:
    tables = {
        "environments": {"name": "kuhn_poker"},
        "opponents": {"train": STYLES},
        "run": {"updates": updates},
        "learn": {"lr": lr},
        "memory": {"name": "notes", "keep": "both"},
        "returns": {"kind": "differential", "step_discount": 0.95, "episode_discount": 0.6},
        "advantages": {"name": "gigpo", **advantages},
    }
    folder = RunFolder.create(path, build_recipe(tables))
    for update in range(1, updates + 1):
        folder.append_metrics(_metrics(update))
        folder.append_timing({"update": update, "play": 1.0, "learn": 0.5, "total": 1.5})
    for label in ("select_000000", f"select_{updates:06d}", "before_test", "after_test"):
        store(folder, label, play("test", 12))
    write_moves(folder.path, "after_test", [CHANCES])
    metas = play("train", 3, members=4)
    folder.write_episodes(updates, metas)
    estimator = folder.recipe.estimator()
    write_credits(folder.path, updates, assign_credit(metas, folder.recipe.returns, estimator))
    folder.write_summary({"chosen_update": updates, "updates": updates})
    return folder


def store(folder: RunFolder, name: str, metas: list[MetaEpisode]) -> None:
    """An evaluation with its task rows and transcripts, as the trainer stores it."""
    evaluation = summarise(metas, KuhnPoker(), Population(train=STYLES), "test")
    folder.write_evaluation(name, evaluation.to_json())
    if not name.startswith("select"):
        write_tasks(folder.path / "evaluations" / f"{name}.tasks.jsonl", evaluation.rows)
        folder.write_episodes_of(name, metas)


def store_many(folder: RunFolder, update: int, count: int) -> None:
    """`count` copies of stored meta-episodes under one update."""
    few = play("train", 6)
    metas = [replace(few[k % len(few)], group=k) for k in range(count)]
    folder.write_episodes(update, metas)


def _metrics(update: int) -> dict[str, Any]:
    scores = {f"score_{k}": -0.2 + 0.05 * update + 0.02 * k for k in (1, 2, 3)}
    plain = {"update": update, "episodes": 36, "illegal_rate": 0.6, "action_entropy": 0.6}
    return plain | scores | ({"warnings": [WARNING]} if update == 3 else {})
