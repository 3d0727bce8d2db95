"""Ranked: the advantage of a member is its rank in the group, from -1 (worst) to +1 (best).

Ranks do not depend on the size of the rewards. Members with equal returns have equal ranks.
"""

from collections.abc import Sequence

from mage.credit.advantages.base import by_key
from mage.types import Credit, Return


def estimate(returns: Sequence[Return], *, scale: float = 1.0) -> list[Credit]:
    """Every turn of a member gets the rank of the member's first episode return."""
    rank: dict[tuple[int, int], float] = {}
    for items in by_key(returns, lambda item: item.where.group).values():
        group = items[0].where.group
        values = {item.where.member: item.episode_value for item in items if not item.where.episode}
        for member, value in values.items():
            rank[group, member] = scale * _rank(value, list(values.values()))
    credits = []
    for item in returns:
        advantage = rank[item.where.group, item.where.member]
        credits.append(Credit(item, advantage, (("rank", advantage),)))
    return credits


def _rank(value: float, values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    below, above = (sum(one < value for one in values), sum(one > value for one in values))
    return (below - above) / (len(values) - 1)
