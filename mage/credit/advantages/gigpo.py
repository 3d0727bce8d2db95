"""GiGPO over meta-episodes: A = A_episode + w A_step, both against the same group.

A_episode compares an episode with the same episode position of the other members. A_step compares a turn with turns of the
other members that faced the same anchor (the plain state): `global` pools all episodes (MAGE), `local` one position.
Pooling episodes is only fair between returns of one level, so returns are centred per episode position first; the
published code does not, counts rows instead of trajectories, includes the member itself, and scores reflections 0:
each is a flag here (`as_published` sets them), so its effect can be measured.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from statistics import fmean
from typing import Literal

from mage.credit.advantages.base import (
    Normalise,
    _standard_deviation,
    against_others,
    by_key,
    member_means,
)
from mage.types import Credit, Return


def estimate(
    returns: Sequence[Return],
    *,
    anchor: Literal["global", "local"] = "global",
    grouping: Literal["stationary", "mixed"] = "stationary",
    normalise: Normalise = "mean",
    leave_one_out: bool = True,
    step_weight: float = 1.0,
    reflection_weight: float = 1.0,
    episode_score: Literal["return", "reward"] = "return",
    per_position: bool = True,
    per_trajectory: bool = True,
    reflections_score_zero: bool = False,
) -> list[Credit]:
    """Credits in the order of the returns.

    reflection_weight scales what reflections are credited with: a reflection has many tokens and little to do with the
                      outcome until the policy reads it, so its noise can drown the moves
    grouping          stationary: opponents are never mixed; mixed: the whole group is one (ablation)
    episode_score     return: G_{n,1}, what the method optimises; reward: R_n, as published
    per_position      compare equal episode positions (False: as published)
    per_trajectory    baselines are means over trajectories (False: over rows, as published)
    """

    def group(item: Return) -> Hashable:
        return (
            (item.where.group, item.where.opponent)
            if grouping == "stationary"
            else item.where.group
        )

    def score(item: Return) -> float:
        if reflections_score_zero and item.where.index < 0:
            return 0.0
        return item.episode_value if episode_score == "return" else item.episode_reward

    level = _levels(returns, group) if per_position else {}
    episode_part: dict[int, float] = {}
    for items in by_key(
        returns, lambda item: (group(item), item.where.episode if per_position else None)
    ).values():
        compared = _compare(
            items, [score(item) for item in items], leave_one_out, per_trajectory, normalise
        )
        episode_part |= {
            id(item): compared[id(item)] * (reflection_weight if item.where.index < 0 else 1.0)
            for item in items
        }
    step_part: dict[int, float] = {}
    plays = [item for item in returns if item.where.index >= 0 or reflections_score_zero]
    for items in by_key(
        plays,
        lambda item: (
            group(item),
            item.turn.anchor,
            item.where.episode if anchor == "local" else None,
        ),
    ).values():
        values = [item.value - level.get((group(item), item.where.episode), 0.0) for item in items]
        step_part |= _compare(items, values, leave_one_out, per_trajectory, normalise)
    return [
        _credit(item, episode_part[id(item)], step_weight * step_part.get(id(item), 0.0))
        for item in returns
    ]


def _levels(
    returns: Sequence[Return], group: Callable[[Return], Hashable]
) -> dict[Hashable, float]:
    """Mean return of each episode position of a group: what pooled episodes are centred by."""
    found = by_key(returns, lambda item: (group(item), item.where.episode))
    return {
        key: fmean(member_means(items, lambda item: item.episode_value).values())
        for key, items in found.items()
    }


def _compare(
    items: list[Return],
    values: list[float],
    leave_one_out: bool,
    per_trajectory: bool,
    normalise: Normalise,
) -> dict[int, float]:
    """Each value against the baseline of its group, by the identity of its return."""
    if not per_trajectory:
        mean, scale = fmean(values), _standard_deviation(values) if normalise == "mean_std" else 1.0
        return {id(item): (value - mean) / scale for item, value in zip(items, values, strict=True)}
    members: dict[int, list[float]] = defaultdict(list)
    for item, value in zip(items, values, strict=True):
        members[item.where.member].append(value)
    means = {member: fmean(own) for member, own in members.items()}
    if len(means) < 2:
        return {id(item): 0.0 for item in items}
    relative = against_others(means, leave_one_out, "mean")
    scale = _standard_deviation(values) if normalise == "mean_std" else 1.0
    return {
        id(item): (value - means[item.where.member] + relative[item.where.member]) / scale
        for item, value in zip(items, values, strict=True)
    }


def _credit(item: Return, episode: float, step: float) -> Credit:
    return Credit(item, episode + step, (("episode", episode), ("step", step)))
