"""Role-conditioned advantage (SPIRAL, arXiv 2506.24119): a running baseline for each role.

A role is a seat of a world. In self-play one policy has all seats, and the first seat may win more
often whatever it does, so each seat has a mean of its own: A = G_{n,t} - b, and after the episode
b <- decay b + (1 - decay) G_{n,1}. As the baseline is taken before its update, it does not depend
on the own episode. Episode positions have different returns, so each has a baseline.

Members of a group are not compared: a group of one member works, and a group whose members all did
equally well still teaches something. The price is that the difficulty of the task stays in the
advantage.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from mage.types import Credit, Return

Decay = Annotated[
    float, Field(ge=0, lt=1, description="share of the baseline that stays after each episode")
]


def estimate(
    returns: Sequence[Return], *, state: dict[str, float], decay: Decay = 0.95
) -> list[Credit]:
    """Credits in the order of the returns; `state` holds the baselines and is changed."""
    before: dict[tuple[int, int, int], float] = {}
    credits = []
    for item in returns:
        where = item.where
        place, key = (where.group, where.member, where.episode), f"{where.role}/{where.episode + 1}"
        if place not in before:
            before[place] = state.get(key, 0.0)
            state[key] = decay * before[place] + (1 - decay) * item.episode_value
        credits.append(Credit.of(item, turn_return=item.value, baseline=0.0 - before[place]))
    return credits
