"""Intervals and paired comparisons. The unit is the TASK: members of one task are averaged first.

All intervals are 95 % by default. Scores have the plain t interval by default. Panels are
stratified, so it is a little too wide; `stratified_mean` takes the strata into account.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

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


def crossed_bootstrap(
    values_ST: np.ndarray, *, seed: int, draws: int = 4_000, level: float = 0.95
) -> Difference:
    """The mean over training seeds (rows) and tasks (columns); both are resampled.

    n - 1 of n seeds are drawn, and likewise of tasks. The variance of such a mean is s^2 / n; n
    draws would give (n - 1) / n of it, a fifth too little with five seeds. A single seed is not
    resampled. `p_value` is the share of draws that are at least as far from the mean as zero is;
    its minimum is 1 / (draws + 1).
    """
    if values_ST.size == 0:
        raise UserError("a mean needs at least one value")
    seeds, tasks = values_ST.shape
    average = float(values_ST.mean())
    if tasks == 1:
        return Difference(Estimate(average, -math.inf, math.inf, 1), 1.0)
    by_seed, by_task = _weights(seeds, draws, seed), _weights(tasks, draws, seed + 1)
    found = np.einsum("bt,bt->b", by_seed @ values_ST.astype(np.float32), by_task)
    low, high = np.quantile(found, [0.5 - level / 2, 0.5 + level / 2])
    farther = int((np.abs(found - average) >= abs(average)).sum())
    return Difference(
        Estimate(average, float(low), float(high), tasks), (farther + 1) / (draws + 1)
    )


@lru_cache(maxsize=8)
def _weights(count: int, draws: int, seed: int) -> np.ndarray:
    """Resampling weights, one row per draw: count - 1 of `count` units with replacement."""
    if count == 1:
        return np.ones((draws, 1), np.float32)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(count, size=(draws, count - 1)) + count * np.arange(draws)[:, None]
    return (
        np.bincount(chosen.ravel(), minlength=count * draws).reshape(draws, count) / (count - 1)
    ).astype(np.float32)


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


def _t_interval(value: float, error: float, freedom: int, count: int, level: float) -> Estimate:
    half = float(stdtrit(freedom, 0.5 + level / 2)) * error
    return Estimate(value, value - half, value + half, count)
