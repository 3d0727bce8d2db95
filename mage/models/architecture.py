"""The parameters of a plain Llama, Qwen2 or Qwen3, for code that runs without its modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mage.config.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel as PreTrainedModel
else:  # importing transformers takes 4 s, and an agent that only plays may not need it
    PreTrainedModel = torch.nn.Module

_PLAIN = {
    "mage.models.plain": "PlainModel",
    "transformers.models.llama.modeling_llama": "LlamaForCausalLM",
    "transformers.models.qwen2.modeling_qwen2": "Qwen2ForCausalLM",
    "transformers.models.qwen3.modeling_qwen3": "Qwen3ForCausalLM",
}
_KNOWN = (
    "mage.models.plain",
    "torch.nn.modules",
    "transformers.models.llama.",
    "transformers.models.qwen2.",
    "transformers.models.qwen3.",
    "transformers.activations",
)


class LayerParts(NamedTuple):
    """The parameters of one layer, [out, in].

    `qkv` and `gate_up` have one element where they are one tensor (`side_by_side.py`). Biases and
    the norms of query and key heads are None if the model has none.
    """

    before_attention: Any
    qkv: tuple[Any, ...]
    qkv_bias: tuple[Any, Any, Any] | None
    norms: tuple[Any, Any] | None
    out: Any
    out_bias: Any | None
    before_mlp: Any
    gate_up: tuple[Any, ...]
    gate_up_bias: tuple[Any, Any] | None
    down: Any
    down_bias: Any | None


def parts_of(layer: Any) -> LayerParts:
    """The parameters of a transformers layer."""
    attention, mlp = layer.self_attn, layer.mlp
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    gate, up, has_norms = mlp.gate_proj, mlp.up_proj, hasattr(attention, "q_norm")
    return LayerParts(
        before_attention=layer.input_layernorm.weight,
        qkv=(query.weight, key.weight, value.weight),
        qkv_bias=None if query.bias is None else (query.bias, key.bias, value.bias),
        norms=(attention.q_norm.weight, attention.k_norm.weight) if has_norms else None,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        before_mlp=layer.post_attention_layernorm.weight,
        gate_up=(gate.weight, up.weight),
        gate_up_bias=None if gate.bias is None else (gate.bias, up.bias),
        down=mlp.down_proj.weight,
        down_bias=mlp.down_proj.bias,
    )


def is_known(model: Any) -> bool:
    """Whether this is a Llama, Qwen2 or Qwen3, also with adapters."""
    return _PLAIN.get(type(model).__module__) == type(model).__name__


@contextmanager
def trying(model: Any, user: str, advice: str = "use another model") -> Iterator[None]:
    """One message if an architecture that is not known makes `user` fail in any way."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # an encoder, for example, can fail at any operation
        if is_known(model):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{type(model).__name__} does not work with {user} "
            f"({type(error).__name__}: {reason:.200}): {advice}"
        ) from error


def fixed_length(config: Any) -> int | None:
    """Tokens up to which positions do not depend on the length of the text; None: no limit.

    Beyond it `dynamic` and `longrope` change all keys, and rows of one batch have one length.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type")
    if kind == "dynamic":
        return int(config.max_position_embeddings)
    return int(rope["original_max_position_embeddings"]) if kind == "longrope" else None


def is_plain(model: Any) -> bool:
    """Whether this is an unmodified model of these kinds, with one device and dtype."""
    if not is_known(model):
        return False
    config = model.config
    return (
        config.hidden_act == "silu"
        and config.rope_parameters.get("rope_type", "default") == "default"
        and all(_has_no_additions(module) for module in model.modules())
        and len({(parameter.device, parameter.dtype) for parameter in model.parameters()}) == 1
    )


def _has_no_additions(module: Any) -> bool:
    """No hooks, and only modules of torch and of these models (no adapters, for example)."""
    return type(module).__module__.startswith(_KNOWN) and not (
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    )
