"""Ranks: several processes that train one model.

Each rank plays and learns from its share of the groups, and gradients are summed. Every rank holds
the same weights and the same optimizer and makes the same step, so the ranks stay equal bit for
bit. Rank 0 alone writes files and reports. On a CPU a small model runs faster as two processes with
one thread each than as one process with two threads.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")


class Ranks:
    """The number of this process and the number of processes. One process needs no messages."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def split(self, items: Sequence[Item]) -> list[Item]:
        """This rank's share of the items: every size-th one."""
        return list(items[self.rank :: self.size])

    def sum_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Replace every gradient by its sum over all ranks.

        All gradients travel in one message, because a small message costs as much as a large one.
        """
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
        """The sum of one number over all ranks."""
        return sum(self.gather(number))

    def gather(self, item: Item) -> list[Item]:
        """The items of all ranks, in the order of the ranks."""
        if self.size == 1:
            return [item]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, item)
        return found

    def broadcast(self, item: Item) -> Item:
        """The item of rank 0, on all ranks."""
        if self.size == 1:
            return item
        held = [item]
        dist.broadcast_object_list(held, src=0)
        return held[0]


def interleave(parts: Sequence[Sequence[Item]]) -> list[Item]:
    """The items in their original order: the inverse of `Ranks.split`.

    >>> interleave([[0, 2, 4], [1, 3]])
    [0, 1, 2, 3, 4]
    """
    longest = max(map(len, parts))
    return [part[k] for k in range(longest) for part in parts if k < len(part)]
