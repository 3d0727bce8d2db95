"""The decoder of a plain Llama or Qwen3 as a few large operations: what a step costs on small models is the number of calls.

Weights that read the same input are kept side by side in copies, so that queries, keys and values are one product, and gate and up
another. The copies are made anew whenever a weight has changed. Large models, for which calls cost little and copies much memory,
and models with anything special (adapters, hooks, scaled rope) are refused: the engine then runs transformers' own modules.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu
from transformers import LlamaForCausalLM, Qwen3ForCausalLM

from mage.engines.attention import Plan, attend

PLAIN = (LlamaForCausalLM, Qwen3ForCausalLM)
MOST = 100_000_000  # parameters of a small model


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer, [out, in]; a norm over heads is there in Qwen3 only."""

    before_attention: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    before_mlp: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


class PlainDecoder:
    """From token ids to the last hidden states, as `backbone` would compute them."""

    def __init__(self, backbone: Any, context: int) -> None:
        config = backbone.config
        self.backbone, self.epsilon = backbone, config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size, self.scaling = backbone.layers[0].self_attn.head_dim, backbone.layers[0].self_attn.scaling
        self.floor = torch.tensor(self.epsilon, device=backbone.embed_tokens.weight.device)
        self.parameters = list(backbone.parameters())
        self.cos, self.sin = _rope_table(backbone, context)
        self.fuse()

    def fuse(self) -> None:
        """Copy the weights as they are now."""
        self.state = self._versions()
        self.layers = [_fuse_layer(layer) for layer in self.backbone.layers]

    def _versions(self) -> int:
        """Grows with every change in place."""
        return sum(parameter._version for parameter in self.parameters)

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Hidden states [tokens, hidden] of one flat row of tokens."""
        if self._versions() != self.state:
            self.fuse()
        rope = self.cos.index_select(0, positions)[:, None], self.sin.index_select(0, positions)[:, None]
        hidden = embedding(ids, self.backbone.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            hidden = self._attend(hidden, layer, index, rope, plan)
            hidden = self._think(hidden, layer)
        return self._norm(hidden, self.backbone.norm.weight)

    def _attend(self, hidden: torch.Tensor, layer: Layer, index: int, rope: tuple[torch.Tensor, torch.Tensor], plan: Plan) -> torch.Tensor:
        together = linear(self._norm(hidden, layer.before_attention), layer.qkv, layer.qkv_bias).view(len(hidden), -1, self.size)
        query_key, value = together[:, : -self.kv_heads], together[:, -self.kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = query_key[:, : self.heads], query_key[:, self.heads :]
            query_key = torch.cat([self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)], 1)
        query_key = _rotate(query_key, *rope)
        found = attend(plan, index, query_key[:, : self.heads], query_key[:, self.heads :], value, self.scaling)
        return _add_product(hidden, found.reshape(len(hidden), -1), layer.out, layer.out_bias)

    def _think(self, hidden: torch.Tensor, layer: Layer) -> torch.Tensor:
        gate, up = linear(self._norm(hidden, layer.before_mlp), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        return _add_product(hidden, silu(gate).mul_(up), layer.down, layer.down_bias)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if hidden.dtype != torch.float32:
            return rms_norm(hidden, weight.shape, weight, self.epsilon)  # it computes in float32
        # On the processor rms_norm is nine small operations; these are five.
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scale = torch.addcmul(self.floor, length, length, value=1 / len(weight)).rsqrt_()
        return (hidden * scale).mul_(weight)


def plain_decoder(model: torch.nn.Module, context: int) -> PlainDecoder | None:
    """The fast forward for this model, or None if it is not exactly one of the plain kind."""
    return PlainDecoder(model.get_decoder(), context) if isinstance(model, PLAIN) and _is_plain(model) else None


def _is_plain(model: LlamaForCausalLM | Qwen3ForCausalLM) -> bool:
    config = model.config
    return (
        type(model) in PLAIN
        and sum(parameter.numel() for parameter in model.parameters()) <= MOST
        and config.hidden_act == "silu"
        and config.rope_parameters.get("rope_type", "default") == "default"
        and all(_has_no_additions(module) for module in model.modules())
        and not any(parameter.is_inference() for parameter in model.parameters())  # such weights do not count their changes
        and len({(parameter.device, parameter.dtype) for parameter in model.parameters()}) == 1
    )


def _has_no_additions(module: torch.nn.Module) -> bool:
    """No hooks, and no module that is neither torch's own nor of these two models, as adapters and quantised layers are."""
    origin = type(module).__module__
    known = origin.startswith(("torch.nn.modules", "transformers.models.llama", "transformers.models.qwen3.", "transformers.activations"))
    return known and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _rope_table(backbone: Any, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of all positions; the first half of the sines is negated, as `_rotate` needs them."""
    weight = backbone.embed_tokens.weight
    cos, sin = backbone.rotary_emb(weight, torch.arange(context, device=weight.device)[None])
    sign = torch.ones_like(sin[0, 0])
    sign[: len(sign) // 2] = -1
    return cos[0], sin[0] * sign


def _rotate(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    # Rolled by half, (a, b) becomes (b, a): with the signed sines that is transformers' rotate_half.
    return torch.addcmul(rows * cos, rows.roll(rows.shape[-1] // 2, -1), sin)


def _fuse_layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, gate_up = (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)
    return Layer(
        before_attention=layer.input_layernorm.weight,
        qkv=_side_by_side([part.weight for part in qkv]),
        qkv_bias=None if qkv[0].bias is None else _side_by_side([part.bias for part in qkv]),
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        before_mlp=layer.post_attention_layernorm.weight,
        gate_up=_side_by_side([part.weight for part in gate_up]),
        gate_up_bias=None if gate_up[0].bias is None else _side_by_side([part.bias for part in gate_up]),
        down=mlp.down_proj.weight,
        down_bias=mlp.down_proj.bias,
    )


def _side_by_side(weights: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([weight.detach() for weight in weights])


def _add_product(hidden: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    found = torch.addmm(hidden, rows, weight.t())
    return found if bias is None else found.add_(bias)
