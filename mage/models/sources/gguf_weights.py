"""The config and the weights of a GGUF file, as transformers stores them.

Tensors are dequantised by the package `gguf`, several at a time on all cores. transformers reads
such files too, but on one core, and it parses the list of tokens several times: a model of 1.8 B
parameters took minutes.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from mage.models.sources.base import Dtype, copy_permissions
from mage.models.sources.gguf_header import Header, Tensor

# Large models are played and trained in bfloat16 on a GPU, so their folder is written in it. Small
# ones stay float32: adapters that ship with MAGE were trained on SmolLM2 in this form.
_LARGE = 1_000_000_000
_VALUES_AT_ONCE = 2**22  # a larger tensor is dequantised in pieces, so that all cores have work
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def default_dtype(header: Header) -> Dtype:
    """The number format on disk if none is asked for: bfloat16 from 1 B parameters on."""
    parameters = sum(prod(shape) for shape in header.shapes.values())
    return "bfloat16" if parameters >= _LARGE else "float32"


def transformers_name(name: str) -> str:
    """The name of a tensor in transformers' models.

    >>> transformers_name("blk.3.attn_q.bias")
    'model.layers.3.self_attn.q_proj.bias'
    """
    if name in _TOP:
        return _TOP[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}"


def write_weights(header: Header, folder: Path, dtype: Dtype, head_width: int) -> None:
    """Write `model.safetensors`. `head_width` is the width of an attention head."""
    found = read_weights(header, dtype)
    if header.metadata["general.architecture"] == "llama":
        rotated = (name for name in found if ".attn_q." in name or ".attn_k." in name)
        found |= {name: _rotary_order(found[name], head_width) for name in list(rotated)}
    named = {transformers_name(name): tensor for name, tensor in found.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    copy_permissions(folder / "model.safetensors", folder / "config.json")


def read_weights(header: Header, dtype: Dtype) -> dict[str, torch.Tensor]:
    """All tensors by their name in the file, rounded to `dtype`."""
    number = getattr(torch, dtype)
    found = {name: torch.empty(shape, dtype=number) for name, shape in header.shapes.items()}
    data = np.memmap(header.path, np.uint8, "r")

    def read(piece: tuple[str, slice]) -> None:
        name, rows = piece
        values = _dequantise(data, header.tensors[name], rows)
        target = found[name].view(-1, found[name].shape[-1])
        target[rows] = torch.from_numpy(values)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(read, _pieces(header)))  # the list raises what a thread raised
    return found


def _pieces(header: Header) -> Iterator[tuple[str, slice]]:
    """Every tensor in pieces of whole rows."""
    for name, shape in header.shapes.items():
        count, length = prod(shape[:-1]), shape[-1]
        step = max(1, _VALUES_AT_ONCE // length)
        yield from ((name, slice(at, min(at + step, count))) for at in range(0, count, step))


def _dequantise(
    data: "np.ndarray[Any, Any]", tensor: Tensor, rows: slice
) -> "np.ndarray[Any, np.dtype[np.float32]]":
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(tensor.kind)
    elements, size = GGML_QUANT_SIZES[kind]
    width = tensor.shape[-1] // elements * size
    first, last = tensor.start + rows.start * width, tensor.start + rows.stop * width
    stored = np.array(data[first:last]).reshape(-1, width)
    return np.asarray(dequantize(stored, kind), np.float32)


def _rotary_order(weight: torch.Tensor, head_width: int) -> torch.Tensor:
    """The rows of a llama's query or key weights as transformers orders them.

    GGUF rotates neighbouring rows of a head, transformers a row and the row half a head later.
    """
    heads = weight.shape[0] // head_width
    pairs = weight.view(heads, head_width // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()
