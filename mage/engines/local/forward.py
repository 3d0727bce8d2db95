"""The decoder of a plain Llama or Qwen model as few large operations.

The cost of a step of a small model is the number of calls. Weights with the same input are
concatenated into ONE tensor, and the module's parameters become views of it: queries, keys and
values are one product, gate and up another, and the learner trains the same memory. Models with
anything else (adapter modules, hooks, scaled rope) use the modules of transformers.
"""

from types import ModuleType
from typing import Any, cast

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from mage.engines.gpu.loop import TokenSlots
from mage.engines.gpu.reference_ops import rotate
from mage.engines.local.attention import Plan
from mage.engines.pool import KeyValuePool
from mage.models.architecture import LayerParts, is_plain, parts_of
from mage.models.side_by_side import are_neighbours, place_side_by_side

PAIRS = 16  # of channels of a key head whose biases are not stored in 8 bits


class PlainDecoder:
    """Computes the last hidden states from token ids, like `backbone`. `ops`: kernels for a GPU."""

    def __init__(self, backbone: Any, context: int, ops: ModuleType | None = None) -> None:
        config = backbone.config
        self.backbone, self.epsilon, self.ops = backbone, config.rms_norm_eps, ops
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size, self.scaling = (
            backbone.layers[0].self_attn.head_dim,
            backbone.layers[0].self_attn.scaling,
        )
        self.floor = torch.tensor(self.epsilon, device=backbone.embed_tokens.weight.device)
        self.rope = _rope_table(backbone, context)
        self.layers = [_fuse(parts_of(layer)) for layer in backbone.layers]
        self.biases: list[Any] = [layer.qkv_bias for layer in self.layers]

    def is_current(self, model: torch.nn.Module) -> bool:
        """Whether `model` still computes with these weights and has no added modules or hooks."""
        if not is_plain(model) or cast("Any", model).get_decoder() is not self.backbone:
            return False
        return all(
            _stay(fused, parts_of(layer))
            for fused, layer in zip(self.layers, self.backbone.layers, strict=True)
        )

    @torch.no_grad()
    def split_biases(self, pool: KeyValuePool) -> None:
        """Move the largest biases of keys from the product into the table of a pool in 8 bits.

        The rotation mixes channel i with i + size / 2, so both move. Graphs keep the addresses.
        """
        if any(bias is None for bias in self.biases):
            return
        half, (cos, sin) = self.size // 2, (table.float()[:, None] for table in self.rope)
        heads = slice(self.heads * self.size, (self.heads + self.kv_heads) * self.size)
        if not pool.bias.numel():
            few = 2 * min(PAIRS, half)
            pool.channels = pool.channels.new_zeros(*pool.channels.shape[:-1], few)
            pool.bias = pool.bias.new_zeros(*pool.bias.shape[:-1], few)
        if self.biases[0] is self.layers[0].qkv_bias:
            self.biases = [torch.empty_like(bias) for bias in self.biases]
        for index, (layer, rest) in enumerate(zip(self.layers, self.biases, strict=True)):
            rest.copy_(layer.qkv_bias)
            key = rest[heads].view(self.kv_heads, self.size)
            squares = key.float().square()
            pairs = (squares[:, :half] + squares[:, half:]).topk(min(PAIRS, half)).indices
            chosen = torch.cat((pairs, pairs + half), 1)
            large = torch.zeros_like(key).scatter(1, chosen, key.gather(1, chosen))
            key -= large
            moved = rotate(large.float(), cos, sin)
            pool.channels[index] = chosen
            pool.bias[index, : len(cos)] = moved.gather(2, chosen.expand(len(cos), -1, -1))

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Hidden states [tokens, hidden] of one flat row of tokens, on a CPU."""
        rope = tuple(table.index_select(0, positions)[:, None] for table in self.rope)
        hidden = embedding(ids, self.backbone.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            hidden = self._attend(hidden, layer, index, rope, plan)
            hidden = self._think(hidden, layer)
        return self._norm(hidden, self.backbone.norm.weight)

    def _attend(
        self,
        hidden: torch.Tensor,
        layer: LayerParts,
        index: int,
        rope: tuple[torch.Tensor, ...],
        plan: Plan,
    ) -> torch.Tensor:
        together = linear(
            self._norm(hidden, layer.before_attention), layer.qkv, layer.qkv_bias
        ).view(len(hidden), -1, self.size)
        query_key, value = together[:, : -self.kv_heads], together[:, -self.kv_heads :]
        if layer.norms is not None:
            query, key = query_key[:, : self.heads], query_key[:, self.heads :]
            query_key = torch.cat(
                [self._norm(query, layer.norms[0]), self._norm(key, layer.norms[1])], 1
            )
        query_key = rotate(query_key, *rope)
        found = plan.attend(
            index, query_key[:, : self.heads], query_key[:, self.heads :], value, self.scaling
        )
        return _add_product(hidden, found.reshape(len(hidden), -1), layer.out, layer.out_bias)

    def _think(self, hidden: torch.Tensor, layer: LayerParts) -> torch.Tensor:
        gate, up = linear(
            self._norm(hidden, layer.before_mlp), layer.gate_up, layer.gate_up_bias
        ).chunk(2, -1)
        return _add_product(hidden, silu(gate).mul_(up), layer.down, layer.down_bias)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if hidden.dtype != torch.float32:
            return rms_norm(hidden, weight.shape, weight, self.epsilon)  # it computes in float32
        # On a CPU rms_norm is nine small operations; these are five.
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scale = torch.addcmul(self.floor, length, length, value=1 / len(weight)).rsqrt_()
        return (hidden * scale).mul_(weight)

    def on_device(
        self, ids: torch.Tensor, positions: torch.Tensor, places: TokenSlots
    ) -> torch.Tensor:
        """The same for the device loop, with one kernel between two matrix products.

        The last layer stores the keys of all rows; what follows is computed for the wanted ones.
        """
        ops = self.ops
        assert ops is not None, "the device loop brings its operations"
        hidden = embedding(ids, self.backbone.embed_tokens.weight)
        norms = [layer.before_attention for layer in self.layers] + [self.backbone.norm.weight]
        normed: torch.Tensor = ops.rms_norm(hidden, norms[0], self.epsilon)
        for index, layer in enumerate(self.layers):
            together = ops.project(normed, layer.qkv, self.biases[index])
            found = places.mix(
                index,
                together.view(len(ids), -1, self.size),
                self.heads,
                self.rope,
                layer.norms,
                self.epsilon,
                self.scaling,
            ).reshape(len(ids), -1)
            if layer is self.layers[-1] and places.wanted is not None:
                hidden, found = (rows.index_select(0, places.wanted) for rows in (hidden, found))
            normed = ops.add_project_norm(
                hidden, found, layer.out, layer.out_bias, layer.before_mlp, self.epsilon
            )
            wide = ops.project_gated(normed, layer.gate_up, layer.gate_up_bias)
            normed = ops.add_project_norm(
                hidden, wide, layer.down, layer.down_bias, norms[index + 1], self.epsilon
            )
        return normed


def plain_decoder(
    model: torch.nn.Module, context: int, ops: ModuleType | None = None
) -> PlainDecoder | None:
    """The fast forward pass for this model, or None if the model is not plain."""
    return PlainDecoder(cast("Any", model).get_decoder(), context, ops) if is_plain(model) else None


def _rope_table(backbone: Any, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of all positions; the first half of the sines is negated for `rotate`."""
    weight = backbone.embed_tokens.weight
    cos, sin = backbone.rotary_emb(weight, torch.arange(context, device=weight.device)[None])
    sign = torch.ones_like(sin[0, 0])
    sign[: len(sign) // 2] = -1
    return cos[0], sin[0] * sign


def _fuse(parts: LayerParts) -> LayerParts:
    """The same parts with weights of the same input as one tensor."""
    return parts._replace(
        qkv=place_side_by_side(parts.qkv),
        qkv_bias=None if parts.qkv_bias is None else place_side_by_side(parts.qkv_bias),
        gate_up=place_side_by_side(parts.gate_up),
        gate_up_bias=None if parts.gate_up_bias is None else place_side_by_side(parts.gate_up_bias),
    )


def _stay(fused: LayerParts, parts: LayerParts) -> bool:
    """Whether all weights of a layer still have the addresses of the fused ones."""
    if not (are_neighbours(parts.qkv) and are_neighbours(parts.gate_up)):
        return False
    now = parts._replace(qkv=parts.qkv[0], gate_up=parts.gate_up[0])
    return all(
        getattr(fused, name).data_ptr() == getattr(now, name).data_ptr()
        for name in ("qkv", "gate_up", "before_attention", "out", "before_mlp", "down")
    )


def _add_product(
    hidden: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    hidden.addmm_(rows, weight.t())  # in place: `addmm` would first copy `hidden`
    return hidden if bias is None else hidden.add_(bias)
