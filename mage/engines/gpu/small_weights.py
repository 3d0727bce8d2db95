"""Weights in 8 bits for decode steps (`engines.weights = "int8"`).

A decode step reads every weight once, so its time is the number of bytes. The linear layers have a
second copy here: integers from -127 to 127 and one scale for every 128 inputs of an output. Steps
of at most 128 tokens read this copy; prefill and learning read the model's own weights.
"""

from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 128  # inputs that share a scale
MOST = 128  # tokens of a step that reads the copy
_LARGEST = 127


class SmallWeight(NamedTuple):
    """A weight [words, depth] as int8 numbers and scales [words, depth / GROUP].

    Of a group, inputs i and i + GROUP / 2 are neighbours: the bytes of one 16-bit word, which the
    kernels read and divide into two products.
    """

    numbers: Tensor
    scales: Tensor


def make_small(weight: Tensor) -> SmallWeight | None:
    """Room for a copy of `weight`; None if its shape has no whole groups."""
    words, depth = weight.shape
    if words % 64 or depth % GROUP:
        return None
    numbers = torch.empty_like(weight, dtype=torch.int8)
    return SmallWeight(numbers, weight.new_empty(words, depth // GROUP, dtype=torch.bfloat16))


@torch.no_grad()
def round_weight(weight: Tensor, small: SmallWeight) -> None:
    """Write `weight` into its copy, in place: graphs keep the addresses."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.bfloat16).tiny)
    small.scales.copy_((largest / _LARGEST).squeeze(-1))
    whole = (groups / small.scales.float()[..., None]).round_().clamp_(-_LARGEST, _LARGEST)
    small.numbers.copy_(whole.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(1))


def widen(small: SmallWeight, dtype: torch.dtype) -> Tensor:
    """The numbers that the copy stands for."""
    pairs = small.numbers.float().unflatten(1, (-1, GROUP // 2, 2))
    groups = pairs.transpose(-1, -2).flatten(-2)
    return (groups * small.scales.float()[..., None]).flatten(1).to(dtype)
