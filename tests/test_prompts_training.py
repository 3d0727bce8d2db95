"""Training with one message a turn: an update of every paper recipe with the embedded model."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mage.config.loading import load_recipe
from mage.ranks.stop import Stopped
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train

SMALL = (
    *("--model.path=embedded", "--run.updates=1", "--run.save_every=1", "--run.evaluate_every=0"),
    *("--run.episodes_every=1", "--run.threads=1", "--run.move_probabilities=false"),
    *("--play.groups=1", "--play.members=2", "--play.episodes=2", "--play.length_penalty=0"),
    *("--agent.max_tokens=8", "--agent.reflection_tokens=16", "--engines.context=4096"),
    *("--engines.slots=8", "--learn.minibatch_rows=", "--evaluate.before=false"),
    *("--evaluate.size=1", "--evaluate.final_size=1", "--evaluate.episodes=1"),
    *('--evaluate.splits=["test"]', "--evaluate.ceilings=false"),
)
OWN = {
    "tic_tac_toe": (
        "--environments.max_turns=3",
        "--opponents.test.mcts-100=",
        "--opponents.test.random=1",
    ),
    "kuhn_poker": ("--environments.max_turns=3", "--run.updates=2"),
    "sokoban": ("--environments.max_turns=3", "--environments.longest=9"),
    "alfworld": (
        "--environments.data=generated",
        "--environments.receptacles=3",
        "--environments.max_turns=8",
    ),
    "webshop": (
        "--environments.data=",
        "--environments.products=200",
        "--environments.max_turns=3",
        "--environments.test_goals=5",
    ),
}


def small(tmp_path: Path, world: str, name: str) -> RunFolder:
    recipe = load_recipe(f"paper_{world}", [*SMALL, *OWN[world]])
    assert recipe.agent.prompts == "published"
    return RunFolder.create(tmp_path / name, recipe)


def check_sharing(metrics: list[dict[str, Any]]) -> None:
    """Rows that share a beginning are computed once, and as the engine has sampled them."""
    for record in metrics:
        assert record["computed_tokens"] < 0.5 * record["row_tokens"]
        assert record["mismatch"] < 1e-4
        assert record["overflow_rate"] == 0


@pytest.mark.e2e
@pytest.mark.parametrize("world", list(OWN))
def test_a_paper_recipe_trains_and_resumes(world, tmp_path):
    folder = small(tmp_path, world, "run")
    train(folder.path, Callback(), lambda: False)
    assert len(folder.metrics()) == folder.recipe.run.updates
    check_sharing(folder.metrics())
    (meta, *_) = folder.read_episodes(1)
    kinds = [turn.kind for episode in meta.episodes for turn in episode.replies]
    assert "reflect" in kinds or len(meta.episodes) == 1
    rows = [turn.prompt_ids for turn in meta.episodes[0].turns]
    assert all(after[: len(before)] != before for before, after in pairwise(rows))
    if world == "kuhn_poker":
        parts = small(tmp_path, world, "parts")
        with pytest.raises(Stopped):
            train(parts.path, Callback(), lambda: len(parts.metrics()) == 1)
        train(parts.path, Callback(), lambda: False)
        assert parts.metrics() == folder.metrics()
