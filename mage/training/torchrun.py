"""Ranks that torchrun has started: `torchrun --nproc-per-node 8 -m mage train RECIPE`.

torchrun starts one process per GPU and tells each its rank in the environment. This file joins them
to one group. After a restart (`--max-restarts`) the ranks find the run folder of the first attempt.
"""

import hashlib
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from mage.config.errors import ConfigError
from mage.learn.ranks import Ranks
from mage.run_folder import LAUNCH, RunError, read_json
from mage.training.distributed import join_group

_JOIN = timedelta(minutes=5)


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
    number = {
        name: int(environment[name])
        for name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "TORCHELASTIC_RESTART_COUNT",
            "MASTER_PORT",
        )
    }
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    job = f"{socket.gethostname()}:{os.getppid()}" if run_id == "none" else run_id
    return World(
        rank=number["RANK"],
        size=number["WORLD_SIZE"],
        local_rank=number["LOCAL_RANK"],
        local_size=number["LOCAL_WORLD_SIZE"],
        restarts=number["TORCHELASTIC_RESTART_COUNT"],
        address=environment["MASTER_ADDR"],
        port=number["MASTER_PORT"],
        job=job,
    )


@contextmanager
def join_torchrun(world: World) -> Iterator[Ranks]:
    """Join the ranks to one group."""
    if world.is_one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = choose_backend(world)
    store = dist.PrefixStore(f"mage/{world.restarts}", _open_store(world))
    with join_group(store, world.rank, world.size, backend=backend) as ranks:
        yield ranks


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
    return dist.TCPStore(
        world.address,
        world.port,
        None,
        is_master=world.rank == 0 and not shared,
        timeout=_JOIN,
        wait_for_workers=False,
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
    for path in sorted(runs.glob(f"[!.]*/{LAUNCH}")):
        try:
            if read_json(path).get("job") == world.job:
                return path.parent
        except RunError:  # of another run, which has its own commands
            continue
    return None
