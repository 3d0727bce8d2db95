"""The estimator contract: `estimate(returns, *, options...) -> credits`, one file per estimator.

Baselines are means over trajectories, not over rows, so long and short episodes have equal weight.
A member is compared with the OTHER members only, which keeps the gradient unbiased (leave-one-out,
arXiv 2402.14740).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, pstdev
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field

from mage.config.errors import UserError
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


def estimate_all(estimate: Estimator, returns: Sequence[Return]) -> list[Credit]:
    """The credits of an estimator, checked: one for each return, with a finite advantage."""
    found: Any = estimate(returns)
    if fault := _fault(found, returns):
        function = estimate.func if isinstance(estimate, partial) else estimate
        name = getattr(function, "__qualname__", type(function).__name__)
        raise UserError(
            f"the estimator {function.__module__}.{name} returned {fault}: it must return a list "
            f"with one Credit for each of the {len(returns)} returns, in their order"
        )
    return list(found)


def _fault(found: Any, returns: Sequence[Return]) -> str | None:
    """What is wrong with the result of an estimator."""
    if not isinstance(found, Sequence):
        return f"{found!r:.60}"
    if len(found) != len(returns):
        return f"{len(found)} credits"
    for row, one in enumerate(found):
        if not isinstance(one, Credit) or not isinstance(one.source, Return):
            return f"{one!r:.60} in row {row}, which is no Credit"
    finite = [_is_finite(one.advantage) for one in found]
    if not all(finite):
        row = finite.index(False)
        return f"the advantage {found[row].advantage!r} in row {row}, which is no finite number"
    moved = any(one.source.where is not given.where for one, given in zip(found, returns))
    if moved and {one.source.where for one in found} != {one.where for one in returns}:
        return "two credits for one return and none for another"
    return None


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


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
