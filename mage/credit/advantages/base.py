"""The estimator contract: `estimate(returns, *, options...) -> credits`, one file per estimator.

Baselines are means over trajectories, not over rows, so long and short episodes have equal weight.
With leave-one-out, a member is compared with the OTHER members only. This keeps the gradient
unbiased.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import fmean, pstdev, stdev
from typing import Annotated, Literal, Protocol

from pydantic import Field

from mage.types import Credit, Return

Normalise = Annotated[
    Literal["mean", "mean_std"],
    Field(description="subtract the mean; mean_std also divides by the standard deviation"),
]
LeaveOneOut = Annotated[
    bool, Field(description="the baseline of a member is the mean of the other members")
]


class Estimator(Protocol):
    """An estimator whose options are already set by the recipe."""

    def __call__(self, returns: Sequence[Return]) -> list[Credit]: ...


def by_key(
    items: Iterable[Return], key: Callable[[Return], Hashable]
) -> dict[Hashable, list[Return]]:
    """Items in groups, in order of their first appearance."""
    groups: dict[Hashable, list[Return]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def against_others(
    values: dict[int, float], leave_one_out: bool, normalise: Normalise
) -> dict[int, float]:
    """Each member's value minus the mean of the others (or of all); 0 for a single member.

    >>> against_others({0: 1.0, 1: 3.0}, True, "mean")
    {0: -2.0, 1: 2.0}
    """
    if len(values) < 2:
        return dict.fromkeys(values, 0.0)
    total, count = sum(values.values()), len(values)
    scale = standard_deviation(list(values.values())) if normalise == "mean_std" else 1.0
    if leave_one_out:
        return {
            member: (value - (total - value) / (count - 1)) / scale
            for member, value in values.items()
        }
    return {member: (value - total / count) / scale for member, value in values.items()}


def member_means(items: Iterable[Return], value: Callable[[Return], float]) -> dict[int, float]:
    """One number per member: the mean over its items."""
    found: dict[int, list[float]] = defaultdict(list)
    for item in items:
        found[item.where.member].append(value(item))
    return {member: fmean(values) for member, values in found.items()}


def standard_deviation(values: list[float], *, of_sample: bool = False) -> float:
    """Standard deviation plus 1e-6, so that equal values give advantages of zero.

    `of_sample` divides by n - 1 and not by n. The deviation of a single value is then 0.
    """
    if of_sample:
        return (stdev(values) if len(values) > 1 else 0.0) + 1e-6
    return pstdev(values) + 1e-6
