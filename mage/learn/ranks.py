"""Several processes that train one model: each plays and learns from its share of the groups, gradients are summed.

On a CPU a small model runs faster as two processes with one thread each than as one process with two threads. Every member
holds the same weights and the same optimizer and makes the same step, so they stay equal bit for bit; member 0 alone writes
files and talks. A team of one does nothing here.
"""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")
_PATIENCE = timedelta(hours=2)


class Team:
    """Who works beside whom. `rank` 0 leads."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This member's part of the work: every size-th item."""
        return list(items[self.rank :: self.size])

    def sum_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Replace every gradient by the sum over all members; in one message, because small messages cost as much as large ones."""
        if self.size == 1:
            return
        held = list(parameters)
        flat = torch.cat([torch.zeros_like(one).flatten() if one.grad is None else one.grad.flatten() for one in held])
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

    def tell(self, item: Item) -> Item:
        """The leader's item, for all."""
        if self.size == 1:
            return item
        held = [item]
        dist.broadcast_object_list(held, src=0)
        return held[0]


def weave(parts: Sequence[Sequence[Item]]) -> list[Item]:
    """Undo `share`: items dealt out in turn, back in their first order.

    >>> weave([[0, 2, 4], [1, 3]])
    [0, 1, 2, 3, 4]
    """
    longest = max(map(len, parts))
    return [part[k] for k in range(longest) for part in parts if k < len(part)]


def work_together(size: int, task: Callable[..., Item], *arguments: Any, **for_leader: Any) -> Item:
    """Run `task(team, *arguments)` in `size` processes, this one as the leader; returns the leader's result.

    What is given by name reaches the leader alone: it need not survive the way into another process.
    """
    if size == 1:
        return task(Team(), *arguments, **for_leader)
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        context = multiprocessing.get_context("spawn")
        others = [context.Process(target=_assist, args=(rank, size, meeting, task, arguments), daemon=True) for rank in range(1, size)]
        for other in others:
            other.start()
        try:
            _meet(0, size, meeting)
            return task(Team(0, size), *arguments, **for_leader)
        finally:
            _part(others)


def _assist(rank: int, size: int, meeting: str, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """A member's life. Ctrl-C is the leader's business; when the leader is gone, its messages fail and so this ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _meet(rank, size, meeting)
    with suppress(RuntimeError, ConnectionError):
        task(Team(rank, size), *arguments)


def _meet(rank: int, size: int, meeting: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=_PATIENCE)


def _part(others: Sequence[Any]) -> None:
    with suppress(RuntimeError):
        dist.destroy_process_group()
    for other in others:
        other.join(timeout=5)
        if other.is_alive():
            other.kill()
