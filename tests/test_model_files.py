"""Model files from strangers: crafted folders, weights, tokenizers and adapters are refused."""

import json
import math
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from typer.testing import CliRunner

from mage.agent.chat import Chat
from mage.cli.main import app
from mage.config.errors import UserError
from mage.models.adapters import merge_adapters, save_adapters
from mage.models.base import SHIPPED, list_models
from mage.models.checks import check_folder, read_object, read_tensors
from mage.models.loading import load_model
from mage.models.sources.folder import copy_folder

EMBEDDED = SHIPPED / "embedded"
HUGE = 2**62


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(EMBEDDED, tmp_path / "model")
    return tmp_path / "model"


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def with_length(head: Any) -> bytes:
    """The header of weights, as it is stored."""
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(dtype: Any = "F32", shape: Any = (2,), span: Any = (0, 8)) -> dict[str, Any]:
    return {"one": {"dtype": dtype, "shape": shape, "data_offsets": span}}


# --- Weights --------------------------------------------------------------------------------------


def test_the_header_of_a_sound_file_is_read(tmp_path):
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(2).bfloat16()}, tmp_path / "w")
    assert read_tensors(tmp_path / "w") == {"a": ("F32", (3, 5)), "b": ("BF16", (2,))}


HEADS = [
    *(b"no json", b"[" * 100_000, {"one": 7}, struct.pack("<Q", 0), entry(dtype="PICKLE")),
    *(entry(shape=[-2]), entry(shape=[3]), entry(shape=[HUGE, HUGE])),
    *(entry(span=[8, 0]), entry(span=[0, HUGE])),
]
NO_HEADS = [b"", bytes(7), struct.pack("<Q", HUGE) + b"{}"]


@pytest.mark.parametrize(
    "data", [*(with_length(head) + bytes(8) for head in HEADS), *NO_HEADS], ids=range(13)
)
def test_a_damaged_header_is_one_message(data, tmp_path):
    (tmp_path / "w").write_bytes(data)
    with pytest.raises(ValueError, match="is damaged: "):
        read_tensors(tmp_path / "w")


def test_weights_in_pickle_format_are_never_read(folder):
    (folder / "model.safetensors").unlink()

    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return Path.touch, (folder / "executed",)  # type: ignore[return-value]

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"has no \*\.safetensors"):
        load_model(folder, "float32", "cpu")
    assert not (folder / "executed").exists()


# --- Model folders --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ({"num_labels": 10**8}, "num_labels = 100000000"),
        ({"text_config": {"num_hidden_layers": 10**7}}, "num_hidden_layers = 10000000"),
        ({"n_layer": 10**7}, "n_layer = 10000000"),
        ({"layer_types": ["full_attention"] * 5_000}, "layer_types = 5000"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers = three"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ({"hidden_size": 10**12}, "hidden_size = 1000000000000"),
        ({"hidden_size": 10**4000}, "hidden_size"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"vocab_size": 20_000, "hidden_size": 20_000}, "embedding"),
        ({"intermediate_size": 0}, "intermediate_size = 0"),
        ({"num_attention_heads": [1]}, "num_attention_heads"),
    ],
)
def test_a_config_that_is_larger_than_its_weights_is_refused_before_the_model_is_built(
    fields, words, folder
):
    change(folder / "config.json", **fields)
    with pytest.raises(ValueError, match=words):
        check_folder(folder)
    with pytest.raises(ValueError, match=words):
        load_model(folder, "float32", "cpu")


