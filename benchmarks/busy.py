"""How busy the GPU is in the updates of a training: seconds by part, and the share of kernel time.

    python -m benchmarks.busy smollm2_alfworld smollm2_sokoban --out busy.json
    python -m benchmarks.busy qwen_alfworld --change=--model.path=qwen2.5-1.5b-alfworld
    python -m benchmarks.busy demo --updates 3    # a test on a CPU, where nothing is sampled

A training of its own plays and learns with the recipe's settings (those of its last stage), without
evaluations but for one task at the start. `nvidia-smi` samples the share of time in which a kernel
runs, and `busy` is its mean over the counted updates; the first ones, in which kernels are
compiled, are not counted. Nothing else should use the GPU.
"""

import argparse
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
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

PARTS = ("total", "play", "play_engine", "play_gpu_wait", "credit", "learn")
ALONE = (
    "--evaluate.before=false",
    "--run.evaluate_every=0",  # only before the first update, where one task is enough
    "--evaluate.size=1",
    "--run.episodes_every=0",
)


class Sampler:
    """Reads the share of time in which the GPU computes, in percent, from a program's lines."""

    def __init__(self, command: Sequence[str]) -> None:
        self.samples: list[tuple[float, float]] = []  # time and share
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.samples.append((time.monotonic(), float(line) / 100))

    def share(self, began: float, ended: float) -> float | None:
        """The mean between two times of `time.monotonic`; None without a sample."""
        inside = [share for at, share in self.samples if began <= at <= ended]
        return fmean(inside) if inside else None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()


def monitor(every: int = 100) -> list[str]:
    """A command that prints the share of this process's GPU every so many milliseconds."""
    card = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    query = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
    return ["nvidia-smi", f"--id={card}", *query, f"--loop-ms={every}"]


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


def measure(
    name: str, updates: int, skipped: int, changes: Sequence[str], command: Sequence[str]
) -> dict[str, Any]:
    """Medians of the counted updates, and how busy the GPU was in all of them together."""
    later = (f"--run.{one}={updates + 1}" for one in ("updates", "save_every"))
    recipe = last_stage(load_recipe(name, [*ALONE, *later, *changes]))
    watch, sampler = Watch(), Sampler(command) if command else None
    with tempfile.TemporaryDirectory() as folder, suppress(Stopped):
        run = RunFolder.create(Path(folder) / "run", recipe)
        train(run.path, watch, lambda: len(watch.ends) == updates)  # final panels are not played
    counted = watch.timings[skipped:]
    record: dict[str, Any] = {"recipe": name, "updates": len(counted)}
    for part in PARTS:
        record[part] = median(one.get(part, 0.0) for one in counted)
    if sampler is not None:
        sampler.close()
        record["busy"] = sampler.share(watch.ends[skipped - 1], watch.ends[-1])
    return record


def measure_all(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    command = monitor() if torch.cuda.is_available() else []
    for name in given.recipes:
        yield measure(name, given.updates, given.skip, given.change, command)


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
