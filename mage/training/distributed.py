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
_TIMEOUT = timedelta(hours=2)


def launch_ranks(size: int, task: Callable[..., Item], *arguments: Any, **for_main: Any) -> Item:
    """Run `task(ranks, *arguments)` in `size` processes and return the result of rank 0.

    Rank 0 is this process. Keyword arguments reach rank 0 only, so they need not be picklable.
    """
    if size == 1:
        return task(Ranks(), *arguments, **for_main)
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{Path(folder) / 'rendezvous'}"
        context = multiprocessing.get_context("spawn")
        others = [
            context.Process(
                target=_run_rank, args=(rank, size, address, task, arguments), daemon=True
            )
            for rank in range(1, size)
        ]
        for other in others:
            other.start()
        try:
            _join_group(0, size, address)
            return task(Ranks(0, size), *arguments, **for_main)
        finally:
            _end_ranks(others)


def _run_rank(
    rank: int, size: int, address: str, task: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """The process of a rank above 0.

    Rank 0 handles Ctrl-C. When rank 0 is gone, the next collective call fails and this ends too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _join_group(rank, size, address)
    with suppress(RuntimeError, ConnectionError):
        task(Ranks(rank, size), *arguments)


def _join_group(rank: int, size: int, address: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=size, timeout=_TIMEOUT
    )


def _end_ranks(others: Sequence[Any]) -> None:
    with suppress(RuntimeError):
        dist.destroy_process_group()
    for other in others:
        other.join(timeout=5)
        if other.is_alive():
            other.kill()
