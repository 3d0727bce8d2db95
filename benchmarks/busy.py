"""How busy the GPU is in the updates of a training: seconds by part, and the share of kernel time.

    python -m benchmarks.busy smollm2_alfworld smollm2_sokoban --out busy.json
    python -m benchmarks.busy qwen_alfworld --change=--model.path=qwen2.5-1.5b-alfworld
    python -m benchmarks.busy demo --updates 3    # a test on a CPU, where nothing is sampled

A training of its own plays and learns with the recipe's settings (those of its last stage), without
evaluations but for one task at the start. NVIDIA's management library is asked every .1 s in which
share of the time a kernel ran, and `busy` is the mean over the counted updates; the first ones, in
which kernels are compiled, are not counted. `busy_play` and `busy_learn` are the means over these
parts; the library looks back up to a second, so in short updates they are near each other. Nothing
else should use the GPU.
"""

import argparse
import ctypes
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks.cache import print_and_write
from benchmarks.workload import last_stage
from mage.config.loading import load_recipe
from mage.ranks.stop import Stopped
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback, Metrics
from mage.training.start import train

EVERY = 0.1  # seconds between samples
PARTS = ("total", "play", "play_engine", "play_gpu_wait", "credit", "learn")
ALONE = (
    "--evaluate.before=false",
    "--run.evaluate_every=0",  # only before the first update, where one task is enough
    "--evaluate.size=1",
    "--run.episodes_every=0",
)


class Utilization(ctypes.Structure):
    """The shares of time, in percent, that the management library returns."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def gpu_reader() -> Callable[[], float]:
    """A function that returns the share of time in which this process's GPU last computed."""
    library, card = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()

    def call(name: str, *words: Any) -> None:
        code = getattr(library, name)(*words)
        if code:
            raise RuntimeError(f"{name} of NVIDIA's management library failed with code {code}")

    call("nvmlInit_v2")
    name = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(card))

    def read() -> float:
        found = Utilization()
        call("nvmlDeviceGetUtilizationRates", card, ctypes.byref(found))
        return float(found.gpu) / 100

    return read


class Sampler:
    """Calls `read` every .1 s, in a thread."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read
        self.samples: list[tuple[float, float]] = []  # time and share
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def _sample(self) -> None:
        while not self.ended.wait(EVERY):
            self.samples.append((time.monotonic(), self.read()))

    def share(self, *spans: tuple[float, float]) -> float | None:
        """The mean over spans between two times of `time.monotonic`; None without a sample."""
        inside = [
            share
            for at, share in self.samples
            if any(began <= at <= ended for began, ended in spans)
        ]
        return fmean(inside) if inside else None

    def close(self) -> None:
        self.ended.set()
        self.thread.join()


class Watch(Callback):
    """Notes when updates end, and their parts."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.timings: list[dict[str, float]] = []

    def on_update(
        self, update: int, total: int, metrics: Metrics, timing: Mapping[str, float]
    ) -> None:
        self.ends.append(time.monotonic())
        self.timings.append(dict(timing))


def busy_shares(sampler: Sampler, watch: Watch, skipped: int) -> dict[str, float | None]:
    """How busy the GPU was in the counted updates, and in their first and last parts."""
    starts, ends, timings = watch.ends[skipped - 1 :], watch.ends[skipped:], watch.timings[skipped:]
    spans = [*zip(starts[:-1], ends, timings, strict=True)]
    return {
        "busy": sampler.share((starts[0], ends[-1])),
        "busy_play": sampler.share(*((began, began + one["play"]) for began, _, one in spans)),
        "busy_learn": sampler.share(*((ended - one["learn"], ended) for _, ended, one in spans)),
    }


def measure(
    name: str,
    updates: int,
    skipped: int,
    changes: Sequence[str],
    read: Callable[[], float] | None,
) -> dict[str, Any]:
    """Medians of the counted updates, and how busy the GPU was in all of them together."""
    later = (f"--run.{one}={updates + 1}" for one in ("updates", "save_every"))
    recipe = last_stage(load_recipe(name, [*ALONE, *later, *changes]))
    watch, sampler = Watch(), Sampler(read) if read else None
    with tempfile.TemporaryDirectory() as folder, suppress(Stopped):
        run = RunFolder.create(Path(folder) / "run", recipe)
        train(run.path, watch, lambda: len(watch.ends) == updates)  # final panels are not played
    counted = watch.timings[skipped:]
    record: dict[str, Any] = {"recipe": name, "updates": len(counted)}
    for part in PARTS:
        record[part] = median(one.get(part, 0.0) for one in counted)
    if sampler is not None:
        sampler.close()
        record |= busy_shares(sampler, watch, skipped)
    return record


def measure_all(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    read = gpu_reader() if torch.cuda.is_available() else None
    for name in given.recipes:
        yield measure(name, given.updates, given.skip, given.change, read)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--skip", type=int, default=2, help="first updates that are not counted")
    parser.add_argument("--change", action="append", default=[], metavar="--OPTION=VALUE")
    parser.add_argument("--out", type=Path, help="JSON file, written after every result")
    given = parser.parse_args(words)
    if not 0 < given.skip < given.updates:
        parser.error("--skip must be at least 1 and less than --updates")
    print_and_write(measure_all(given), given.out)


if __name__ == "__main__":
    main()
