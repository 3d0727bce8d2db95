"""Embedded models play random legal moves in Sokoban, generated ALFWorld rooms and doors."""

from pathlib import Path

import pytest

from mage.config.loading import load_recipe
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.training.warm_start import make_warm_start

WORLDS = ("sokoban", "alfworld", "doors")


@pytest.mark.e2e
@pytest.mark.parametrize("world", WORLDS)
def test_it_plays_nearly_uniformly_random_legal_moves(world):
    recipe = load_recipe(world, ["--warmup.steps=0", "--warmup.turns=100"])
    found = make_warm_start(
        recipe, Path("written by a warm-up of some steps only"), lambda line: None
    )
    assert found.before.legal > 0.95
    assert found.before.entropy > found.uniform - 0.1


@pytest.mark.e2e
@pytest.mark.parametrize("world", WORLDS)
def test_its_recipe_trains_to_the_end(world, tmp_path):
    small = [
        *("--run.updates=1", "--run.workers=1", "--run.move_probabilities=false"),
        *("--play.groups=1", "--play.members=2", "--evaluate.size=1", "--evaluate.final_size=1"),
    ]
    folder = RunFolder.create(tmp_path / world, load_recipe(world, small))
    summary = train(folder.path, Callback(), lambda: False)
    assert summary["updates"] == 1
    assert all(record["mismatch"] < 1e-4 for record in folder.metrics())
