"""Start the ranks of a run as processes on this machine (`run.workers`)."""

import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from mage.config.errors import EXIT_USAGE, ConfigError
from mage.config.recipe import Recipe
from mage.ranks import processes as child_processes
from mage.ranks.processes import SIGNALS, blocked_signals, end_with_parent
from mage.ranks.rank_log import log_path, write_rank_log
from mage.ranks.ranks import RankFailed, RankLost, Ranks
from mage.ranks.stop import Stopped, StopRequest
from mage.ranks.watch import Peer, Watch, describe_loss, find_loss

Item = TypeVar("Item")
TIMEOUT = timedelta(hours=2)  # for one message: ranks may play for long; lost ranks are watched
_TICK = 0.05  # seconds between two looks at processes that start
_END = 5.0  # seconds for a rank to end after its work


def launch_ranks(
    size: int,
    task: Callable[..., Item],
    *arguments: Any,
    folder: Path,
    stop: StopRequest,
    **for_main: Any,
) -> Item:
    """Run `task(ranks, *arguments)` in `size` processes and return the result of rank 0.

    Rank 0 is this process. Keyword arguments reach rank 0 only, so they need not be picklable.
    Logs of the other ranks are written below `folder`. A stop signal is passed on to all ranks.
    """
    if size == 1:
        return task(Ranks(), *arguments, stop=stop, **for_main)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # no other machine can reach the ranks
    # The ranks meet in a file that only this user can read, so no other user can join them.
    with tempfile.TemporaryDirectory(prefix="mage-ranks-") as place:
        store = dist.FileStore(str(Path(place, "store")), size)
        others = _start(size, place, folder, task, arguments)
        grace = 0.0
        try:
            stop.pass_on_with(lambda: _pass_on(others))
            _await_ranks(store, others, folder, stop)
            with join_group(store, 0, size, folder) as ranks:
                grace = _END
                return task(ranks, *arguments, stop=stop, **for_main)
        finally:
            stop.pass_on_with(lambda: None)
            _end(others, grace)


@contextmanager
def join_group(
    store: Any, rank: int, size: int, folder: Path | None = None, backend: str = "gloo"
) -> Iterator[Ranks]:
    """Join the process group and watch the other ranks."""
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    ranks = Ranks(rank, size, has_group=True)
    ranks.logs, ranks.store = folder, store
    stopped: Stopped | None = None
    try:
        peer = Peer(rank, socket.gethostname(), os.getpid())
        with Watch(ranks, ranks.gather(peer), store) as watch:
            try:
                yield ranks
            except Stopped as request:  # all ranks stop together
                stopped = request
            except Exception as error:
                loss = find_loss(error)
                if loss is None:
                    raise
                if watch.lost is None or watch.is_reporter():
                    raise loss from None
                raise SystemExit(EXIT_USAGE) from None
        ranks.barrier()  # no rank ends while another rank still watches it
        if stopped is not None:
            raise stopped
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _start(
    size: int, place: str, folder: Path, task: Callable[..., Any], arguments: tuple[Any, ...]
) -> list[Any]:
    """Start ranks 1 to size - 1. Signals are blocked until they have their own handlers."""
    context: Any = multiprocessing.get_context(child_processes.START_METHOD)
    others = [
        context.Process(
            target=_run_rank, args=(rank, size, place, folder, task, arguments), daemon=True
        )
        for rank in range(1, size)
    ]
    with blocked_signals():
        for other in others:
            other.start()
    return others


def _run_rank(
    rank: int,
    size: int,
    place: str,
    folder: Path,
    task: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """The process of a rank above 0. Rank 0 handles all signals and passes them on as SIGTERM."""
    for number in SIGNALS:  # the task installs a handler of SIGTERM
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    end_with_parent()
    kept = write_rank_log(log_path(folder, rank), redirect=True)
    kept.__enter__()  # until the process ends, so that a traceback is logged too
    with suppress(RankFailed, Stopped):
        store = dist.FileStore(str(Path(place, "store")), size)
        store.set(f"ready/{rank}", "1")
        with join_group(store, rank, size, folder) as ranks:
            task(ranks, *arguments)


def _await_ranks(store: Any, others: Sequence[Any], folder: Path, stop: StopRequest) -> None:
    """Wait until all ranks have started, in Python, so that Ctrl-C works."""
    keys = [f"ready/{rank}" for rank in range(1, len(others) + 1)]
    while not store.check(keys):
        if stop.signalled:  # `stop()` is asked after updates only
            raise Stopped(str(folder))
        for rank, other in enumerate(others, start=1):
            if other.exitcode is not None:
                peer = Peer(rank, socket.gethostname(), other.pid)
                raise RankLost(describe_loss(peer, folder))
        time.sleep(_TICK)


def _pass_on(others: Sequence[Any]) -> None:
    for other in others:
        with suppress(ProcessLookupError):
            os.kill(other.pid, signal.SIGTERM)


def _end(others: Sequence[Any], grace: float) -> None:
    """Wait for the other ranks; kill those that have not ended after `grace` seconds."""
    end = time.monotonic() + grace
    for other in others:
        other.join(timeout=max(0.0, end - time.monotonic()))
        if other.is_alive():
            other.kill()
            other.join()


def recipe_of_rank(recipe: Recipe, ranks: Ranks) -> Recipe:
    """The recipe as this rank uses it: ranks on one host get the cards in turn."""
    play = recipe.play
    if ranks.size > play.groups * play.members:
        raise ConfigError(
            f"{ranks.size} ranks are more than the {play.groups * play.members} meta-episodes of "
            "an update (play.groups x play.members): start fewer ranks or play more groups"
        )
    if ranks.size == 1 or recipe.run.device not in ("auto", "cuda"):
        return recipe
    if not torch.cuda.is_available():
        return recipe
    local_rank = int(os.environ.get("LOCAL_RANK", ranks.rank))
    device = f"cuda:{local_rank % torch.cuda.device_count()}"
    return recipe.changed(run={"device": device})
