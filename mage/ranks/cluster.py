"""Train on a Ray cluster: place the ranks on nodes, start them, show rank 0, restart lost nodes.

The ranks are the processes that torchrun would start, with the same environment variables. So the
training itself, its messages and its checkpoints are those of `torchrun -m mage train`.
"""

import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mage.config.errors import EXIT_STOPPED, EXIT_USAGE
from mage.ranks.ray_nodes import LOST, RemoteProcess, place

_TICK = 0.5  # seconds between two looks at the processes
_GRACE = 60.0  # seconds for the other ranks to end after one has ended with an error


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A command for every rank, and what each rank needs."""

    words: tuple[str, ...]  # of the command line, after `mage`
    ranks: int
    cpus: float = 1.0
    gpus: float = 0.0
    spread: bool = False  # ranks on as many nodes as possible, instead of as few as possible
    max_restarts: int = 3
    wait: float = 600.0  # seconds to wait for room in the cluster
    name: str = field(default_factory=lambda: f"ray-{uuid.uuid4().hex[:12]}")


def run_on_cluster(
    ray: Any, job: ClusterJob, show: Callable[[str], None], stop: Callable[[], bool]
) -> int:
    """Run a job to its end and return its exit code.

    `show` gets the output of rank 0 and a line for every restart. If `stop` returns true, all
    ranks are asked to save and end. After a lost node or a killed rank all ranks start again.
    """
    for attempt in range(job.max_restarts + 1):
        group, ranks = place(
            ray, job.ranks, cpus=job.cpus, gpus=job.gpus, spread=job.spread, seconds=job.wait
        )
        try:
            _start(job, ranks, attempt)
            codes = _follow(ranks, show, stop)
        finally:
            for rank in ranks:
                rank.close()
            ray.util.remove_placement_group(group)
        lost = [number for number, code in enumerate(codes) if _is_lost(code)]
        if not lost or stop():
            return _exit_code(codes)
        named = f"rank {', '.join(map(str, lost))} was lost with its node or killed"
        if attempt < job.max_restarts:
            show(f"{named}; restart {attempt + 1} of {job.max_restarts}\n")
    show(f"{named}; there are no restarts left\n")
    return EXIT_USAGE


def _start(job: ClusterJob, ranks: Sequence[RemoteProcess], attempt: int) -> None:
    addresses = [rank.address() for rank in ranks]
    host, port = addresses[0]
    shared = {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_RANK": "0",  # Ray shows each rank its own GPU only
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_RUN_ID": job.name,
    }
    if len({host for host, _ in addresses}) == 1:
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, "-m", "mage", *job.words]
    for number, rank in enumerate(ranks):
        rank.start(command, shared | {"RANK": str(number)})


def _follow(
    ranks: Sequence[RemoteProcess], show: Callable[[str], None], stop: Callable[[], bool]
) -> list[int | str | None]:
    """Wait until all ranks have ended; their exit codes. None: it did not end in time."""
    asked, end = False, float("inf")
    while True:
        codes = [rank.poll() for rank in ranks]
        if text := ranks[0].take_text():
            show(text)
        if None not in codes or time.monotonic() > end:
            return codes
        if any(code not in (0, None) for code in codes):
            end = min(end, time.monotonic() + _GRACE)
        if stop() and not asked:
            asked = True
            for rank in ranks:
                rank.terminate()
        time.sleep(_TICK)


def _is_lost(code: int | str | None) -> bool:
    """The node is lost, or a signal has ended the process."""
    return code is None or code == LOST or (isinstance(code, int) and code < 0)


def _exit_code(codes: Sequence[int | str | None]) -> int:
    if EXIT_STOPPED in codes:
        return EXIT_STOPPED
    return 0 if set(codes) == {0} else EXIT_USAGE
