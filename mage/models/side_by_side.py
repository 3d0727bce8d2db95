"""Several weights with the same input as ONE tensor, so that they take one product.

The engine moves the weights of a model into such tensors (`place_side_by_side`); the parameters
become views of them. The learner finds them there (`as_one`) and needs no copy.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def place_side_by_side(parts: Sequence[torch.nn.Parameter]) -> Tensor:
    """One tensor that holds these parameters in order; the parameters become views of it."""
    if not are_neighbours(parts):
        whole = torch.cat([part.detach() for part in parts])
        for part, rows in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            part.data = rows
    return as_one(parts)


def as_one(parts: Sequence[Any]) -> Tensor:
    """The tensor that neighbours are views of, without gradient."""
    assert are_neighbours(parts), "weights that are not neighbours are no single tensor"
    first = parts[0].detach()
    height = sum(len(part) for part in parts)
    return first.as_strided((height, *first.shape[1:]), first.stride(), first.storage_offset())


def are_neighbours(parts: Sequence[Any]) -> bool:
    """Whether these tensors follow each other in one piece of memory."""
    same = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    return same and all(
        above.data_ptr() + above.numel() * above.element_size() == below.data_ptr()
        for above, below in pairwise(parts)
    )
