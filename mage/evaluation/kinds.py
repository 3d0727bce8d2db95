"""Figures of a panel by kind of task: task types of ALFWorld, boxes and moves of Sokoban.

Kinds are not stored: the environment names the kind of every episode from its seed.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mage.environments.base import Environment
from mage.evaluation.rows import TaskRow, average, rate, score_of, success_of
from mage.evaluation.statistics import Estimate
from mage.run_folder.files import finite


@dataclass(frozen=True, slots=True)
class KindFigures:
    """One episode position of all tasks of one kind; None without tasks."""

    episode: int
    tasks: int
    success: Estimate | None
    score: Estimate | None


@dataclass(frozen=True, slots=True)
class Kind:
    """All episode positions of the tasks of one kind."""

    kind: str
    episodes: tuple[KindFigures, ...]

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = finite(asdict(self))
        return found


def figures_by_kind(environment: Environment, rows: Sequence[TaskRow]) -> list[Kind]:
    """The figures of every kind in the split of the rows; empty if all tasks have one kind.

    In a mix the name of a kind begins with the name of its world.
    """
    kinds = [_kinds_of(environment, row) for row in rows]
    names = sorted({kind for one in kinds for kind in one}, key=_in_order)
    if len(names) < 2:
        return []
    episodes = range(max(len(row.scores) for row in rows))
    return [Kind(name, tuple(_figures(rows, kinds, name, k) for k in episodes)) for name in names]


def _in_order(name: str) -> list[str]:
    """Sorts numbers in names by their value: `6 to 10 moves` before `11 to 15 moves`."""
    return [f"{int(part):09}" if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _kinds_of(environment: Environment, row: TaskRow) -> list[str]:
    """The kind of every episode of a task."""
    world = environment.world_of(row.task).for_split(row.task.split)
    of_mix = [world.name] if len(environment.inside()) > 1 else []
    seeds = [world.episode_seed(row.task.seed, k) for k in range(len(row.scores))]
    found = {seed: world.task_kind(seed) for seed in dict.fromkeys(seeds)}
    return [", ".join([*of_mix, *filter(None, [found[seed]])]) for seed in seeds]


def _figures(
    rows: Sequence[TaskRow], kinds: Sequence[Sequence[str]], kind: str, k: int
) -> KindFigures:
    pairs = zip(rows, kinds, strict=True)
    played = [row for row, own in pairs if k < len(own) and own[k] == kind]
    tasks = {row.task for row in played}  # a task may have been played several times
    return KindFigures(k + 1, len(tasks), rate(played, success_of(k)), average(played, score_of(k)))
