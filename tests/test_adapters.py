"""Shipped adapters, `mage model export`, and the model that plays by default."""

import gc
import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mage.api import agents
from mage.api.agents import find_player, load_run
from mage.cli.arguments import make_environment
from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.engines.local import LocalEngine
from mage.learn.trainable import Trainable
from mage.models.base import base_name, base_of, find_model, shipped_adapters
from mage.models.loading import load_model
from mage.run_folder import RunFolder

TINY = (
    *("--play.groups=2", "--play.members=2", "--run.updates=1", "--run.workers=1"),
    *("--evaluate.size=1", "--evaluate.final_size=1", "--engines.slots=32"),
    *("--evaluate.before=false", "--run.evaluate_every=0"),
)


def invoke(words: str, *more: str):
    return CliRunner().invoke(app, [*words.split(), *more])


@pytest.mark.parametrize("name", shipped_adapters())
def test_shipped_adapters_are_small_and_name_their_game_and_model(name):
    folder = find_model(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 10_000_000
    config = json.loads((folder / "adapter_config.json").read_text())
    recipe = load_recipe(folder / "recipe.toml")
    assert name == f"{config['base_model_name_or_path']}-{recipe.environments.name}"
    assert recipe.learn.lora_rank == config["r"]
    assert recipe.model.path == config["base_model_name_or_path"]  # no folder of one machine


def test_there_are_shipped_adapters_for_six_environments_and_a_mix():
    recipes = [load_recipe(find_model(name) / "recipe.toml") for name in shipped_adapters()]
    worlds = ("alfworld", "kuhn_poker", "rock_paper_scissors", "sokoban", "tic_tac_toe", "webshop")
    assert {recipe.environments.name for recipe in recipes} == {*worlds, "mix"}


@pytest.mark.slow
def test_shipped_agents_reach_their_trained_scores():
    """Kuhn poker: the best score without adaptation is .125.

    Tic-Tac-Toe: MCTS-100 almost never wins in the second seat (.001 of 6,000 games).
    """
    try:
        base_of(find_model("smollm2-kuhn_poker"))
    except ValueError:
        pytest.skip("needs mage model add smollm2")
    poker = "evaluate smollm2_kuhn_poker --model.path=smollm2-kuhn_poker"
    done = invoke(f"{poker} --exact --memory none --json")
    assert json.loads(done.stdout)["cells"][0]["scores"] == pytest.approx([0.12] * 3, abs=0.01)
    world = "--play.seats=first --opponents.test={'mcts-100'=1} --engines.slots=16"
    agent = "smollm2_tic_tac_toe --model.path=smollm2-tic_tac_toe"
    done = invoke(f"evaluate {agent} --size 6 {world} --json")
    for episode in json.loads(done.stdout)["evaluation"]["overall"]["episodes"]:
        assert episode["success"]["value"] + episode["draws"]["value"] == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("evaluate smollm2_kuhn_poker --model.path=smollm2-kuhn_poker", 2),
        ("play webshop --watch --seed 1", 2),  # no embedded model knows it
        ("play kuhn_poker --watch --against conservative --seed 1 --episodes 1", 0),  # embedded
    ],
)
def test_without_a_model_a_message_says_what_to_do(words, code, tmp_path, monkeypatch):
    monkeypatch.setenv("MAGE_MODELS", str(tmp_path))
    with pytest.raises(ValueError, match="mage model add smollm2"):
        base_of(find_model("smollm2-kuhn_poker"))
    done = invoke(words)
    assert done.exit_code == code, done.output
    assert "mage model add smollm2" in done.output
    assert "Traceback" not in done.output
    assert "Instruction" not in done.output, "nothing of WebShop is played"


@pytest.mark.parametrize(
    ("environment", "model"),
    [
        ("kuhn_poker", "embedded"),
        ("rock_paper_scissors", "embedded-rps"),
        ("alfworld", "embedded-worlds"),
        ("sokoban", "embedded-worlds"),
    ],
)
def test_a_game_with_an_embedded_model_of_its_own_uses_it_in_the_world_that_it_knows(
    environment, model, tmp_path, monkeypatch
):
    monkeypatch.setenv("MAGE_MODELS", str(tmp_path))
    world = make_environment(environment, {})
    agent = find_player(environment, world, {}, None, None, lambda line: None)
    assert agent.title == model
    if environment == "sokoban":
        assert agent.components.recipe.environments.options["view"] == "words"


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (("smollm2", "qwen2.5-1.5b"), "smollm2-alfworld"),
        (("qwen2.5-1.5b",), "qwen2.5-1.5b-alfworld"),
        ((), "embedded-worlds"),
    ],
)
def test_adapters_are_used_if_their_model_is_present_small_models_first(
    present, chosen, monkeypatch
):
    def base(folder):
        if base_name(folder, "") not in present:
            raise ValueError("it is missing")

    monkeypatch.setattr(agents, "base_of", base)
    said: list[str] = []
    assert agents._best_model("alfworld", said.append) == chosen
    assert ["mage model add smollm2" in line for line in said] == [True] * (not present)


@pytest.mark.e2e
@pytest.mark.parametrize("rank", [0, 2])
def test_an_export_has_the_weights_of_the_checkpoint_and_can_play(
    tmp_path, rank, no_pictures, monkeypatch
):
    options = (*TINY, f"--learn.lora_rank={rank}", "--runs", str(tmp_path))
    done = invoke("train kuhn_demo --learn.lr=0.01 --run.name=one --json", *options)
    assert done.exit_code == 0, done.output
    target = tmp_path / "out"
    export = ("--out", str(target), str(tmp_path / "one"))
    done = invoke("model export --checkpoint latest --json", *export)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["update"] == 1
    folder = RunFolder.open(tmp_path / "one")
    written = [*target.iterdir(), *next(folder.checkpoints.iterdir()).iterdir()]
    assert {path.stat().st_mode for path in written} == {(target / "recipe.toml").stat().st_mode}, (
        "weights have the permissions of the recipe"
    )
    trainable: list[int] = []  # that are there when the engine allocates its pool

    def refresh(engine: LocalEngine, update: int, plain: Any = LocalEngine.refresh) -> None:
        trainable.append(sum(issubclass(type(one), Trainable) for one in gc.get_objects()))
        plain(engine, update)

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "refresh", refresh)
        gc.collect()  # those of the training
        loaded = load_run(folder, folder.recipe, "latest")
    assert trainable == [0], "their copies of the weights are not needed for play"
    trained = loaded.components.weights().state_dict()
    for name, value in load_model(target, "float32", "cpu").state_dict().items():
        torch.testing.assert_close(
            value, trained[name], atol=2e-3 if rank else 0.0, rtol=0, msg=name
        )  # adapters are stored in bfloat16
    done = invoke(
        "play kuhn_poker --watch --against random --seed 1 --episodes 2 --model", str(target)
    )
    assert done.exit_code == 0, done.output
    assert "Game 1:" in done.output, "the memory of kuhn_demo is the history of play"
    done = invoke("model export", *export)
    assert done.exit_code == 2
    assert "exists already" in done.output
