"""Does `mismatch` between engine and learner stay flat over many updates that change nothing?

The embedded model plays Kuhn poker and learns with a learning rate that is too small to change any
weight, so every update should find the same difference between the logprobs of both. A difference
that grows comes from state that outlives an update: a cache, a copy of the weights, adapters that
are added twice. `python -m benchmarks.drift --updates 500 [--lora 4]` prints the mean of every
tenth of the run.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

from mage.config.loading import load_recipe
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train

LIMIT = 1e-5  # float32: rounding of another order of sums
_SMALL = (
    "--play.groups=2",
    "--play.members=4",
    "--learn.lr=1e-30",
    "--learn.minibatches=1",
    "--evaluate.before=false",
    "--evaluate.size=1",
    "--evaluate.final_size=1",
    "--run.threads=1",
    "--run.device=cpu",
    "--run.episodes_every=0",
)


def measure(updates: int, lora: int, folder: Path) -> list[float]:
    """`mismatch` of every update."""
    every = (f"--run.{name}={updates}" for name in ("updates", "save_every", "evaluate_every"))
    recipe = load_recipe("kuhn_poker", [*_SMALL, *every, f"--learn.lora_rank={lora}"])
    run = RunFolder.create(folder / "run", recipe)
    train(run.path, Callback(), lambda: False)
    return [float(one["mismatch"]) for one in run.metrics()]


def main(words: list[str]) -> int:
    options = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    options.add_argument("--updates", type=int, default=500)
    options.add_argument("--lora", type=int, default=0, help="rank of the adapters; 0 = none")
    given, began = options.parse_args(words), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.updates, given.lora, Path(folder))
    size = max(1, len(found) // 10)
    for start in range(0, len(found), size):
        part = found[start : start + size]
        print(f"updates {start + 1:4} to {start + len(part):4}: mismatch {fmean(part):.2e}")
    flat = max(found) < LIMIT
    print(f"largest {max(found):.2e}, {time.process_time() - began:.0f} s of processor time")
    print(f"{'flat' if flat else 'NOT flat'}: the limit is {LIMIT:.0e}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
