"""A plain Llama, Qwen2 or Qwen3 without transformers, for agents that only play on a CPU.

Importing the classes of transformers takes 4 s of processor time. The local engine computes a plain
model itself, from the weights and the config (`mage.engines.local.forward`), so a `PlainModel` has
no more than these, under the names of transformers. Whatever is not the usual config of these kinds
with exactly their tensors is left to transformers and to its messages.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from mage.models.checks import read_object, read_tensors

_KINDS = ("llama", "qwen2", "qwen3")
_SIZES = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads",
    "num_key_value_heads",
)  # fmt: skip
_BIASES = ("attention_bias", "mlp_bias")
_UNUSUAL = (
    "auto_map", "partial_rotary_factor", "quantization_config", "rope_scaling", "sliding_window",
)  # fmt: skip
_FORMATS = {"F32", "F16", "BF16"}


class PlainModel(nn.Module):
    """Weights and config. It has no forward pass."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)
        vocabulary, hidden = config["vocab_size"], config["hidden_size"]
        self.model = _module(
            embed_tokens=nn.Embedding.from_pretrained(
                torch.empty(vocabulary, hidden, device="meta")
            ),
            layers=nn.ModuleList(_layer(config) for _ in range(config["num_hidden_layers"])),
            norm=_norm(hidden),
            config=self.config,
            rotary_emb=partial(
                _rotate, config["rope_parameters"]["rope_theta"], _head_size(config)
            ),
        )
        self.model.get_input_embeddings = lambda: self.model.embed_tokens
        self.lm_head = _linear(hidden, vocabulary, bias=False)

    def get_decoder(self) -> nn.Module:
        return self.model

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device


def read_plain(folder: Path, dtype: torch.dtype) -> PlainModel | None:
    """The model of a folder that has passed `check_folder`, or None: then use transformers."""
    config = _usual(read_object(folder / "config.json"))
    files = list(folder.glob("*.safetensors*"))
    if config is None or [file.name for file in files] != ["model.safetensors"]:
        return None
    model, stored = PlainModel(config), read_tensors(files[0])
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del expected["lm_head.weight"]
    formats = {kind for kind, _ in stored.values()}
    if {name: shape for name, (_, shape) in stored.items()} != expected or formats - _FORMATS:
        return None
    tensors = {name: value.to(dtype) for name, value in load_file(files[0]).items()}
    model.load_state_dict(tensors, assign=True, strict=False)
    if config["tie_word_embeddings"]:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.requires_grad_(True).eval()


def _usual(config: dict[str, Any]) -> dict[str, Any] | None:
    """The config with the names of transformers 5; None if it is not a usual one."""
    rope = config.get("rope_parameters", {"rope_theta": config.get("rope_theta")})
    kinds, size = config.get("layer_types"), config.get("head_dim")
    usual = (
        config.get("model_type") in _KINDS
        and all(_is_size(config.get(name)) for name in _SIZES)
        and all(config.get(name, False) in (True, False) for name in _BIASES)
        and type(config.get("tie_word_embeddings")) is bool
        and type(config.get("rms_norm_eps")) is float
        and config.get("hidden_act") == "silu"
        and not any(config.get(name) for name in _UNUSUAL)
        and kinds in (None, ["full_attention"] * config["num_hidden_layers"])
        and (_is_size(size) or (size is None and config["model_type"] != "qwen3"))
        and isinstance(rope, dict)
        and set(rope) <= {"rope_theta", "rope_type"}
        and type(rope.get("rope_theta")) in (int, float)
        and rope.get("rope_type", "default") == "default"
    )
    return config | {"rope_parameters": rope | {"rope_type": "default"}} if usual else None


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _layer(config: Mapping[str, Any]) -> nn.Module:
    kind, hidden, wide = config["model_type"], config["hidden_size"], config["intermediate_size"]
    size, norms = _head_size(config), {}
    query, key = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    bias = config.get("attention_bias", False) if kind != "qwen2" else True
    mlp_bias = kind == "llama" and config.get("mlp_bias", False)
    if kind == "qwen3":
        norms = {"q_norm": _norm(size), "k_norm": _norm(size)}
    return _module(
        self_attn=_module(
            q_proj=_linear(hidden, query, bias),
            k_proj=_linear(hidden, key, bias),
            v_proj=_linear(hidden, key, bias),
            o_proj=_linear(query, hidden, bias and kind != "qwen2"),
            **norms,
            head_dim=size,
            scaling=size**-0.5,
        ),
        mlp=_module(
            gate_proj=_linear(hidden, wide, mlp_bias),
            up_proj=_linear(hidden, wide, mlp_bias),
            down_proj=_linear(wide, hidden, mlp_bias),
        ),
        input_layernorm=_norm(hidden),
        post_attention_layernorm=_norm(hidden),
    )


def _module(**parts: Any) -> Any:
    made = nn.Module()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def _linear(into: int, out: int, bias: bool) -> nn.Linear:
    return nn.Linear(into, out, bias=bias, device="meta")


def _norm(size: int) -> nn.Module:
    made: nn.Module = _module(weight=nn.Parameter(torch.empty(size, device="meta")))
    return made


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _rotate(
    theta: float, size: int, like: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the angles of positions [1, tokens], in the dtype of `like`."""
    speeds = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float) / size))
    angles = (positions[..., None].float() * speeds).repeat(1, 1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)
