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

from mage.learn.pack.compilation import compiled
from mage.learn.pack.graphs import LayerGraphs
from mage.learn.pack.layers import Mask, attend, run_layers, trie_mask
from mage.learn.pack.low_rank import Factors
from mage.learn.pack.packing import Layout, Packed, Shape
from mage.models.architecture import PreTrainedModel, is_plain

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

    L = root + trees * width. The root attends to itself, the trees to the root and to themselves.
    """
    sizes = [forest.root, forest.trees * forest.width]
    # `split` is cheaper than slices: its gradient is one copy, while the gradient of every slice
    # is a tensor of zeros and a sum.
    root_query, tree_query = query.split(sizes, 2)  # [1, heads, R, D], [1, heads, B n, D]
    root_key, tree_key = key.split(sizes, 2)  # [1, kv heads, R, D], [1, kv heads, B n, D]
    root_value, tree_value = value.split(sizes, 2)  # as the keys
    parts = []
    if forest.root:
        parts.append(_attend_root(root_query, root_key, root_value, scaling))
    if forest.trees:
        keys = _with_root(root_key, tree_key, forest)  # [B, kv heads, R + n, D]
        values = _with_root(root_value, tree_value, forest)  # as the keys
        parts.append(_attend_trees(tree_query, keys, values, attention_mask, forest, scaling))
    return torch.cat(parts, 1), None  # [1, R + B n, heads, D]


def _attend_root(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Causal attention of the root: [1, heads, R, D] in, [1, R, heads, D] out."""
    grouped = query.shape[1] != key.shape[1]
    out = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped
    )  # [1, heads, R, D]
    return out.transpose(1, 2)


def _attend_trees(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    forest: Shape,
    scaling: float,
) -> torch.Tensor:
    """Attention of all trees, one batch entry each: [1, heads, B n, D] in, [1, B n, heads, D] out.

    `keys` and `values` [B, kv heads, R + n, D] start with the root.
    """
    repeats = query.shape[1] // keys.shape[1]  # heads that share a key
    queries = _fold(query, forest, repeats)  # [B, kv heads, n repeats, D]
    out = scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, scale=scaling
    )  # [B, kv heads, n repeats, D]
    return _unfold(out, repeats)


def _fold(query: torch.Tensor, forest: Shape, repeats: int) -> torch.Tensor:
    """[1, heads, B n, D] to [B, kv heads, n repeats, D].

    Heads that share keys become queries of one head, so keys are not copied.
    """
    by_key = query[0].unflatten(0, (-1, repeats))  # [kv heads, repeats, B n, D]
    by_tree = by_key.unflatten(2, (forest.trees, forest.width))  # [kv heads, repeats, B, n, D]
    return by_tree.permute(2, 0, 3, 1, 4).flatten(2, 3)  # [B, kv heads, n, repeats, D], then folded


def _unfold(out: torch.Tensor, repeats: int) -> torch.Tensor:
    """The inverse of `_fold`, with tokens before heads.

    [B, kv heads, n repeats, D] to [1, B n, heads, D].
    """
    trees, kv_heads, queries, channels = out.shape
    by_token = out.unflatten(2, (-1, repeats)).transpose(1, 2)  # [B, n, kv heads, repeats, D]
    return by_token.reshape(1, trees * queries // repeats, kv_heads * repeats, channels)


def _with_root(root: torch.Tensor, trees: torch.Tensor, forest: Shape) -> torch.Tensor:
    """[1, kv heads, R, D] and [1, kv heads, B n, D] to [B, kv heads, R + n, D]."""
    repeated = root.expand(forest.trees, -1, -1, -1)  # [B, kv heads, R, D], without a copy
    by_tree = trees[0].unflatten(1, (forest.trees, forest.width))  # [kv heads, B, n, D]
    return torch.cat((repeated, by_tree.transpose(0, 1)), 2)


def forest_mask(
    ends: torch.Tensor, forest: Shape, *, repeats: int, dtype: torch.dtype
) -> torch.Tensor:
    """Additive mask [B, 1, n repeats, R + n]: zero where `j <= i < ends[j]`, otherwise -inf.

    Every query sees the whole root. `ends` is [B, n].
    """
    key = torch.arange(forest.width, device=ends.device)  # [n]
    query = key.repeat_interleave(repeats)[:, None]  # [n repeats, 1]
    closed = (query >= ends[:, None, :]).logical_or_(key > query)  # [B, n repeats, n]
    # CUDA kernels need rows that start at multiples of 8; otherwise every layer copies the mask.
    columns = -(-(forest.root + forest.width) // 8) * 8
    mask = torch.zeros(forest.trees, 1, len(query), columns, dtype=dtype, device=ends.device)[
        ..., : forest.root + forest.width
    ]
    mask[:, 0, :, forest.root :].masked_fill_(closed, float("-inf"))
    return mask


@contextmanager
def attending(model: PreTrainedModel, layout: Layout) -> Iterator[None]:
    """Use the attention of `layout` inside the context; the engine has its own attention."""
    from transformers import AttentionInterface  # slow to load

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
    graphs: LayerGraphs | None = None,
) -> torch.Tensor:
    """Last hidden state of every token, [tokens, width]. Call it inside `attending`.

    | layout | model | layers | attention |
    |---|---|---|---|
    | trie | plain (`is_plain`) | `run_layers` | `layers.attend` |
    | trie | other | modules of transformers | `trie_attention` |
    | forest | any | modules of transformers | `forest_attention` |
    | rows | any | modules of transformers | sdpa of transformers |

    `recompute`: keep only the layers' inputs for the backward pass. `factors`: A and B of adapters.
    A trie of a plain model gives them the gradient; otherwise the weights get it. `graphs`: the
    layers of such a model, recorded.
    """
    if graphs is not None and packed.layout == "trie":
        assert packed.ends is not None, "a trie has ends"
        return graphs(packed.input_ids[0], packed.positions[0], packed.ends)
    if packed.layout == "trie" and is_plain(model):
        assert packed.ends is not None, "a trie has ends"
        return run_layers(
            model.get_decoder(),
            packed.input_ids[0],
            packed.positions[0],
            trie_mask(packed.ends),
            recompute=recompute,
            factors=factors,
        )
    with recomputing(model) if recompute else nullcontext():
        out = model.get_decoder()(
            input_ids=packed.input_ids,
            position_ids=packed.positions,
            use_cache=False,
            **_mask_arguments(model, packed),
        )
    return out.last_hidden_state.flatten(0, 1)


def _mask_arguments(model: PreTrainedModel, packed: Packed) -> dict[str, Any]:
    """The arguments of the decoder that say which tokens attend to which."""
    if packed.layout == "rows":
        return {"attention_mask": packed.real}
    assert packed.ends is not None, "tries and forests have ends"
    if packed.layout == "trie":
        return {"attention_mask": None, "trie": trie_mask(packed.ends)}
    forest = packed.shape
    assert forest is not None, "a forest has a shape"
    if not forest.trees:  # all rows are equal: the root is everything
        return {"attention_mask": None, "forest": forest}
    repeats = model.config.num_attention_heads // model.config.num_key_value_heads
    mask = forest_mask(packed.ends, forest, repeats=repeats, dtype=model.dtype)
    return {"attention_mask": mask, "forest": forest}


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
