"""Ranks that torchrun has started: `torchrun --nproc-per-node 8 -m mage train RECIPE`.

torchrun starts one process per GPU and tells each its rank in the environment. This file joins them
to one group. After a restart (`--max-restarts`) the ranks find the run folder of the first attempt.
An error is one message on rank 0; the other ranks end after rank 0 has begun to end.
"""

import hashlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mage.config.errors import EXIT_USAGE, ConfigError
from mage.ranks.interface import choose_interface
from mage.ranks.launch import join_group
from mage.ranks.ranks import RankLost, Ranks
from mage.ranks.stop import Stopped
from mage.ranks.watch import REPORTS, has_reported
from mage.run_folder import LAUNCH, RunError, read_json

_JOIN = timedelta(minutes=5)
_REPORT = 20.0  # seconds for rank 0 to begin its report of an error
_LOOK = 0.02  # seconds between two looks at the store


@dataclass(frozen=True, slots=True)
class World:
    """What torchrun tells a process."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    restarts: int
    address: str
    port: int
    job: str

    @property
    def is_one_host(self) -> bool:
        return self.local_size == self.size


def read_world(environment: Mapping[str, str] = os.environ) -> World | None:
    """The world of this process; None if torchrun did not start it."""
    if "TORCHELASTIC_RESTART_COUNT" not in environment:
        return None
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    job = f"{socket.gethostname()}:{os.getppid()}" if run_id == "none" else run_id
    return World(
        rank=int(environment["RANK"]),
        size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment["LOCAL_RANK"]),
        local_size=int(environment["LOCAL_WORLD_SIZE"]),
        restarts=int(environment["TORCHELASTIC_RESTART_COUNT"]),
        address=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        job=job,
    )


@contextmanager
def join_torchrun(world: World) -> Iterator[Ranks]:
    """Join the ranks to one group."""
    choose_interface(world.address, is_one_host=world.is_one_host, report=world.rank == 0)
    before = signal.getsignal(signal.SIGTERM)
    if world.rank:  # it may wait for long outside of Python, where no handler is called
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    store = dist.PrefixStore(f"mage/{world.restarts}", _open_store(world))
    ranks: Ranks | None = None
    try:
        backend = choose_backend(world)
        with join_group(store, world.rank, world.size, backend=backend) as ranks:
            signal.signal(signal.SIGTERM, before)
            try:
                yield ranks
            except Stopped:
                raise
            except Exception:
                _begin_report(world.rank, store)  # before the others lose this rank
                raise
    except (ValueError, OSError, RuntimeError) as error:
        _begin_report(world.rank, store)
        is_shared = ranks is None or ranks.failed
        if _is_reporter(world.rank, store, error, is_shared):
            raise
        raise SystemExit(EXIT_USAGE) from None


def _begin_report(rank: int, store: Any) -> None:
    """Keep this rank until it has shown its error; tell the others if it is rank 0."""
    # torchrun sends SIGTERM to all ranks after the end of one: the error is the message.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 0:
        with suppress(RuntimeError):  # the store may have ended with torchrun
            store.set(REPORTS, "")


def _is_reporter(rank: int, store: Any, error: Exception, is_shared: bool) -> bool:
    """Whether this rank shows the error. Ranks above 0 first wait for rank 0 if it has one too."""
    if rank == 0:
        return True
    if isinstance(error, RankLost):  # an error of rank 0 looks like its loss
        return not has_reported(store)
    return is_shared and not wait_for_report(store)


def wait_for_report(store: Any, seconds: float = _REPORT) -> bool:
    """Wait until rank 0 reports an error, or has ended; false if it does not in this time.

    Rank 0 then ignores SIGTERM. If another rank ended before, torchrun would stop rank 0 before its
    message.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if store.check([REPORTS]):
                return True
        except RuntimeError:  # the store has ended with rank 0
            return True
        time.sleep(_LOOK)
    return False


def choose_backend(world: World) -> str:
    """NCCL for CUDA tensors; gloo where ranks share a card, which NCCL refuses."""
    if not torch.cuda.is_available():
        return "gloo"
    if world.local_size > torch.cuda.device_count():
        return "cpu:gloo,cuda:gloo"
    if not dist.is_nccl_available():
        raise ConfigError(
            "this build of torch has no NCCL, which ranks on several GPUs need; install a CUDA "
            "build of torch, or use one rank"
        )
    torch.cuda.set_device(world.local_rank)
    return "cpu:gloo,cuda:nccl"


def _open_store(world: World) -> dist.Store:
    """The store of the torchrun agent, or one that rank 0 holds."""
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    holds = world.rank == 0 and not shared
    if shared and world.is_one_host:
        _check_agent(world)
    try:
        return dist.TCPStore(
            world.address, world.port, None, is_master=holds, timeout=_JOIN, wait_for_workers=False
        )
    except dist.DistNetworkError as error:
        raise _explain_no_store(world, holds, str(error).splitlines()[0]) from None


def _check_agent(world: World) -> None:
    """End this rank if torchrun has ended: it opens the store before it starts the ranks.

    TCPStore would try again for minutes.
    """
    try:
        socket.create_connection((world.address, world.port), timeout=_JOIN.seconds).close()
    except OSError:
        if world.rank:  # rank 0 reports
            raise SystemExit(EXIT_USAGE) from None
        raise RankLost(
            f"torchrun has ended: there is no store at {world.address}:{world.port} (MASTER_ADDR, "
            "MASTER_PORT) through which its ranks can meet. Start it again"
        ) from None


def _explain_no_store(world: World, holds: bool, reason: str) -> Exception:
    here = f"rank {world.rank} on {socket.gethostname()}"
    if holds:
        return ConfigError(
            f"{here} cannot listen on port {world.port} (MASTER_PORT): "
            f"{reason.rpartition('message: ')[2]}. Stop the program that uses this port, or start "
            "the ranks with another port"
        )
    return RankLost(
        f"{here} cannot reach {world.address}:{world.port} (MASTER_ADDR, MASTER_PORT): {reason} "
        "Start all ranks with the same address and port, and check that no firewall blocks the port"
    )


# -- what all ranks must agree on


def check_agreement(ranks: Ranks, values: Mapping[str, str]) -> None:
    """Raise a ConfigError on all ranks if a value differs between ranks."""
    gathered = ranks.gather((socket.gethostname(), dict(values)))
    host, first = gathered[0]
    for rank, (other, found) in enumerate(gathered):
        for name, value in found.items():
            if value != first[name]:
                raise ConfigError(
                    f"rank {rank} on {other} has another {name} than rank 0 on {host}: start all "
                    "ranks with the same command and the same files"
                )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def find_folder(runs: Path, world: World) -> Path | None:
    """The run folder that an earlier attempt of this torchrun job has created."""
    newest_first = sorted(runs.glob(f"[!.]*/{LAUNCH}"), key=os.path.getmtime, reverse=True)
    for path in newest_first:
        try:
            if read_json(path).get("job") == world.job:
                return path.parent
        except RunError:  # of another run, which has its own commands
            continue
    return None
