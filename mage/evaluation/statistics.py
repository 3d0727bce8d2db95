"""Intervals and paired comparisons. The unit is the TASK: members of one task are averaged first.

All intervals are 95 %. Scores have the plain t interval. Panels are stratified over opponents,
seats and deals, so it is a little too wide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from mage.config.errors import UserError

_UPPER = 0.975  # quantile of the upper end of a 95 % interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, its interval, and the number of tasks. The interval of one task is infinite."""

    value: float
    low: float
    high: float
    count: int

    def shifted(self, by: float, scale: float = 1.0) -> "Estimate":
        """(value + by) * scale, for a positive scale."""
        return Estimate(
            (self.value + by) * scale, (self.low + by) * scale, (self.high + by) * scale, self.count
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first over the same tasks, and its two-sided p-value."""

    difference: Estimate
    p_value: float


def wilson(successes: float, count: int) -> Estimate:
    """Wilson's score interval of a rate; valid at 0 and 1. 8 of 10 give .49 to .943.

    `successes` may be a sum of per-task means. With several members a task, `count` is still the
    number of tasks, which is the conservative choice.
    """
    if count < 1 or not -1e-9 <= successes <= count + 1e-9:
        raise UserError(
            f"a rate needs at least one task and at most one success for each, "
            f"not {successes} of {count}"
        )
    rate, z = successes / count, float(ndtri(_UPPER))
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z
        / (1 + z * z / count)
        * math.sqrt(max(0.0, rate * (1 - rate)) / count + z * z / (4 * count * count))
    )
    return Estimate(
        rate, max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half)), count
    )


def mean(values: Sequence[float]) -> Estimate:
    """The mean over tasks with Student's t interval."""
    _need(values)
    average = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(average, -math.inf, math.inf, 1)
    error = math.sqrt(_variance(values) / len(values))
    return _t_interval(average, error, len(values) - 1, len(values))


def crossed_mean(values_ST: np.ndarray) -> Difference:
    """The mean over training seeds (rows) and tasks (columns), with the variance of both.

    value = mean + seed + task + rest gives the variance (M_seed + M_task - M_rest) / (S T) of the
    mean from the mean squares of a two-way table. Few seeds estimate it badly, so the interval is
    Student's with Satterthwaite's degrees of freedom: near S - 1 where seeds differ most, near
    T - 1 where tasks do. A single seed says nothing about other seeds: the interval is over tasks.
    """
    if values_ST.size == 0:
        raise UserError("a mean needs at least one value")
    tasks = values_ST.shape[1]
    average = float(values_ST.mean())
    if tasks == 1:
        return Difference(Estimate(average, -math.inf, math.inf, 1), 1.0)
    variance, freedom = _crossed_variance(values_ST.astype(float))
    error = math.sqrt(variance)
    return _tested(_t_interval(average, error, freedom, tasks), error, freedom)


def _crossed_variance(values_ST: np.ndarray) -> tuple[float, float]:
    """The variance of the mean, and its degrees of freedom."""
    seeds, tasks = values_ST.shape
    if seeds == 1:
        return float(values_ST.var(ddof=1)) / tasks, tasks - 1
    by_seed, by_task = values_ST.mean(axis=1), values_ST.mean(axis=0)
    rest = values_ST - by_seed[:, None] - by_task[None, :] + values_ST.mean()
    squares = [
        (tasks * float(by_seed.var(ddof=1)), seeds - 1),
        (seeds * float(by_task.var(ddof=1)), tasks - 1),
        (float((rest**2).sum()) / ((seeds - 1) * (tasks - 1)), (seeds - 1) * (tasks - 1)),
    ]
    (of_seeds, _), (of_tasks, _), (of_rest, _) = squares
    # Each mean square alone is at least the variance of the rest, so the sum is not below one.
    total = max(of_seeds + of_tasks - of_rest, of_seeds, of_tasks, of_rest)
    spread = sum(square**2 / freedom for square, freedom in squares)
    freedom = total**2 / spread if spread else float(tasks - 1)
    return total / (seeds * tasks), max(seeds - 1, min(freedom, tasks - 1))


def crossed_rate(values_ST: np.ndarray) -> Estimate:
    """A rate over training seeds (rows) and tasks (columns): inside 0 and 1, also near them.

    It is Wilson's interval of the number of independent tasks that would give the interval of
    `crossed_mean`. If all values are equal, it is Wilson's interval of the tasks.
    """
    tasks = values_ST.shape[1]
    plain = wilson(float(values_ST.mean(axis=0).sum()), tasks)
    found = crossed_mean(values_ST).difference
    half, rate = (found.high - found.low) / 2, plain.value
    if not 0 < half < math.inf or not 0 < rate < 1:
        return plain
    share = half**2 / (rate * (1 - rate))  # z^2 / count in Wilson's formula
    centre = (rate + share / 2) / (1 + share)
    spread = math.sqrt(share * rate * (1 - rate) + share**2 / 4) / (1 + share)
    return Estimate(rate, max(0.0, centre - spread), min(1.0, centre + spread), tasks)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, which control the probability of any false finding among ALL.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = highest
    return adjusted


def paired(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Mean of second minus first, task by task, with the paired t interval and test."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    difference = mean(gaps)
    if len(gaps) == 1:
        return Difference(difference, 1.0)
    return _tested(difference, math.sqrt(_variance(gaps) / len(gaps)), len(gaps) - 1)


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact sign test on the tasks that differ (McNemar's test). 9 against 1: .0215."""
    total, fewer = better + worse, min(better, worse)
    return min(1.0, 2 * sum(math.comb(total, k) for k in range(fewer + 1)) / (1 << total))


def _need(values: Sequence[float]) -> None:
    if not values:
        raise UserError("a mean needs at least one value")


def _variance(values: Sequence[float]) -> float:
    average = math.fsum(values) / len(values)
    return math.fsum((value - average) ** 2 for value in values) / (len(values) - 1)


def _t_interval(value: float, error: float, freedom: float, count: int) -> Estimate:
    half = float(stdtrit(freedom, _UPPER)) * error
    return Estimate(value, value - half, value + half, count)


def _tested(found: Estimate, error: float, freedom: float) -> Difference:
    """A mean difference with the p-value of Student's test against 0."""
    if error == 0:
        return Difference(found, 1.0 if found.value == 0 else 0.0)
    return Difference(found, min(1.0, 2 * float(stdtr(freedom, -abs(found.value) / error))))
