"""Attention over a forest (see `packing.py`), as an implementation that transformers models can be switched to.

The root attends itself causally, once; every tree attends the root and itself. Linear layers see each token once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from mage.learn.packing import Packed, Shape

FOREST = "mage_forest"
ROWS = "sdpa"


def forest_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    forest: Shape,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """[1, heads, L, D] in, [1, L, heads, D] out, with L = root + trees * width."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    root, blocks = forest.root, (forest.trees, forest.width)
    parts = []
    if root:
        top = scaled_dot_product_attention(query[:, :, :root], key[:, :, :root], value[:, :, :root], is_causal=True, scale=scaling)
        parts.append(top.transpose(1, 2))
    if forest.trees:
        own = query[0, :, root:].unflatten(1, blocks).transpose(0, 1)
        keys, values = (_with_root(states[0], root, blocks) for states in (key, value))
        below = scaled_dot_product_attention(own, keys, values, attn_mask=attention_mask, scale=scaling)
        parts.append(below.transpose(1, 2).reshape(1, -1, *below.shape[1::2]))
    return torch.cat(parts, 1), None


def _with_root(states: torch.Tensor, root: int, blocks: tuple[int, int]) -> torch.Tensor:
    own = states[:, root:].unflatten(1, blocks).transpose(0, 1)
    above = states[:, :root].expand(blocks[0], -1, -1, -1)
    return torch.cat((above, own), 2)


@contextmanager
def attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Switch a model's attention and switch it back: an engine shares the module and has its own."""
    AttentionInterface.register(FOREST, forest_attention)
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = before


def check_packable(model: PreTrainedModel) -> None:
    """A forest needs every layer to be full attention: windows and recurrent states follow the line, not the trie."""
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or not model._supports_attention_backend:
        raise ValueError(
            f"{type(model).__name__} has layers of kind {sorted(kinds)}; packed training needs full attention: set learn.packed = false"
        )


def hidden_states(model: PreTrainedModel, packed: Packed) -> torch.Tensor:
    """The last hidden state of every token as [tokens, width]; the model must be `attending` as the layout needs."""
    forest = {} if packed.shape is None else {"forest": packed.shape}
    out = model.get_decoder()(
        input_ids=packed.input_ids, position_ids=packed.positions, attention_mask=packed.mask, use_cache=False, **forest
    )
    return out.last_hidden_state.flatten(0, 1)
