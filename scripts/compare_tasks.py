"""Compare two files of outcomes: `python scripts/compare_tasks.py FIRST SECOND`.

Both files were written by `mage evaluate --tasks FILE.jsonl` on the same panel (`.jsonl.gz` is read
too), for example with an emptied memory and with the memory. Printed, second minus first with 95 %
intervals over tasks (2,000 bootstrap samples of the tasks):
- success in every episode, and its gain from the first to the last episode,
- the share of the tasks won in a later episode among those lost in the first one: does the agent
  learn from a failure?
- the share of the tasks won in the last episode among those won in the first one: are wins kept?

    python scripts/compare_tasks.py emptied_tasks.jsonl.gz test_tasks.jsonl.gz
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mage.evaluation.rows import TaskRow, read_tasks
from mage.types import Task

SAMPLES = 2000
# Wins of all plays of a task: plays x episodes.
Wins = dict[Task, np.ndarray]
Share = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def read_wins(path: Path) -> Wins:
    found: dict[Task, list[list[bool]]] = {}
    for row in read_tasks(path):
        found.setdefault(row.task, []).append(won(row))
    return {task: np.array(plays, dtype=float) for task, plays in found.items()}


def won(row: TaskRow) -> list[bool]:
    return [outcome == "won" for outcome in row.outcomes]


def in_episode(number: int) -> Share:
    return lambda wins: (wins[:, number], np.ones(len(wins)))


def gain(wins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return wins[:, -1] - wins[:, 0], np.ones(len(wins))


def later_after_loss(wins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lost = 1 - wins[:, 0]
    return lost * wins[:, 1:].max(axis=1), lost


def last_after_win(wins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return wins[:, 0] * wins[:, -1], wins[:, 0]


def totals(wins: Wins, tasks: Sequence[Task], share: Share) -> np.ndarray:
    """The numerator and the denominator of a share, for every task."""
    return np.array([[part.sum() for part in share(wins[task])] for task in tasks])


def describe(name: str, first: np.ndarray, second: np.ndarray) -> str:
    """A line: both shares and their difference with its interval."""
    draws = np.random.default_rng(0).integers(len(first), size=(SAMPLES, len(first)))
    shares = [both.sum(axis=0) for both in (first, second)]
    if any(count == 0 for _, count in shares):
        return f"{name:46} no task"
    a, b = (wins / count for wins, count in shares)
    sampled = [both[draws].sum(axis=1) for both in (first, second)]
    with np.errstate(divide="ignore", invalid="ignore"):
        before, after = (sums[:, 0] / sums[:, 1] for sums in sampled)
    low, high = np.nanpercentile(after - before, [2.5, 97.5])
    return f"{name:46} {a:+.3f} {b:+.3f}  {b - a:+.3f} [{low:+.3f}, {high:+.3f}]"


def main(first: Path, second: Path) -> None:
    a, b = read_wins(first), read_wins(second)
    if a.keys() != b.keys():
        raise SystemExit(f"{first} and {second} do not hold the same tasks")
    tasks = list(a)
    episodes = min(wins.shape[1] for found in (a, b) for wins in found.values())
    shares: list[tuple[str, Share]] = [
        *((f"success in episode {k + 1}", in_episode(k)) for k in range(episodes)),
        (f"gain from episode 1 to {episodes}", gain),
        ("lost in episode 1, won later", later_after_loss),
        (f"won in episode 1, won in episode {episodes}", last_after_win),
    ]
    print(f"{len(tasks):,} tasks\n{'':46} first  second second - first")
    for name, share in shares if episodes > 1 else shares[:1]:
        print(describe(name, totals(a, tasks, share), totals(b, tasks, share)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
