"""Compare two files of outcomes: `python scripts/compare_tasks.py FIRST SECOND`.

Both files were written by `mage evaluate --tasks FILE.jsonl` on the same panel (`.jsonl.gz` is read
too), for example with an emptied memory and with the memory. Printed, second minus first with 95 %
intervals over tasks:
- success in every episode, and its gain from the first to the last episode (paired t interval),
- the share of the plays won in a later episode among those lost in the first one: does the agent
  learn from a failure? (bootstrap over tasks)
- the share of the plays won in the last episode among those won in the first one: are wins kept?

    python scripts/compare_tasks.py emptied_tasks.jsonl.gz test_tasks.jsonl.gz
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mage.evaluation.rows import (
    Measure,
    TaskRow,
    by_task,
    gain_of,
    read_tasks,
    success_of,
)
from mage.evaluation.statistics import Estimate, bootstrap, paired

Rows = Sequence[TaskRow]


def first_is(outcome: bool) -> Measure:
    """Whether the first episode was won (or not won)."""
    return lambda row: float((row.outcomes[0] == "won") == outcome)


def won_later(row: TaskRow) -> float:
    return float(row.outcomes[0] != "won" and "won" in row.outcomes[1:])


def won_again(row: TaskRow) -> float:
    return float(row.outcomes[0] == "won" and row.outcomes[-1] == "won")


def compare_means(name: str, first: Rows, second: Rows, measure: Measure) -> str:
    a, b = (by_task(rows, measure) for rows in (first, second))
    before, after = ([values[task] for task in a] for values in (a, b))
    means = float(np.mean(before)), float(np.mean(after))
    return show(name, *means, paired(before, after).difference)


def compare_shares(name: str, first: Rows, second: Rows, above: Measure, below: Measure) -> str:
    """The difference of two ratios of sums; tasks are resampled."""
    columns = [by_task(rows, one) for rows in (first, second) for one in (above, below)]
    data = np.array([[column[task] for column in columns] for task in columns[0]])
    if not data[:, 1].any() or not data[:, 3].any():
        return f"{name:46} no task"
    a, b = (data[:, k].sum() / data[:, k + 1].sum() for k in (0, 2))
    return show(name, a, b, bootstrap(data.tolist(), seed=0, statistic=_difference))


def _difference(sample: np.ndarray) -> float:
    a, lost, b, lost_too = sample.sum(axis=0)
    return float(b / max(lost_too, 1e-9) - a / max(lost, 1e-9))


def show(name: str, first: float, second: float, gap: Estimate) -> str:
    gap_text = f"{gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
    return f"{name:46} {first:+.3f} {second:+.3f}  {gap_text}"


def main(first: Path, second: Path) -> None:
    a, b = read_tasks(first), read_tasks(second)
    tasks = {row.task for row in a}
    if tasks != {row.task for row in b}:
        raise SystemExit(f"{first} and {second} do not hold the same tasks")
    last = min(len(row.outcomes) for row in (*a, *b)) - 1
    print(f"{len(tasks):,} tasks\n{'':46} first  second second - first")
    for k in range(last + 1):
        print(compare_means(f"success in episode {k + 1}", a, b, success_of(k)))
    if last:
        gain = f"gain from episode 1 to {last + 1}"
        print(compare_means(gain, a, b, gain_of(last, success_of)))
        lost = "lost in episode 1, won later"
        print(compare_shares(lost, a, b, won_later, first_is(False)))
        kept = f"won in episode 1, won in episode {last + 1}"
        print(compare_shares(kept, a, b, won_again, first_is(True)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
