"""Several processes that train one model: each plays and learns from its share of the groups, gradients are summed.

On a CPU a small model runs faster as two processes with one thread each than as one process with two threads. Every member
holds the same weights and the same optimizer and makes the same step, so they stay equal bit for bit; member 0 alone writes
files and talks. A ranks of one does nothing here.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")


class Ranks:
    """Who works beside whom. `rank` 0 is_main."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def split(self, items: Sequence[Item]) -> list[Item]:
        """This member's part of the work: every size-th item."""
        return list(items[self.rank :: self.size])

    def sum_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Replace every gradient by the sum over all members; in one message, because small messages cost as much as large ones."""
        if self.size == 1:
            return
        held = list(parameters)
        flat = torch.cat(
            [
                torch.zeros_like(one).flatten() if one.grad is None else one.grad.flatten()
                for one in held
            ]
        )
        dist.all_reduce(flat)
        for one, part in zip(held, flat.split([one.numel() for one in held]), strict=True):
            one.grad = part.view_as(one)

    def total(self, number: float) -> float:
        """The sum of one number over all members."""
        return sum(self.gather(number))

    def gather(self, item: Item) -> list[Item]:
        """Every member's item, in the order of their ranks."""
        if self.size == 1:
            return [item]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, item)
        return found

    def broadcast(self, item: Item) -> Item:
        """The leader's item, for all."""
        if self.size == 1:
            return item
        held = [item]
        dist.broadcast_object_list(held, src=0)
        return held[0]


def interleave(parts: Sequence[Sequence[Item]]) -> list[Item]:
    """Undo `Ranks.split`: items dealt out in turn, back in their first order.

    >>> interleave([[0, 2, 4], [1, 3]])
    [0, 1, 2, 3, 4]
    """
    longest = max(map(len, parts))
    return [part[k] for k in range(longest) for part in parts if k < len(part)]
