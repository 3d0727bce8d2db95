"""Paired comparison of two evaluations that were played on the same panel."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mage.config.errors import UserError
from mage.evaluation.figures import Evaluation
from mage.evaluation.rows import Measure, TaskRow, by_task, passed_by, score_of, success_of
from mage.evaluation.statistics import Difference, paired, sign_test
from mage.run_folder.files import finite


@dataclass(frozen=True, slots=True)
class EpisodeComparison:
    """Second minus first in one episode, over the tasks where both played it (`pass_at`: all)."""

    episode: int
    score: Difference
    success: Difference
    pass_at: Difference


@dataclass(frozen=True, slots=True)
class Comparison:
    tasks: int
    episodes: tuple[EpisodeComparison, ...]

    def to_json(self) -> dict[str, Any]:
        return {name: finite(value) for name, value in asdict(self).items()}


def compare(
    first: Evaluation | Sequence[TaskRow], second: Evaluation | Sequence[TaskRow]
) -> Comparison:
    """Second minus first over the SAME tasks, with paired intervals; sign test for wins."""
    a, b = (one.rows if isinstance(one, Evaluation) else one for one in (first, second))
    _check_same_panel(a, b)
    shared = min(max(len(row.scores) for row in rows) for rows in (a, b))
    played = [k for k in range(shared) if _both(a, b, score_of(k))[0]]
    return Comparison(
        len({row.task for row in a}), tuple(_compare_episode(a, b, k) for k in played)
    )


def _compare_episode(a: Sequence[TaskRow], b: Sequence[TaskRow], k: int) -> EpisodeComparison:
    return EpisodeComparison(
        episode=k + 1,
        score=paired(*_both(a, b, score_of(k))),
        success=_wins(*_both(a, b, success_of(k))),
        pass_at=_wins(*_both(a, b, passed_by(k))),
    )


def _both(
    a: Sequence[TaskRow], b: Sequence[TaskRow], measure: Measure
) -> tuple[list[float], list[float]]:
    """The per-task values of both sides, on the tasks on which both have something to measure."""
    first, second = (by_task(rows, measure) for rows in (a, b))
    tasks = [task for task in first if task in second]
    return [first[task] for task in tasks], [second[task] for task in tasks]


def _wins(first: Sequence[float], second: Sequence[float]) -> Difference:
    pairs = list(zip(first, second, strict=True))
    return Difference(
        paired(first, second).difference,
        sign_test(sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)),
    )


def _check_same_panel(a: Sequence[TaskRow], b: Sequence[TaskRow]) -> None:
    worlds = {(row.task.environment, row.world) for row in (*a, *b) if row.world}
    if len(worlds) > len({name for name, _ in worlds}):
        raise UserError(
            "the two evaluations were played in different environments, so their tasks are not the "
            "same although their seeds are; compare runs with the same options of environments"
        )
    first, second = ({row.task for row in rows} for rows in (a, b))
    if first != second:
        raise UserError(
            f"the two evaluations were not played on the same panel: {len(first - second)} of "
            f"{len(first)} tasks are in the first only, {len(second - first)} of {len(second)} in "
            "the second only; compare runs with the same panel name, size, seats and episodes"
        )
