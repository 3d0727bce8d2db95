"""Embedded models play random legal moves in Sokoban, generated ALFWorld rooms and doors."""

import random
from pathlib import Path

import pytest

from mage.agent.agent import random_move
from mage.config.loading import load_recipe
from mage.environments.base import Environment
from mage.evaluation.panels import make_panel
from mage.evaluation.run import evaluate_panel
from mage.opponents.base import population_of
from mage.run_folder import RunFolder
from mage.training.build import build_components
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.training.warm_start import make_warm_start

WORLDS = ("sokoban", "alfworld")
TRAINED = (*WORLDS, "doors")


@pytest.mark.e2e
@pytest.mark.parametrize("world", TRAINED)
def test_it_plays_nearly_uniformly_random_legal_moves(world: str) -> None:
    recipe = load_recipe(world, ["--warmup.steps=0", "--warmup.turns=200"])
    found = make_warm_start(
        recipe, Path("written by a warm-up of some steps only"), lambda line: None
    )
    assert found.before.legal > 0.95
    assert found.before.entropy > found.uniform - 0.1


def random_success(environment: Environment, seed: int) -> float:
    """The share of twenty random games of this task that are won."""
    rng, start = random.Random(seed), environment.episode_seed(seed, 0)
    return sum(_plays_randomly(environment, start, rng) for _ in range(20)) / 20


def _plays_randomly(environment: Environment, start: int, rng: random.Random) -> float:
    state = environment.start(start)
    for _ in range(environment.max_turns):
        if state.turn() is not None:
            state.apply(random_move(state, rng))
    return state.scores()[0]


@pytest.mark.e2e
@pytest.mark.parametrize("world", WORLDS)
def test_it_wins_no_more_than_a_random_player(world: str) -> None:
    parts = build_components(load_recipe(world, ["--play.episodes=1", "--memory.keep=none"]))
    play_setup, population = parts.begin_play(evaluating=True), population_of(parts.recipe)
    panel = make_panel(
        play_setup.environment, population, "test", size=240, name="select", episodes=1
    )
    _, metas = evaluate_panel(play_setup, population, panel, "select")
    held_out = parts.recipe.environment().for_split("test")
    by_chance = sum(random_success(held_out, meta.task.seed) for meta in metas) / len(metas)
    won = [episode.score for meta in metas for episode in meta.episodes]
    assert len(won) == 240
    assert abs(sum(won) / len(won) - by_chance) < 0.08, "three standard errors of the 240 episodes"


@pytest.mark.e2e
@pytest.mark.parametrize("world", TRAINED)
def test_its_recipe_trains_to_the_end(world: str, tmp_path: Path) -> None:
    small = [
        "--run.updates=2",
        "--run.workers=1",
        "--run.move_probabilities=false",
        "--play.groups=2",
        "--play.members=3",
        "--evaluate.size=4",
        "--evaluate.final_size=4",
    ]
    folder = RunFolder.create(tmp_path / world, load_recipe(world, small))
    summary = train(folder.path, Callback(), lambda: False)
    assert summary["updates"] == 2
    assert all(record["mismatch"] < 1e-4 for record in folder.metrics())
