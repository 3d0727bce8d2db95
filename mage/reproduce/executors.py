"""Where the runs of a reproduction work: processes on this machine, or on a Ray cluster.

Every run on a GPU has its own GPU, unless the user asks for several runs per GPU or for several
ranks, one GPU each, per run. An executor knows how many runs work at once (`size`) and starts one
run (`start`).
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mage.config.recipe import Recipe
from mage.ranks.ray_nodes import RemoteProcess, connect, place

LOG = "worker.log"  # in a run folder
RUNNER = "MAGE_RUNNER"  # variable of a worker: the process that has started it
_WAIT = 3600.0  # seconds to wait for room in a cluster that other jobs use
_TICK = 0.2


class Worker(Protocol):
    """A run that works: the methods of `subprocess.Popen` that the runner uses."""

    returncode: Any

    def poll(self) -> Any: ...
    def terminate(self) -> None: ...
    def wait(self) -> Any: ...


class Executor(Protocol):
    """Starts runs; `size` is the number of runs that work at once."""

    size: int

    def start(self, path: Path, recipe: Recipe) -> Worker: ...


class LocalExecutor:
    """Processes on this machine: `ranks` GPUs for a run, or `ranks` cores without a GPU."""

    def __init__(
        self, jobs: int, gpus: tuple[str, ...] = (), per_gpu: int = 1, ranks: int = 1
    ) -> None:
        sets = [",".join(gpus[k : k + ranks]) for k in range(0, len(gpus) - ranks + 1, ranks)]
        self.places: list[tuple[str, Worker | None]] = [
            (one, None) for _ in range(per_gpu) for one in sets
        ]
        self.ranks = ranks
        cores = jobs or max(1, (os.cpu_count() or 1) // ranks)
        self.size = min(jobs or len(self.places), len(self.places)) if gpus else cores

    def start(self, path: Path, recipe: Recipe) -> Worker:
        environment = _threads(recipe) | {RUNNER: str(os.getpid())}
        free = [k for k, (_, worker) in enumerate(self.places) if _is_free(worker)]
        if free:
            environment["CUDA_VISIBLE_DEVICES"] = self.places[free[0]][0]
        assert free or not self.places, "the runner starts at most `size` runs"
        with open(path / LOG, "ab") as log:
            # A session of its own, so that only the runner receives Ctrl-C.
            worker = subprocess.Popen(
                _command(path, self.ranks),
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if free:
            self.places[free[0]] = (self.places[free[0]][0], worker)
        return worker


class RayExecutor:
    """Processes on the nodes of a Ray cluster; all nodes must share the folder of the runs."""

    def __init__(self, jobs: int, per_gpu: int = 1, address: str = "auto") -> None:
        self.ray = connect(address)
        found: Mapping[str, float] = self.ray.cluster_resources()
        self.gpus = 1.0 / per_gpu if found.get("GPU") else 0.0
        room = int(found["GPU"] * per_gpu) if self.gpus else int(found.get("CPU", 0))
        self.size = max(1, min(jobs or room, room))

    def start(self, path: Path, recipe: Recipe) -> Worker:
        group, (process,) = place(self.ray, 1, cpus=1, gpus=self.gpus, spread=False, seconds=_WAIT)
        process.start(_command(path.resolve()), _threads(recipe))
        return RayWorker(process, group, path / LOG)


class RayWorker:
    """A run on a node. Its output is added to its log, and its place is freed when it ends."""

    def __init__(self, process: RemoteProcess, group: Any, log: Path) -> None:
        self.process, self.group, self.log = process, group, log
        self.returncode: int | str | None = None

    def poll(self) -> int | str | None:
        if self.returncode is None:
            self.returncode = self.process.poll()
            if text := self.process.take_text():
                with open(self.log, "a", encoding="utf-8") as log:
                    log.write(text)
            if self.returncode is not None:
                self.process.close()
                self.process.ray.util.remove_placement_group(self.group)
        return self.returncode

    def terminate(self) -> None:
        self.process.terminate()

    def wait(self) -> int | str | None:
        while self.poll() is None:
            time.sleep(_TICK)
        return self.returncode


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. Loads torch."""
    import torch

    if not torch.cuda.is_available():
        return ()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    words = tuple(word.strip() for word in named.split(",") if word.strip())
    return words or tuple(map(str, range(torch.cuda.device_count())))


def _is_free(worker: Worker | None) -> bool:
    return worker is None or worker.poll() is not None


def _command(path: Path, ranks: int = 1) -> list[str]:
    if ranks > 1:
        return [sys.executable, "-m", "mage.reproduce.rank_launcher", str(path), str(ranks)]
    return [sys.executable, "-m", "mage.reproduce.worker", str(path)]


def _threads(recipe: Recipe) -> dict[str, str]:
    one = recipe.run.threads == 1
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1") if one else {}