def test_missing_and_mismatched_weights_are_not_replaced_by_random_ones(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(key for key in tensors if key.endswith("mlp.up_proj.weight"))
    for changed in ({}, {name: tensors[name][:-1].clone()}):
        save_file({k: v for k, v in tensors.items() if k != name} | changed, path, {"format": "pt"})
        with pytest.raises(ValueError, match=r"up_proj\.weight|cannot be loaded"):
            load_model(folder, "float32", "cpu")


@pytest.mark.parametrize("kind", ["llama", "made_up"])
def test_code_in_a_model_folder_is_never_run(kind, folder):
    mark = folder / "executed"
    (folder / "code.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Model: pass\n")
    auto = {"AutoConfig": "code.Model", "AutoModelForCausalLM": "code.Model"}
    change(folder / "config.json", auto_map=auto, model_type=kind)
    if kind == "made_up":
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_model(folder, "float32", "cpu")
    else:
        load_model(folder, "float32", "cpu")
    assert not mark.exists()


def test_the_attention_that_a_config_names_is_not_used(folder):
    change(folder / "config.json", _attn_implementation="someone/kernel", attn_implementation="x/y")
    assert load_model(folder, "float32", "cpu").config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "places",
    [
        *({"a": "../secret.safetensors"}, {"a": "/etc/passwd"}, {"a": "pytorch_model.bin"}),
        *({"a": "sub/model.safetensors"}, {"a": 7}, {}, [], "model.safetensors"),
    ],
    ids=str,
)
def test_an_index_may_name_only_weights_of_its_own_folder(places, folder, tmp_path):
    (tmp_path / "secret.safetensors").write_bytes(b"secret")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="of its own folder in weight_map"):
        copy_folder(folder, tmp_path / "out", None, None, lambda line: None)
    assert not (tmp_path / "out" / "secret.safetensors").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 100_000, "\xff", '{"a": NaN'])
def test_a_file_that_is_not_a_json_object_is_one_message(text, tmp_path):
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"a\.json (is not valid JSON|must hold a JSON object)"):
        read_object(tmp_path / "a.json")


def test_a_damaged_model_is_listed_with_the_reason(folder, monkeypatch):
    monkeypatch.setenv("MAGE_MODELS", str(folder.parent))
    (folder / "model.safetensors").write_bytes(with_length(b"no json"))
    (found,) = list_models()
    assert (found.name, found.dtype, found.parameters) == ("model", "damaged", 0)
    assert "is damaged" in found.origin
    assert CliRunner().invoke(app, ["model", "list"]).exit_code == 0


# --- Tokenizers -----------------------------------------------------------------------------------


UNREADABLE = ("", "{", "null", "{}", '{"model": {"type": "BPE"}}', "[" * 100_000)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        *(("tokenizer.json", text, "cannot be read as a tokenizer") for text in UNREADABLE),
        ("tokenizer_config.json", "{", "not a JSON object"),
        ("tokenizer_config.json", "[]", "not a JSON object"),
        ("generation_config.json", "[" * 100_000, "not a JSON object"),
        ("generation_config.json", '{"eos_token_id": "x"}', "is not a token id"),
        ("generation_config.json", '{"eos_token_id": [1, -2]}', "is not a token id"),
        ("generation_config.json", '{"eos_token_id": 1e99}', "is not a token id"),
    ],
)
def test_a_damaged_tokenizer_is_one_message(name, text, words, folder):
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        Chat.load(folder)


def test_special_tokens_of_a_wrong_type_are_ignored(folder):
    change(folder / "tokenizer_config.json", bos_token=7, unk_token={"text": "x"}, pad_token=[1])
    assert Chat.load(folder).first("a", "b") == Chat.load(EMBEDDED).first("a", "b")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ self._TemplateReference__context }}",
        "{{ 1 / 0 }}",
        "{{ [1] * 10**12 }}",
        "{{ 'a'.ljust(3 * 2**30) }}",
        "{% if 1 %}" * 150 + "{% endif %}" * 150,
        "{{ 1 }}" * 20_000,
    ],
)
def test_a_hostile_chat_template_is_refused(template, folder):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match="chat template"):
        Chat.load(folder)


