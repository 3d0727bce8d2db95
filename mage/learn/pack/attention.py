"""Attention over a trie or a forest (see `packing.py`), for models of transformers.

A trie uses FlexAttention, which skips the empty blocks of the mask. In a forest the root attends
to itself once, and every tree attends to the root and to itself. Linear layers see each token once.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from mage.learn.pack.compilation import compiled
from mage.learn.pack.layers import Mask, attend, run_layers, trie_mask
from mage.learn.pack.low_rank import Factors
from mage.learn.pack.packing import Layout, Packed, Shape
from mage.models.architecture import is_plain

IMPLEMENTATIONS: dict[Layout, str] = {"trie": "mage_trie", "forest": "mage_forest", "rows": "sdpa"}


@cache
def _attend_for(device: str) -> Callable[..., torch.Tensor]:
    return compiled(attend, dynamic=False) if device == "cuda" else attend


def trie_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    trie: Mask,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a trie: [1, heads, L, D] in, [1, L, heads, D] out."""
    return _attend_for(query.device.type)(query, key, value, trie, scaling).transpose(1, 2), None


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
    """Attention of a forest: [1, heads, L, D] in, [1, L, heads, D] out.

    L = root + trees * width.
    """
    sizes = [forest.root, forest.trees * forest.width]
    # `split` is cheaper than slices: its gradient is one copy, while the gradient of every slice
    # is a tensor of zeros and a sum.
    (above_query, own_query), *others = (states.split(sizes, 2) for states in (query, key, value))
    parts = []
    if forest.root:
        above_key, above_value = (above for above, _ in others)
        grouped = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(
            above_query, above_key, above_value, is_causal=True, scale=scaling, enable_gqa=grouped
        )
        parts.append(out.transpose(1, 2))
    if forest.trees:
        keys, values = (_with_root(above, own, forest) for above, own in others)
        queries, repeats = _fold(own_query, forest, key.shape[1])
        out = scaled_dot_product_attention(
            queries, keys, values, attn_mask=attention_mask, scale=scaling
        )
        parts.append(
            out.unflatten(2, (-1, repeats)).transpose(1, 2).reshape(1, sizes[1], *query.shape[1::2])
        )
    return torch.cat(parts, 1), None


def _fold(query: torch.Tensor, forest: Shape, kv_heads: int) -> tuple[torch.Tensor, int]:
    """[1, heads, B n, D] to [B, kv heads, n repeats, D].

    Heads that share keys become queries of one head, so keys are not copied.
    """
    blocks, repeats = (forest.trees, forest.width), query.shape[1] // kv_heads
    return query[0].unflatten(0, (kv_heads, repeats)).unflatten(2, blocks).permute(
        2, 0, 3, 1, 4
    ).flatten(2, 3), repeats


def _with_root(root: torch.Tensor, own: torch.Tensor, forest: Shape) -> torch.Tensor:
    """[1, kv heads, R, D] and [1, kv heads, B n, D] to [B, kv heads, R + n, D]."""
    blocks = (forest.trees, forest.width)
    return torch.cat(
        (root.expand(forest.trees, -1, -1, -1), own[0].unflatten(1, blocks).transpose(0, 1)), 2
    )


def forest_mask(
    reach: torch.Tensor, forest: Shape, *, repeats: int, dtype: torch.dtype
) -> torch.Tensor:
    """Additive mask [B, 1, n repeats, R + n]: zero where `j <= i < end[j]`, otherwise -inf.

    Every query sees the whole root.
    """
    key = torch.arange(forest.width, device=reach.device)
    query = key.repeat_interleave(repeats)[:, None]
    closed = (query >= reach[:, None, :]).logical_or_(key > query)
    # CUDA kernels need rows that start at multiples of 8; otherwise every layer copies the mask.
    columns = -(-(forest.root + forest.width) // 8) * 8
    mask = torch.zeros(forest.trees, 1, len(query), columns, dtype=dtype, device=reach.device)[
        ..., : forest.root + forest.width
    ]
    mask[:, 0, :, forest.root :].masked_fill_(closed, float("-inf"))
    return mask


@contextmanager
def attending(model: PreTrainedModel, layout: Layout) -> Iterator[None]:
    """Use the attention of `layout` inside the context; the engine has its own attention."""
    AttentionInterface.register(IMPLEMENTATIONS["trie"], trie_attention)
    AttentionInterface.register(IMPLEMENTATIONS["forest"], forest_attention)
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = IMPLEMENTATIONS[layout]
    try:
        yield
    finally:
        config._attn_implementation = before


def hidden_states(
    model: PreTrainedModel,
    packed: Packed,
    *,
    recompute: bool = False,
    factors: Mapping[torch.Tensor, Factors] | None = None,
) -> torch.Tensor:
    """Last hidden state of every token, [tokens, width]. Call it inside `attending`.

    `recompute`: keep only the layers' inputs for the backward pass. `factors`: A and B of adapters.
    A trie of a plain model gives them the gradient; otherwise the weights get it.
    """
    if packed.layout == "trie" and is_plain(model):
        return run_layers(
            model.get_decoder(),
            packed.input_ids[0],
            packed.positions[0],
            trie_mask(packed.reach),
            recompute=recompute,
            factors=factors,
        )
    extra: dict[str, Any] = {"attention_mask": packed.reach if packed.layout == "rows" else None}
    if packed.layout == "trie":
        extra["trie"] = trie_mask(packed.reach)
    if packed.shape is not None:
        extra["forest"] = packed.shape
        if packed.shape.trees:
            repeats = model.config.num_attention_heads // model.config.num_key_value_heads
            extra["attention_mask"] = forest_mask(
                packed.reach, packed.shape, repeats=repeats, dtype=model.dtype
            )
    with recomputing(model) if recompute else nullcontext():
        out = model.get_decoder()(
            input_ids=packed.input_ids, position_ids=packed.positions, use_cache=False, **extra
        )
    return out.last_hidden_state.flatten(0, 1)


@contextmanager
def recomputing(model: PreTrainedModel) -> Iterator[None]:
    """Turn on gradient checkpointing. transformers applies it only to layers in training mode.

    Only the layers themselves are switched, not the modules inside, so dropout stays off.
    """
    layers = list(model.get_decoder().layers)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
        model.gradient_checkpointing_disable()
