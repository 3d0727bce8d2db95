"""Models of the hub by name: everywhere a model is named, with their commit; one message if not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mage
from mage.cli.main import app
from mage.config.errors import ConfigError, UserError
from mage.config.loading import load_recipe
from mage.models.adapters import save_adapters
from mage.models.base import base_name, base_of, find_model, pin_model
from mage.models.shapes import PRESETS, find_shape, known_shape
from mage.models.sources import hub as hub_source
from mage.run_folder import RunFolder
from tests.fake_hub import COMMIT, NEWER, run_hub

TINY = (
    *("--run.updates=1", "--run.workers=1", "--run.device=cpu", "--play.groups=1"),
    *("--play.members=2", "--evaluate.size=2", "--evaluate.final_size=2"),
    *("--evaluate.ceilings=false", "--run.evaluate_every=0", "--run.loggers=[]"),
)


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """An empty cache of the hub, no added models, time limits for a busy machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAGE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 600)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    hub_source.fetch_snapshot.cache_clear()
    yield
    hub_source.fetch_snapshot.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )


@pytest.fixture
def hub(monkeypatch):
    with run_hub() as server:
        use(monkeypatch, server.address)
        yield server


@pytest.fixture
def no_network(monkeypatch):
    use(monkeypatch, "http://127.0.0.1:1")


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def later() -> None:
    """As in another process: nothing is remembered."""
    hub_source.fetch_snapshot.cache_clear()


@pytest.mark.e2e
def test_a_run_records_the_commit_and_uses_it_when_it_goes_on(hub, no_pictures, tmp_path):
    done = call("train", "kuhn_poker", "--model.path=lab/tiny", *TINY)
    assert done.exit_code == 0, done.stderr
    first, second, third = done.stderr.splitlines()[:3]
    assert first == "downloading lab/tiny from the model hub (1 MB)"
    assert second == "model lab/tiny@c0ffee00, 0.2 M parameters, on cpu"
    assert third == "run folder runs/kuhn_poker-1"
    folder = RunFolder.open("runs/kuhn_poker-1")
    assert folder.recipe.model.path == f"lab/tiny@{COMMIT}"
    hub.commit = NEWER
    hub.asked.clear()
    later()
    assert call("evaluate", folder.path, "--size", "2").exit_code == 0
    assert call("model", "export", folder.path, "--out", "mine").exit_code == 0
    assert find_model("mine") == Path("mine")
    assert hub.asked == [], "the recorded commit is in the cache"
    later()
    assert find_model("lab/tiny").name == NEWER


NAMED = """
evaluate kuhn_poker --size 2 --model.path=lab/tiny | note: model lab/tiny, 0.2 M
play kuhn_poker --watch --against=random --model lab/tiny | note: model lab/tiny, 0.2 M
plan kuhn_poker --model lab/tiny | model lab/tiny, 0.2 M parameters, on a GPU of 80 GB
model add lab/tiny | asking the model hub for lab/tiny
"""


@pytest.mark.e2e
@pytest.mark.parametrize("row", NAMED.strip().splitlines())
def test_a_name_of_the_hub_works_where_a_model_is_named(row, hub):
    words, shown = row.split(" | ")
    if words.startswith(("evaluate", "play")):
        find_model("lab/tiny")
    done = call(*words.split())
    assert done.exit_code == 0, done.stderr
    is_plan = words.startswith("plan")
    assert (done.stdout if is_plan else done.stderr).startswith(shown)
    if is_plan:
        assert not list(Path("cache").rglob("*.safetensors")), "only config.json is fetched"


def test_python_takes_a_name_of_the_hub(hub):
    recipe = mage.load_recipe("kuhn_poker", {"model.path": "lab/tiny"})
    assert mage.evaluate(recipe, size=2).overall.tasks == 2


