"""The estimator contract: `estimate(returns, *, options...) -> credits`, one file per estimator.

Baselines are means over trajectories, not over rows, so long and short episodes have equal weight.
A member is compared with the OTHER members only, which keeps the gradient unbiased (leave-one-out,
arXiv 2402.14740).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Annotated, Literal, Protocol, TypeVar

from pydantic import Field

from mage.types import Credit, Return

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Normalise = Annotated[
    Literal["mean", "mean_std"],
    Field(description="subtract the mean; mean_std also divides by the standard deviation"),
]
LeaveOneOut = Annotated[
    bool, Field(description="the baseline of a member is the mean of the other members")
]
SMALLEST_DEVIATION = 1e-6  # added to deviations, so that equal values give advantages of zero


class Estimator(Protocol):
    """An estimator whose options are already set by the recipe."""

    def __call__(self, returns: Sequence[Return]) -> list[Credit]: ...


def by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items in groups, in order of their first appearance."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def compare(rows: Sequence[tuple[Hashable | None, int, float]]) -> list[float]:
    """Each value against the other members at the same key, in order; 0 if there is no other.

    Rows are (key, member, value). A member counts once, with the mean of its values, however many
    rows it has. A row whose key is None is not compared and gets 0.

    >>> compare([("a", 0, 5.0), ("a", 1, 1.0), ("a", 1, 3.0), ("b", 0, 9.0)])
    [3.0, -4.0, -2.0, 0.0]
    """
    compared = [0.0] * len(rows)
    for key, places in by_key(range(len(rows)), lambda place: rows[place][0]).items():
        values: dict[int, list[float]] = defaultdict(list)
        for place in places:
            values[rows[place][1]].append(rows[place][2])
        if key is None or len(values) < 2:
            continue
        means = {member: fmean(own) for member, own in values.items()}
        relative = against_others(means, leave_one_out=True)
        for place in places:
            _, member, value = rows[place]
            compared[place] = value - means[member] + relative[member]
    return compared


def against_others(
    values: Mapping[int, float], leave_one_out: bool, normalise: Normalise = "mean"
) -> dict[int, float]:
    """Each member's value minus the mean of the others (or of all); 0 for a single member.

    >>> against_others({0: 1.0, 1: 3.0}, True, "mean")
    {0: -2.0, 1: 2.0}
    """
    if len(values) < 2:
        return dict.fromkeys(values, 0.0)
    total, count, scale = sum(values.values()), len(values), 1.0
    if normalise == "mean_std":
        scale = pstdev(values.values()) + SMALLEST_DEVIATION
    if leave_one_out:
        return {
            member: (value - (total - value) / (count - 1)) / scale
            for member, value in values.items()
        }
    return {member: (value - total / count) / scale for member, value in values.items()}


def member_mean(returns: Iterable[Return]) -> float:
    """The mean of G_{n,1} over the members; a member counts once."""
    members = by_key(returns, lambda item: item.where.member)
    return fmean(fmean(item.episode_value for item in own) for own in members.values())
