"""Linear layers of LoRA whose gradient is computed for A and B directly.

The module holds W = W0 + scale * B A, so the forward pass is one product. The gradient of A is
scale * (dY B)^T X, that of B is scale * dY^T (X A^T). The gradient of W is not computed. This saves
a third of the operations of an update and the memory of that gradient.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from mage.models.architecture import LayerParts


class Factors(NamedTuple):
    """A [rank, in] and B [out, rank] of one weight."""

    down: Tensor
    up: Tensor
    scale: float


class LayerFactors(NamedTuple):
    """The factors of the linear layers of one transformer layer, in the order of `LayerParts`."""

    qkv: tuple[Factors, ...]
    out: tuple[Factors, ...]
    gate_up: tuple[Factors, ...]
    down: tuple[Factors, ...]


def factors_of(own: LayerParts, factors: Mapping[Tensor, Factors]) -> LayerFactors:
    """The factors of a layer's weights."""
    groups = (own.qkv, (own.out,), own.gate_up, (own.down,))
    return LayerFactors(*(tuple(factors[weight] for weight in group) for group in groups))


def project(
    hidden: Tensor,
    weights: Sequence[Tensor],
    bias: Tensor | None,
    factors: Sequence[Factors] | None,
) -> Tensor:
    """Several linear layers of the same input as one product, side by side in the output.

    With `factors` the gradient goes to A and B, and the weights get none.
    """
    weight = weights[0] if len(weights) == 1 else torch.cat(tuple(weights))
    if factors is None:
        return linear(hidden, weight, bias)
    pairs = [matrix for one in factors for matrix in (one.down, one.up)]
    found: Tensor = _LowRank.apply(  # type: ignore[no-untyped-call]
        hidden, weight.detach(), factors[0].scale, *pairs
    )
    return found if bias is None else found + bias


class _LowRank(torch.autograd.Function):
    """hidden @ weight^T; the weight stays fixed, and its factors get the gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, scale: float, *pairs: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight, *pairs)
        ctx.scale = scale
        return linear(hidden, weight)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        hidden, weight, *pairs = ctx.saved_tensors
        downs, ups = pairs[::2], pairs[1::2]
        found: list[Tensor] = []
        for down, up, own in zip(
            downs, ups, slope.split([up.shape[0] for up in ups], 1), strict=True
        ):
            below = (own @ up.to(own.dtype)).mT @ hidden
            above = own.mT @ (hidden @ down.to(hidden.dtype).mT)
            found += [ctx.scale * below.to(down.dtype), ctx.scale * above.to(up.dtype)]
        return slope @ weight, None, None, *found
