"""A language model in the other seat: its name, its replies, its weights, a resumed run."""

import random
import shutil

import pytest
from typer.testing import CliRunner

import mage
from mage.cli.main import app
from mage.config.errors import UserError
from mage.config.loading import load_recipe
from mage.engines.base import run
from mage.models.base import find_model
from mage.models.shapes import read_shape
from mage.opponents.base import find
from mage.play.outside import check_opponent
from mage.run_folder import RunError, RunFolder
from mage.training.build import build_components
from mage.training.callbacks import Callback
from mage.training.memory_bytes import GB
from mage.training.memory_plan import plan_memory
from mage.training.start import train
from mage.training.tasks import draw_tasks
from mage.types import Task
from tests.adapter_runs import check_training, tiny_recipe

AGAINST = {"train": {"model-embedded": 1.0}}
WORLD = {"name": "kuhn_poker"}
DEMO = load_recipe("kuhn_demo")


def test_what_follows_the_first_dash_is_a_model():
    assert find("model-embedded-rps").model_path() == "embedded-rps"
    assert find("random").model_path() == ""
    with pytest.raises(UserError, match="names no model: write model-NAME"):
        find("model")


def test_a_model_that_is_not_there_is_named_before_training(tmp_path):
    recipe = tiny_recipe(WORLD, opponents={"train": {"model-nowhere": 1.0}})
    with pytest.raises(UserError, match="opponent model-nowhere: there is no folder"):
        mage.train(recipe, runs=tmp_path)
    (tmp_path / "recipe.toml").touch()
    of_run = tiny_recipe(WORLD, opponents={"train": {f"model-{tmp_path}": 1.0}})
    with pytest.raises(UserError, match=f"is a run.*mage model export {tmp_path}"):
        mage.train(of_run, runs=tmp_path)


def test_a_warm_up_and_other_trainers_play_without_the_model():
    recipe = tiny_recipe(WORLD, opponents={"train": {"model-embedded": 1.0, "aggressive": 1.0}})
    assert {task.opponent for row in draw_tasks(recipe, -1) for task in row} == {"aggressive"}
    with pytest.raises(UserError, match="does not play kuhn_poker outside of MAGE's own play"):
        check_opponent(recipe.environment(), "model-embedded")
    words = ["play", "kuhn_poker", "--against", "model-embedded"]
    result = CliRunner().invoke(app, words)
    assert "--against agent --model NAME" in " ".join(result.output.split())


def test_the_moves_are_replies_of_the_model():
    """The embedded model knows the format of Kuhn poker, so its own moves are played."""
    recipe = tiny_recipe(WORLD, opponents=AGAINST, model={"path": "embedded-rps"})
    components = build_components(recipe)
    setup = components.begin_play()
    player = setup.meet(Task("kuhn_poker", 0, 1, "model-embedded", "test"))
    states = [recipe.environment().start(seed) for seed in range(12)]
    moves = run([player.think(state, 0, random.Random(7)) for state in states])
    assert set(moves) <= {"bet", "pass"}
    refused, replies = components.rival_sums()["opponent_illegal_rate"]
    assert (refused <= 2, replies) == (True, 12)
    assert components.engine is not player.agent.engine  # type: ignore[attr-defined]
    components.begin_play()
    assert components.rival_sums()["opponent_illegal_rate"] == (0, 0), "counted anew"


def test_a_plan_counts_the_model_in_the_other_seat():
    alone, against = (
        plan_memory(recipe, read_shape(find_model("embedded")), 8 * GB)
        for recipe in (
            load_recipe("kuhn_demo"),
            load_recipe("kuhn_demo").changed(opponents=AGAINST),
        )
    )
    added = against.playing_bytes - alone.playing_bytes
    assert added == pytest.approx(alone.fixed.weights + alone.fixed.engine_bytes + alone.pool)
    assert "opponent models" in against.parts()


@pytest.mark.e2e
def test_a_resumed_run_meets_the_same_model(tmp_path):
    """Changed weights of the opponent end a run that is resumed."""
    place = tmp_path / "rival"
    shutil.copytree(find_model("embedded"), place)
    recipe = tiny_recipe(WORLD, opponents={"train": {f"model-{place}": 1.0}})
    check_training(recipe, tmp_path)
    folder = RunFolder.create(tmp_path / "changed", recipe)
    with pytest.raises(mage.Stopped):
        train(folder.path, Callback(), lambda: True)
    other = find_model("embedded-kuhn") / "model.safetensors"
    shutil.copy(other, place / "model.safetensors")
    with pytest.raises(RunError, match=f"opponent model-{place} .* had other weights"):
        train(folder.path, Callback(), lambda: False)
