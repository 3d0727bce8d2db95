"""The weight of every episode in a return, from the lengths of real episodes.

    python scripts/episode_weights.py results/smollm2_sokoban_long/mage_seed0_test_tasks.jsonl.gz

Reads the task rows of an evaluation and prints, for LaMer and MAGE, the weights of the first three
episodes in the return of the first turn, normalised to a sum of 1. `code` and `paper` are the two
values of `returns.propagation`.
"""

import argparse
import gzip
import json
from pathlib import Path
from statistics import fmean

STEP, EPISODE, COUNT = 0.95, 0.6, 3


def weights(lengths: list[int], kind: str, propagation: str) -> list[float]:
    """Weights of the task rewards R_1 .. R_N in G(1, 1), by docs/concepts.md."""
    inside = [STEP ** (length - 1) for length in lengths]
    found, before = [], 1.0
    for number, own in enumerate(inside):
        found.append(EPISODE**number * own * (before if propagation == "code" else 1.0))
        before *= own
    if kind == "differential":
        found = [now - after for now, after in zip(found, [*found[1:], 0.0], strict=True)]
    return found


def read_lengths(path: Path) -> list[list[int]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [row["replies"] for row in rows if "replies" in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tasks", type=Path, nargs="+", help="task rows of an evaluation")
    for path in parser.parse_args().tasks:
        found = read_lengths(path)
        turns = [turn for row in found for turn in row]
        print(f"{path}: {fmean(turns):.2f} turns, {max(turns)} at most")
        print(f"  discount between episodes {EPISODE * fmean(STEP ** (t - 1) for t in turns):.3f}")
        whole = [row[:COUNT] for row in found if len(row) >= COUNT]
        for propagation in ("code", "paper") if whole else ():
            for kind in ("cumulative", "differential"):
                rows = [weights(row, kind, propagation) for row in whole]
                means = [fmean(column) for column in zip(*rows, strict=True)]
                shares = " / ".join(f"{mean / sum(means):.3f}" for mean in means)
                print(f"  {propagation:5} {kind:12} {shares}")


if __name__ == "__main__":
    main()
