"""A plain model without transformers has its weights and gives its replies, bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from mage.engines.base import run
from mage.engines.local import LocalEngine
from mage.models.loading import load_model
from mage.models.plain import PlainModel
from mage.types import Completion, Request
from tests.toys import byte_chat

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
CONFIGS = {
    "tied": LlamaConfig(**SIZES, head_dim=16, tie_word_embeddings=True),
    "biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "theta": LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=24, tie_word_embeddings=True),
    "qwen3 with biases": Qwen3Config(**SIZES, head_dim=8, attention_bias=True),
}


def write(folder: Path, config: PreTrainedConfig) -> Path:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():  # biases and norms of a new model are 0 and 1
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    return folder


def replies(model: Any) -> list[Completion]:
    engine = LocalEngine(model, byte_chat(), slots=3, context=64)
    prompts = [tuple(range(20, 20 + length)) for length in (3, 17, 17, 30)]

    async def ask(number: int, prompt: tuple[int, ...]) -> Completion:
        return await engine.sample(Request(prompt, 6, seed=number, temperature=0.8))

    return run(ask(number, prompt) for number, prompt in enumerate(prompts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_weights_and_replies_are_those_of_transformers(name, dtype, tmp_path):
    folder = write(tmp_path / "model", CONFIGS[name])
    plain, theirs = (load_model(folder, dtype, "cpu", plays_only=only) for only in (True, False))
    assert isinstance(plain, PlainModel)
    assert not isinstance(theirs, PlainModel)
    own, other = plain.state_dict(), theirs.state_dict()
    assert list(dict(plain.named_parameters())) == list(dict(theirs.named_parameters()))
    assert all(torch.equal(own[key], other[key]) for key in own | other)
    assert replies(plain) == replies(theirs)


def change_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def add_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    key = "model.layers.0.self_attn.q_proj.bias"  # transformers drops it with a warning
    save_file(load_file(path) | {key: torch.ones(32)}, path, {"format": "pt"})


UNUSUAL = {
    "a part is rotated, older config": change_config(partial_rotary_factor=0.5),
    "another activation": change_config(hidden_act="gelu"),
    "scaled positions": change_config(
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    ),
    "a part of the channels is rotated": change_config(
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    ),
    "an unknown default": change_config(rms_norm_eps=None),
    "a tensor too many": add_tensor,
    "another file name": lambda folder: (folder / "model.safetensors").rename(
        folder / "model-00001-of-00001.safetensors"
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_anything_unusual_is_left_to_transformers(name, tmp_path, monkeypatch):
    folder = write(tmp_path / "model", CONFIGS["theta"])
    UNUSUAL[name](folder)
    monkeypatch.setattr("mage.models.loading._load_modules", lambda *_: torch.nn.Linear(1, 1))
    found = load_model(folder, "float32", "cpu", plays_only=True)
    assert isinstance(found, torch.nn.Linear)
