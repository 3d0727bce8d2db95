"""GRPO: the return of a meta-episode's first turn, normalised over the group.

If an episode ends before the agent moves, the first turn is in a later one.
"""

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
    advantages = {}
    for group, items in by_key(returns, lambda item: item.where.group).items():
        values = {
            member: min(own, key=lambda item: item.where.episode).episode_value
            for member, own in by_key(items, lambda item: item.where.member).items()
        }
        advantages[group] = against_others(values, leave_one_out, normalise)
    return [
        Credit.of(item, meta_episode=advantages[item.where.group][item.where.member])
        for item in returns
    ]