NOT_THERE = "the model hub has no such model, or your login has no access to it"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("lab/unknown", NOT_THERE),
        ("lab/private", NOT_THERE),
        ("lab/gated", "the model is gated. Accept its terms"),
        ("lab/late", "the model is gated. Accept its terms"),
        ("lab/tiny@gone", "the model hub has no revision gone of it"),
        ("lab/silent", "the model hub cannot be reached (timed out)"),
    ],
)
def test_a_refusal_is_one_message_and_leaves_nothing(model, message, hub, tmp_path, monkeypatch):
    if model == "lab/silent":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.3)
    done = call("train", "kuhn_poker", f"--model.path={model}", *TINY)
    assert done.exit_code == 2
    (told,) = [line for line in done.stderr.splitlines() if not line.startswith("downloading")]
    assert told.startswith(f'mage: model.path = "{model}": there is no folder {model} here, ')
    assert message in told
    name = model.partition("@")[0].removeprefix("lab/")
    assert f"`mage model add FOLDER --name {name}`" in told
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        *("train paper_tic_tac_toe", "evaluate paper_kuhn_poker", "warmup paper_kuhn_poker"),
        *("plan kuhn_poker --model lab/tiny", "model add Qwen/Qwen3-4B"),
        "play kuhn_poker --watch --against=random --model Qwen/Qwen3-4B",
    ],
)
def test_without_a_network_one_message_names_the_way(words, no_network, tmp_path):
    done = call(*words.split())
    assert done.exit_code == 2
    told = done.stderr.splitlines()
    assert len(told) == (2 if words.startswith("model add") else 1), done.stderr
    assert "the model hub cannot be reached" in told[-1]
    assert "`mage model add FOLDER --name " in told[-1]
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "cache").exists()


def test_a_cached_model_needs_no_network(hub, monkeypatch):
    there = find_model("lab/tiny")
    use(monkeypatch, "http://127.0.0.1:1")
    later()
    assert find_model("lab/tiny") == there
    assert find_model(f"lab/tiny@{COMMIT}") == there
    with pytest.raises(UserError, match="not on this machine"):
        find_model("lab/other", download=False)


def test_an_added_model_is_found_by_its_name_on_the_hub(hub, monkeypatch, tmp_path):
    assert call("model", "add", "lab/tiny", "--name", "mine").exit_code == 0
    use(monkeypatch, "http://127.0.0.1:1")
    later()
    assert find_model("lab/tiny") == tmp_path / "models" / "mine"
    pinned = pin_model(load_recipe("kuhn_poker", ["--model.path=lab/tiny"]))
    assert pinned.model.path == f"lab/tiny@{COMMIT}"
    assert find_model(pinned.model.path) == tmp_path / "models" / "mine"


def test_a_folder_of_this_machine_comes_before_the_hub(no_network, tmp_path):
    (tmp_path / "lab" / "tiny").mkdir(parents=True)
    recipe = load_recipe("kuhn_poker", ["--model.path=lab/tiny"])
    assert pin_model(recipe) is recipe
    with pytest.raises(UserError, match=r"lab/tiny has no config\.json"):
        find_model("lab/tiny")
    with pytest.raises(ConfigError, match=r"model\.path"):
        pin_model(load_recipe("kuhn_poker", ["--model.path=lab/gone"]))


def test_adapters_name_the_commit_of_their_model_as_peft_does(hub, tmp_path):
    save_adapters(tmp_path / "lora", {}, rank=2, alpha=4, base=f"lab/tiny@{COMMIT}")
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("lab/tiny", COMMIT)
    assert base_name(tmp_path / "lora", "") == f"lab/tiny@{COMMIT}"
    assert base_of(tmp_path / "lora").name == COMMIT


@pytest.mark.parametrize("world", ["alfworld", "kuhn_poker", "sokoban", "tic_tac_toe", "webshop"])
def test_the_papers_model_is_the_default_of_its_recipes(world):
    assert load_recipe(f"paper_{world}").model.path == "Qwen/Qwen3-4B"
    assert load_recipe(f"paper_{world}", ["--model.path=embedded"]).model.path == "embedded"


def test_known_shapes_need_no_network(no_network):
    assert find_shape("Qwen/Qwen3-4B") == PRESETS["qwen3-4b"]
    assert find_shape("Qwen/Qwen3-0.6B-Base") == PRESETS["qwen3-0.6b"]
    assert find_shape("HuggingFaceTB/SmolLM2-135M-Instruct") == PRESETS["smollm2-135m"]
    assert known_shape("other/Qwen3-4B") is None
    assert known_shape("Qwen/SmolLM2-135M") is None


@pytest.mark.e2e
def test_the_settings_of_the_hubs_library_count(tmp_path):
    """In a process of its own: HF_ENDPOINT and HF_HOME are read when the library is imported."""
    words = [sys.executable, "-m", "mage", "plan", "kuhn_poker", "--model", "lab/tiny"]
    with run_hub() as hub:
        own = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        done = subprocess.check_output(words, env=own, text=True)
    assert "model lab/tiny, 0.2 M parameters" in done
    assert any(path.startswith("/api/models/lab/tiny") for path in hub.asked)