def test_a_tokenizer_that_makes_texts_grow_is_refused(folder):
    """Twice the length, thirty times: 1 GB for each letter."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    for part, steps in (("normalizer", "normalizers"), ("decoder", "decoders")):
        path = folder / "tokenizer.json"
        sound = path.read_text()
        change(path, **{part: {"type": "Sequence", steps: [step] * 30}})
        with pytest.raises(ValueError, match="times longer"):
            Chat.load(folder)
        path.write_text(sound)


@pytest.mark.parametrize(
    "fields",
    [
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        *({"layer_types": ["none"]}, {"layer_types": 3}),
    ],
)
def test_a_config_that_transformers_refuses_is_one_message(fields, folder):
    change(folder / "config.json", **fields)
    with pytest.raises(UserError, match="cannot be loaded as a causal language model"):
        load_model(folder, "float32", "cpu")


# --- Adapters -------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["electra", "ctrl", "bert-generation", "gpt2"])
def test_a_model_that_fails_in_the_engine_or_the_learner_is_one_message(kind, folder, monkeypatch):
    """The encoder fails in the engine; the others have layers that the learner cannot pack."""
    monkeypatch.chdir(folder.parent)
    words = read_object(folder / "config.json")["vocab_size"]
    sizes = {
        **{"hidden_size": 32, "embedding_size": 16, "intermediate_size": 64, "n_embd": 32},
        **{"num_hidden_layers": 1, "num_attention_heads": 2, "n_layer": 1, "n_head": 2, "dff": 64},
    }
    config = AutoConfig.for_model(kind, vocab_size=words, max_position_embeddings=512, **sizes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    done = CliRunner().invoke(app, ["train", "kuhn_poker", f"--model.path={folder}"])
    user = "the engine local" if kind == "electra" else "the learner"
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code, f"does not work with {user}" in done.output) == (2, True), done.output


@pytest.fixture(scope="module")
def embedded():
    return load_model(EMBEDDED, "float32", "cpu")


@pytest.fixture
def adapters(tmp_path, embedded):
    masters = {}
    for name, layer in embedded.named_modules():
        if isinstance(layer, torch.nn.Linear) and layer is not embedded.get_output_embeddings():
            masters[f"{name}.lora_A.weight"] = torch.zeros(2, layer.in_features)
            masters[f"{name}.lora_B.weight"] = torch.zeros(layer.out_features, 2)
    save_adapters(tmp_path / "adapters", masters, rank=2, alpha=4.0, base="embedded")
    return tmp_path / "adapters"


def test_sound_adapters_are_merged(adapters):
    model = load_model(adapters, "float32", "cpu")
    before = load_model(EMBEDDED, "float32", "cpu").state_dict()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "fields",
    [
        *({"r": rank} for rank in (10**12, 0, -2, "2", True)),
        *({"lora_alpha": alpha} for alpha in (math.nan, math.inf, -4, "4")),
        *({"peft_type": "PICKLE"}, {"use_dora": True}, {"bias": "all"}),
        *({"alpha_pattern": {"q_proj": 64}}, {"modules_to_save": ["lm_head"]}),
    ],
    ids=str,
)
def test_an_impossible_adapter_config_is_one_message(fields, adapters, embedded):
    change(adapters / "adapter_config.json", **fields)
    with pytest.raises(ValueError, match="is not the config of plain LoRA adapters"):
        merge_adapters(embedded, adapters)


@pytest.mark.parametrize("base", [None, 7, "", ["embedded"]])
def test_adapters_without_a_base_model_are_one_message(base, adapters):
    change(adapters / "adapter_config.json", base_model_name_or_path=base)
    with pytest.raises(ValueError, match="has no base_model_name_or_path"):
        load_model(adapters, "float32", "cpu")


def test_adapters_of_another_shape_are_refused_before_their_weights_are_read(
    adapters, embedded, monkeypatch
):
    monkeypatch.setattr("mage.models.adapters.load_file", lambda path: pytest.fail("read"))
    change(adapters / "adapter_config.json", r=3)
    with pytest.raises(ValueError, match="do not match the linear layers"):
        merge_adapters(embedded, adapters)
