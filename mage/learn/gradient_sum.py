"""Sums of gradients over the ranks, started while the backward pass still runs.

The backward pass computes the gradients of the last layers first. In the last micro-batch of a step
every bucket of gradients is sent as soon as all of its gradients are complete. All ranks send the
buckets in the same order, the last one first; a rank without work sends them at the end. The sums
do not depend on when a bucket is sent.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mage.ranks.ranks import Ranks, make_buckets


class GradientSum:
    """Replaces the gradients of the masters by their sums over all ranks, once per step."""

    def __init__(self, ranks: Ranks, masters: Sequence[Tensor]) -> None:
        self.ranks = ranks
        self.buckets = list(make_buckets(masters))
        self._bucket_of = {
            id(one): number for number, bucket in enumerate(self.buckets) for one in bucket
        }
        self.early = 0  # buckets of the last step that were sent before `finish`
        self._reset()

    def _reset(self) -> None:
        self._missing = [{id(one) for one in bucket} for bucket in self.buckets]
        self._next = len(self.buckets) - 1
        self._sent: list[tuple[Any, Tensor]] = []

    def ready(self, master: Tensor) -> None:
        """The gradient of a master is complete: send all buckets that can be sent now."""
        self._missing[self._bucket_of[id(master)]].discard(id(master))
        while self._next >= 0 and not self._missing[self._next]:
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        """Send the next bucket. Its gradients become parts of the tensor that is summed."""
        bucket = self.buckets[self._next]
        self._next -= 1
        flat = torch.cat([_gradient(one).flatten() for one in bucket])
        for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
            one.grad = part.view_as(one)
        self._sent.append((dist.all_reduce(flat, async_op=True), flat))

    def finish(self) -> None:
        """Send the other buckets and wait for all sums. All ranks must call this."""
        self.early = len(self._sent)
        while self._next >= 0:
            self._send()
        for work, flat in self._sent:
            self.ranks.wait_for(work, flat)
        self._reset()


def _gradient(one: Tensor) -> Tensor:
    return torch.zeros_like(one) if one.grad is None else one.grad
