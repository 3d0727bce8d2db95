"""Start the processes (ranks) of a run."""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from mage.learn.ranks import Ranks

Item = TypeVar("Item")
_PATIENCE = timedelta(hours=2)


def launch_ranks(size: int, task: Callable[..., Item], *arguments: Any, **for_leader: Any) -> Item:
    """Run `task(ranks, *arguments)` in `size` processes, this one as the leader; returns the leader's result.

    What is given by name reaches the leader alone: it need not survive the way into another process.
    """
    if size == 1:
        return task(Ranks(), *arguments, **for_leader)
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        context = multiprocessing.get_context("spawn")
        others = [
            context.Process(
                target=_assist, args=(rank, size, meeting, task, arguments), daemon=True
            )
            for rank in range(1, size)
        ]
        for other in others:
            other.start()
        try:
            _meet(0, size, meeting)
            return task(Ranks(0, size), *arguments, **for_leader)
        finally:
            _part(others)


def _assist(
    rank: int, size: int, meeting: str, task: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """A member's life. Ctrl-C is the leader's business; when the leader is gone, its messages fail and so this ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _meet(rank, size, meeting)
    with suppress(RuntimeError, ConnectionError):
        task(Ranks(rank, size), *arguments)


def _meet(rank: int, size: int, meeting: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=size, timeout=_PATIENCE
    )


def _part(others: Sequence[Any]) -> None:
    with suppress(RuntimeError):
        dist.destroy_process_group()
    for other in others:
        other.join(timeout=5)
        if other.is_alive():
            other.kill()
