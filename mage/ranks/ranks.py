"""Ranks: several processes that train one model.

Every rank holds the same weights and makes the same optimizer step, so the ranks stay equal bit for
bit. Rank 0 alone writes files and reports. All messages besides gradients are gathers of objects,
in the same order on every rank. Instead of its item a rank may send that it wants to stop or that
it has failed: then all ranks leave their work at the same gather.
"""

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from mage.config.errors import DeviceError, UserError
from mage.ranks.messages import decode, encode

Item = TypeVar("Item")
_BUCKET = 2**23  # values that travel in one message: 32 MB in float32
_SHORT, _LONG = 5e-5, 2e-3  # seconds between two looks at a message that has not arrived
_EXPLAIN = 30.0  # seconds to find out which rank is lost; a busy machine needs some


class RanksStopped(Exception):
    """All ranks have agreed to stop."""


class RankFailed(UserError):
    """A rank has met an error; the message names the rank and its host."""


class RankLost(DeviceError):
    """A rank has ended without a message, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """Sent instead of an item: this rank wants to stop."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Sent instead of an item: this rank has failed."""

    rank: int
    host: str
    text: str


class Ranks:
    """The number of this process and the number of processes. One process needs no messages.

    `check` is called while this rank waits for a message, `after_gather` after every gather; both
    may raise.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, has_group: bool | None = None) -> None:
        self.rank, self.size = rank, size
        # A process group exists, so tensors can travel. torchrun makes one for one rank too.
        self.has_group = size > 1 if has_group is None else has_group
        self.waiting = False  # inside a gather, which a signal must not interrupt
        self.whole = False  # inside work of all ranks that a signal must not divide
        self.failed = False  # all ranks know of an error, which rank 0 reports
        self.deals_members = False  # members, not groups, are dealt: batches span all ranks
        self.logs: Path | None = None  # the run folder, where ranks write their logs
        self.store: Any = None  # the store through which the ranks have met
        self.check: Callable[[], None] = lambda: None
        self.after_gather: Callable[[], None] = lambda: None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def split(self, items: Sequence[Item]) -> list[Item]:
        """This rank's share of the items: every size-th one."""
        return list(items[self.rank :: self.size])

    # -- objects

    def gather(self, item: Item) -> list[Item]:
        """The items of all ranks, in the order of the ranks."""
        if self.size == 1:
            return [item]
        found = self._exchange(item)
        for one in found:
            if isinstance(one, _Failure):
                self.failed = True
                raise RankFailed(f"rank {one.rank} on {one.host}: {one.text}")
        if any(isinstance(one, _Stop) for one in found):
            raise RanksStopped
        self.waiting = False
        self.after_gather()
        return found

    def broadcast(self, item: Item) -> Item:
        """The item of rank 0, on all ranks."""
        return self.gather(item if self.is_main else None)[0]  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.gather(None)

    def total(self, number: float) -> float:
        """The sum of one number over all ranks."""
        return sum(self.gather(number))

    def count(self, name: str) -> int:
        """How often `count(name)` was called before, on all ranks together."""
        try:
            return int(self.store.add(f"count/{name}", 1)) - 1
        except RuntimeError as error:  # the store ends with the process that holds it
            self._explain(error)

    def send_stop(self) -> None:
        """Tell all ranks to stop, at their next gather."""
        if self.size > 1:
            self.gather(_Stop())
        raise RanksStopped

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block that fails on all ranks if it fails on one; it ends with a barrier.

        The rank of the error raises it as it is; the others raise `RankFailed`.
        """
        try:
            yield
        except (RankFailed, RankLost, RanksStopped):
            raise
        except (ValueError, OSError, RuntimeError) as error:
            if self.size > 1:
                self._exchange(_Failure(self.rank, socket.gethostname(), str(error)))
                self.failed = True
            raise
        self.barrier()

    def _exchange(self, item: Any) -> list[Any]:
        data = torch.frombuffer(bytearray(encode(item)), dtype=torch.uint8)
        self.waiting = True  # to the end: a rank that leaves a section must not be interrupted
        sizes = [int(size) for size in self._all_gather(torch.tensor([len(data)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        parts = self._all_gather(padded)
        return [
            decode(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)
        ]

    def _all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._finish(dist.all_gather(found, own, async_op=True))
        return found

    def _finish(self, work: Any) -> None:
        """Wait for a message in Python, so that signals are handled meanwhile."""
        pause = _SHORT
        while not work.is_completed():
            self.check()
            time.sleep(pause)
            pause = min(_LONG, 2 * pause)
        try:
            work.wait()
        except RuntimeError as error:
            self._explain(error)

    def _explain(self, error: RuntimeError) -> NoReturn:
        """A message failed: wait until the lost rank is known, for a while."""
        end = time.monotonic() + _EXPLAIN
        while time.monotonic() < end:
            self.check()
            time.sleep(_LONG)
        raise RankLost(
            f"the connection to another rank is lost: {str(error).splitlines()[0]}"
        ) from error

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """Work with messages other than gathers: a stop of one rank waits for its end."""
        self.whole = True
        try:
            yield
        finally:
            self.whole = False

    # -- tensors

    def send_tensor(self, tensor: torch.Tensor, owner: int) -> None:
        """Overwrite a contiguous tensor with that of the rank `owner`."""
        self._wait_for(dist.broadcast(tensor, src=owner, async_op=True), tensor)

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Replace the gradient of each parameter by its sum over the ranks; None counts as 0."""
        for bucket in make_buckets(parameters):
            gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in bucket]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self._wait_for(dist.all_reduce(flat, async_op=True), flat)
            for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                one.grad = part.view_as(one)

    def _wait_for(self, work: Any, tensor: torch.Tensor) -> None:
        """Wait until a collective call on this tensor is done."""
        if tensor.device.type == "cpu":
            self._finish(work)
        else:
            work.wait()


def make_buckets(parameters: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Parameters in order, in lists of about `_BUCKET` values of one dtype.

    A small message costs as much as a large one, and one message for all parameters would need a
    second copy of all of them.
    """
    bucket: list[torch.Tensor] = []
    for one in parameters:
        full = sum(held.numel() for held in bucket) + one.numel() > _BUCKET
        if bucket and (full or one.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(one)
    if bucket:
        yield bucket


def interleave(parts: Sequence[Sequence[Item]]) -> list[Item]:
    """The items in their original order: the inverse of `Ranks.split`.

    >>> interleave([[0, 2, 4], [1, 3]])
    [0, 1, 2, 3, 4]
    """
    longest = max(map(len, parts))
    return [part[k] for k in range(longest) for part in parts if k < len(part)]
