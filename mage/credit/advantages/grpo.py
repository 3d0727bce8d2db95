"""GRPO: the return of a meta-episode's first turn, normalised over the group."""

from collections.abc import Sequence

from mage.credit.advantages.base import LeaveOneOut, Normalise, against_others, by_key
from mage.types import Credit, Return


def estimate(
    returns: Sequence[Return],
    *,
    normalise: Normalise = "mean_std",
    leave_one_out: LeaveOneOut = False,
) -> list[Credit]:
    """Every turn and reflection of a member gets the advantage of the member."""
    advantage: dict[tuple[int, int], float] = {}
    for items in by_key(returns, lambda item: item.where.group).values():
        scores = {
            item.where.member: item.episode_value for item in items if item.where.episode == 0
        }
        for member, value in against_others(scores, leave_one_out, normalise).items():
            advantage[(items[0].where.group, member)] = value
    found = []
    for item in returns:
        value = advantage[(item.where.group, item.where.member)]
        found.append(Credit(item, value, (("meta_episode", value),)))
    return found
