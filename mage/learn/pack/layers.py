"""The layers of a plain Llama or Qwen model over a trie, as one compiled function for all layers.

transformers runs a layer as about forty small operations. On a GPU a small model then spends most
of its time launching kernels and moving memory. The parameters stay those of the module. Models
with adapter modules, hooks or other architectures use the modules of transformers instead.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from mage.learn.pack.compilation import compiled, padded_length
from mage.learn.pack.low_rank import Factors, LayerFactors, factors_of, project
from mage.models.architecture import LayerParts, parts_of
from mage.models.side_by_side import are_neighbours, as_one

BLOCK = 128  # tokens in a block of the attention mask
Mask: TypeAlias = "BlockMask | Tensor"


class Sizes(NamedTuple):
    """Sizes that all layers of a model share."""

    heads: int
    kv_heads: int
    scaling: float
    epsilon: float


def run_layers(
    backbone: Any,
    ids: Tensor,
    positions: Tensor,
    mask: Mask,
    *,
    recompute: bool = False,
    factors: Mapping[Tensor, Factors] | None = None,
) -> Tensor:
    """Last hidden states [tokens, width].

    `recompute`: keep only the layers' inputs for the backward pass. `factors`: A and B of the
    linear weights, which get the gradient instead of the weights.
    """
    config, first = backbone.config, backbone.layers[0].self_attn
    sizes = Sizes(
        config.num_attention_heads, config.num_key_value_heads, first.scaling, config.rms_norm_eps
    )
    hidden = backbone.embed_tokens(ids)
    if torch.is_grad_enabled() and not hidden.requires_grad:
        hidden.requires_grad_()  # with frozen embeddings too, so that all layers are one version
    cos, sin = (table[0] for table in backbone.rotary_emb(hidden, positions[None]))
    layer = _layer_for(ids.device.type)
    for module in backbone.layers:
        weights = parts_of(module)
        layer_factors = None
        if factors is not None:
            layer_factors, weights = factors_of(weights, factors), _without_copies(weights)
        given = (hidden, weights, layer_factors, cos, sin, mask, sizes)
        hidden = checkpoint(layer, *given, use_reentrant=False) if recompute else layer(*given)
    return _norm(hidden, backbone.norm.weight, sizes.epsilon)


def _without_copies(weights: LayerParts) -> LayerParts:
    """Frozen weights with the same input as one tensor, where the engine has placed them so.

    Otherwise every micro-batch copies them, and keeps the copies for the backward pass.
    """
    qkv, gate_up = (
        (as_one(parts),) if are_neighbours(parts) else parts
        for parts in (weights.qkv, weights.gate_up)
    )
    return weights._replace(qkv=qkv, gate_up=gate_up)


def line_length(tokens: int, micro_tokens: int, device: torch.device) -> int:
    """Length of a trie with padding: whole blocks; on CUDA one of few, to avoid compilations."""
    if device.type == "cuda":
        return padded_length(tokens, micro_tokens, BLOCK)
    return -(-tokens // BLOCK) * BLOCK


@cache
def _layer_for(device: str) -> Callable[..., Tensor]:
    """The compiled layer on CUDA; the plain function elsewhere."""
    return compiled(_layer, dynamic=False) if device == "cuda" else _layer


def _layer(
    hidden: Tensor,
    weights: LayerParts,
    factors: LayerFactors | None,
    cos: Tensor,
    sin: Tensor,
    mask: Mask,
    sizes: Sizes,
) -> Tensor:
    """One layer over T tokens: [T, width] in and out. D is the size of a head."""
    # Attention.
    heads, kv_heads = sizes.heads, sizes.kv_heads
    qkv_bias = None if weights.qkv_bias is None else torch.cat(weights.qkv_bias)
    normed = _norm(hidden, weights.before_attention, sizes.epsilon)
    qkv = project(normed, weights.qkv, qkv_bias, factors and factors.qkv)
    query, key, value = qkv.unflatten(1, (heads + 2 * kv_heads, -1)).split(
        (heads, kv_heads, kv_heads), 1
    )  # [T, heads or kv_heads, D]
    if weights.norms is not None:
        query = _norm(query, weights.norms[0], sizes.epsilon)
        key = _norm(key, weights.norms[1], sizes.epsilon)
    # Transposed last: norms and rotation are then one pass over the output of the product.
    query, key, value = (
        part.transpose(0, 1)[None]  # [1, heads or kv_heads, T, D]
        for part in (_rotate(query, cos, sin), _rotate(key, cos, sin), value)
    )
    found = attend(query, key, value, mask, sizes.scaling)
    flat = found.squeeze(0).transpose(0, 1).flatten(1)  # [T, heads D]
    hidden = hidden + project(flat, (weights.out,), weights.out_bias, factors and factors.out)
    # MLP.
    mlp_bias = None if weights.gate_up_bias is None else torch.cat(weights.gate_up_bias)
    normed = _norm(hidden, weights.before_mlp, sizes.epsilon)
    gate, up = project(normed, weights.gate_up, mlp_bias, factors and factors.gate_up).chunk(2, -1)
    return hidden + project(
        silu(gate) * up, (weights.down,), weights.down_bias, factors and factors.down
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scaling: float) -> Tensor:
    """Attention with the given mask; [1, heads, L, D] in and out."""
    if isinstance(mask, Tensor):
        grouped = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped
        )
    # The gradient of a key head is summed over all queries of all its query heads in sequence, and
    # the first keys of a trie have the most. With a copy of the keys for each query head, these
    # longest sums are shorter by the number of copies (docs/performance.md: not measured apart).
    repeats = query.shape[1] // key.shape[1]
    keys, values = (_repeat(heads, repeats) for heads in (key, value))
    found: Any = flex_attention(query, keys, values, block_mask=mask, scale=scaling)
    return cast("Tensor", found)


def _repeat(heads: Tensor, repeats: int) -> Tensor:
    """[1, heads, L, D] with each head `repeats` times: [1, heads repeats, L, D]."""
    return heads[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2)


def trie_mask(ends: Tensor) -> Mask:
    """The mask `j <= i < ends[j]`: blocks for FlexAttention on CUDA, a dense tensor elsewhere.

    `ends[j]` is the place after the last token below token j in depth-first order, so token i sees
    token j if it is j or below it.
    """
    if ends.device.type == "cuda":
        return block_mask(ends.int())  # comparisons of 32 bits take half of the instructions
    line = torch.arange(len(ends), device=ends.device)
    return (line[None] <= line[:, None]) & (line[:, None] < ends[None])


def block_mask(ends: Tensor, block: int = BLOCK) -> BlockMask:
    """For each block of queries: the blocks of keys that it needs in part and those in full.

    Of the tensors with two axes, a row is a block of queries and a column a block of keys.
    """

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    count = -(-len(ends) // block)
    padded = pad(ends, (0, count * block - len(ends))).view(count, block)  # of each block of keys
    block_number = torch.arange(count, device=ends.device)
    queries, keys = block_number[:, None], block_number[None, :]
    first_query = queries * block
    last_query = (first_query + block - 1).clamp(max=len(ends) - 1)
    # Full: the last query sees every key of the block, so all queries do.
    full = (keys < queries) & (padded.amin(1)[None, :] > last_query)
    # Partly: the first query sees some key of the block, or it is the queries' own block.
    some = (keys < queries) & (padded.amax(1)[None, :] > first_query)
    partly = (some | (keys == queries)) & ~full
    listed = [part for chosen in (partly, full) for part in _listed(chosen)]
    return BlockMask.from_kv_blocks(
        *listed, BLOCK_SIZE=block, mask_mod=rule, seq_lengths=(len(ends), len(ends))
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The number of chosen blocks per row, and the block numbers with the chosen ones first."""
    order = chosen.int().argsort(dim=1, descending=True, stable=True)
    return chosen.sum(1, dtype=torch.int32)[None, None], order.int()[None, None]


def _norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = hidden if hidden.dtype == torch.float64 else hidden.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(
        hidden.dtype
    )


def _rotate(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows [T, heads, D] with each half of D mixed with the other, by tables [T, D]."""
    left, right = rows.chunk(2, -1)
    (cos_left, cos_right), (sin_left, sin_right) = (
        table[:, None].chunk(2, -1) for table in (cos, sin)
    )
    mixed = left * cos_left - right * sin_left, right * cos_right + left * sin_right
    return torch.stack(mixed, -2).flatten(-2)
