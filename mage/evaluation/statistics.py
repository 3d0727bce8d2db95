"""Intervals and paired comparisons. The unit is the TASK: members of one task are averaged first.

All intervals are 95 % by default. Scores have the plain t interval by default. Panels are
stratified, so it is a little too wide; `stratified_mean` takes the strata into account.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from mage.config.errors import UserError


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


def wilson(successes: float, count: int, level: float = 0.95) -> Estimate:
    """Wilson's score interval of a rate; valid at 0 and 1. 8 of 10 give .49 to .943.

    `successes` may be a sum of per-task means. With several members a task, `count` is still the
    number of tasks, which is the conservative choice.
    """
    if count < 1 or not -1e-9 <= successes <= count + 1e-9:
        raise UserError(
            f"a rate needs at least one task and at most one success for each, "
            f"not {successes} of {count}"
        )
    rate, z = successes / count, float(ndtri(0.5 + level / 2))
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z
        / (1 + z * z / count)
        * math.sqrt(max(0.0, rate * (1 - rate)) / count + z * z / (4 * count * count))
    )
    return Estimate(
        rate, max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half)), count
    )


def mean(values: Sequence[float], level: float = 0.95) -> Estimate:
    """The mean over tasks with Student's t interval."""
    _need(values)
    average = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(average, -math.inf, math.inf, 1)
    error = math.sqrt(_variance(values) / len(values))
    return _t_interval(average, error, len(values) - 1, len(values), level)


def stratified_mean(
    values: Sequence[float], strata: Sequence[Hashable], level: float = 0.95
) -> Estimate:
    """The same mean; its interval comes from the variance WITHIN strata.

    A panel fixes the number of tasks of each (opponent, seat, deal).
    error^2 = sum_h (n_h / n)^2 s_h^2 / n_h. Strata of one task have no variance of their own and
    are pooled into one, which is conservative. Without a stratum of two or more tasks it is the
    plain interval.
    """
    _need(values)
    groups: dict[Hashable, list[float]] = {}
    for value, stratum in zip(values, strata, strict=True):
        groups.setdefault(stratum, []).append(value)
    single = [group[0] for group in groups.values() if len(group) == 1]
    several = [group for group in groups.values() if len(group) > 1]
    if len(single) == 1 and several:
        several[-1] = [*several[-1], single.pop()]
    blocks = [*several, *([single] if single else [])]
    if len(values) == 1:
        return mean(values, level)
    error = math.sqrt(sum(len(block) * _variance(block) for block in blocks)) / len(values)
    return _t_interval(
        math.fsum(values) / len(values), error, len(values) - len(blocks), len(values), level
    )


def bootstrap(
    values: Sequence[float],
    *,
    seed: int,
    draws: int = 2_000,
    level: float = 0.95,
    statistic: Callable[[np.ndarray], float | np.floating] = np.mean,
) -> Estimate:
    """Percentile bootstrap over tasks, for any statistic of the per-task values."""
    _need(values)
    data, rng = np.asarray(values, dtype=float), np.random.default_rng(seed)
    found = [float(statistic(data[rng.integers(len(data), size=len(data))])) for _ in range(draws)]
    low, high = np.quantile(found, [0.5 - level / 2, 0.5 + level / 2])
    return Estimate(float(statistic(data)), float(low), float(high), len(data))


def crossed_mean(values_ST: np.ndarray, level: float = 0.95) -> Difference:
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
    found = _t_interval(average, error, freedom, tasks, level)
    if error == 0:
        return Difference(found, 1.0 if average == 0 else 0.0)
    return Difference(found, min(1.0, 2 * float(stdtr(freedom, -abs(average) / error))))


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


def crossed_rate(values_ST: np.ndarray, level: float = 0.95) -> Estimate:
    """A rate over training seeds (rows) and tasks (columns): inside 0 and 1, also near them.

    It is Wilson's interval of the number of independent tasks that would give the interval of
    `crossed_mean`. If all values are equal, it is Wilson's interval of the tasks.
    """
    tasks = values_ST.shape[1]
    plain = wilson(float(values_ST.mean(axis=0).sum()), tasks, level)
    found = crossed_mean(values_ST, level).difference
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


def paired(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Difference:
    """Mean of second minus first, task by task, with the paired t interval and test."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    difference = mean(gaps, level)
    if len(gaps) == 1:
        return Difference(difference, 1.0)
    error = math.sqrt(_variance(gaps) / len(gaps))
    if error == 0:
        return Difference(difference, 1.0 if difference.value == 0 else 0.0)
    return Difference(
        difference, min(1.0, 2 * float(stdtr(len(gaps) - 1, -abs(difference.value) / error)))
    )


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


def _t_interval(value: float, error: float, freedom: float, count: int, level: float) -> Estimate:
    half = float(stdtrit(freedom, 0.5 + level / 2)) * error
    return Estimate(value, value - half, value + half, count)
