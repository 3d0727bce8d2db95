"""GiGPO over meta-episodes (arXiv 2505.10978): A = A_episode + w A_step, relative to the group.

`episode_advantage` compares an episode with the same episode of the other members, `step_advantage`
a turn with the turns of the other members that have the same anchor. `published.py` does the same
as the published code of MAGE; docs/credit.md lists the differences.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from mage.credit.advantages.base import by_key, compare, member_mean
from mage.types import Credit, Return

Anchor = Annotated[
    Literal["global", "local"],
    Field(description="global = states of all episodes are compared; local = of one position"),
]
Grouping = Annotated[
    Literal["stationary", "mixed"],
    Field(description="stationary = opponents have separate baselines; mixed = one per group"),
]
StepWeight = Annotated[float, Field(description="factor on the step advantage (w)")]
EpisodeWeight = Annotated[float, Field(description="factor on the episode advantage of moves")]
# A reflection has many tokens and little influence on the outcome until the policy uses it.
ReflectionWeight = Annotated[
    float, Field(description="factor on the episode advantage of reflections")
]


def estimate(
    returns: Sequence[Return],
    *,
    anchor: Anchor = "global",
    grouping: Grouping = "stationary",
    step_weight: StepWeight = 1.0,
    episode_weight: EpisodeWeight = 1.0,
    reflection_weight: ReflectionWeight = 1.0,
) -> list[Credit]:
    """Credits in the order of the returns."""
    opponents = [item.where.opponent if grouping == "stationary" else "" for item in returns]
    groups = [(item.where.group, one) for item, one in zip(returns, opponents, strict=True)]
    credits: dict[int, Credit] = {}
    for rows in by_key(range(len(returns)), groups.__getitem__).values():
        group = [returns[row] for row in rows]
        parts = zip(episode_advantage(group), step_advantage(group, anchor), strict=True)
        for row, item, (episode, step) in zip(rows, group, parts, strict=True):
            weight = reflection_weight if item.where.index < 0 else episode_weight
            credits[row] = Credit.of(item, episode=weight * episode, step=step_weight * step)
    return [credits[row] for row in range(len(returns))]


def episode_advantage(returns: Sequence[Return]) -> list[float]:
    """A_episode of the rows of a group: G_{n,1} against episode n of the other members."""
    return compare(
        [(item.where.episode, item.where.member, item.episode_value) for item in returns]
    )


def step_advantage(returns: Sequence[Return], anchor: Anchor = "global") -> list[float]:
    """A_step of the rows of a group: G_{n,t} against turns of others with the same anchor.

    `global` pools the turns of all episodes (MAGE), `local` those of one episode. Returns of
    different episodes have different levels, so they are centred first. Reflections get 0.
    """
    episodes = by_key(returns, lambda item: item.where.episode)
    level = {number: member_mean(items) for number, items in episodes.items()}
    rows = []
    for item in returns:
        where = item.where
        key = (item.turn.anchor, where.episode if anchor == "local" else None)
        rows.append(
            (key if where.index >= 0 else None, where.member, item.value - level[where.episode])
        )
    return compare(rows)
