"""Returns: what followed a turn, within its episode and beyond it (method: MAGE eq. 5-7, LaMer).

With R_n the task reward of episode n, the reward at an episode's last turn is

    differential  R_n - R_{n-1}, R_0 = 0      (MAGE)        cumulative  R_n   (LaMer)
    single        R_n, nothing beyond it                    final       w_n R_n, undiscounted beyond it (ours)

and  G_{n,t} = g_step^(T_n - t) (r_n + g_traj G_{n+1,1})                      propagation "code"
     G_{n,t} = g_step^(T_n - t) r_n + sum_{m>n} g_traj^(m-n) g_{m,1}          propagation "paper", g without later episodes

A reply's own cost (illegal, too long) is a reward at its turn. A reflection gets the return of the next episode's first turn.
Worked: three turns an episode, discounts .95/.6, lost then won, differential: .75 .79 .83 | reflection 18.05 | 18.05 19 20.
"""

from collections.abc import Sequence
from typing import Literal

from mage.types import MetaEpisode, Return, Turn, Where

ReturnKind = Literal["differential", "cumulative", "single", "final"]
Propagation = Literal["code", "paper"]


def compute_returns(
    meta: MetaEpisode,
    *,
    kind: ReturnKind = "differential",
    step_discount: float = 0.95,
    episode_discount: float = 0.6,
    propagation: Propagation = "code",
    weights: Sequence[float] = (),
) -> list[Return]:
    """The returns of every reflection and turn of a meta-episode, in the order they were made."""
    rewards = meta_rewards([episode.reward for episode in meta.episodes], kind, weights)
    across = {"single": 0.0, "final": 1.0}.get(kind, episode_discount)
    values = _turn_values(meta, rewards, step_discount, across, propagation)
    found: list[Return] = []
    for number, (episode, values_T) in enumerate(zip(meta.episodes, values, strict=True)):
        place = (meta.group, meta.member, number)
        first = values_T[0] if values_T else rewards[number]
        if episode.reflection is not None:
            value = first + episode.reflection.penalty
            found.append(
                _return(
                    episode.reflection,
                    Where(*place, -1, meta.task.opponent),
                    value,
                    first,
                    episode.reward,
                )
            )
        for index, (turn, value) in enumerate(zip(episode.turns, values_T, strict=True)):
            found.append(
                _return(
                    turn, Where(*place, index, meta.task.opponent), value, first, episode.reward
                )
            )
    return found


def meta_rewards(
    rewards: Sequence[float], kind: ReturnKind, weights: Sequence[float] = ()
) -> list[float]:
    """r_n for every episode.

    >>> meta_rewards([-10, 10], "differential")
    [-10, 20]
    """
    if kind == "differential":
        return [reward - before for reward, before in zip(rewards, [0, *rewards[:-1]], strict=True)]
    if kind == "final":
        return [weight * reward for weight, reward in zip(weights, rewards, strict=False)]
    return list(rewards)


def _turn_values(
    meta: MetaEpisode, rewards: list[float], step: float, across: float, propagation: Propagation
) -> list[list[float]]:
    """G_{n,t}, from the last episode back to the first."""
    beyond, values = 0.0, []
    for episode, reward in zip(reversed(meta.episodes), reversed(rewards), strict=True):
        inside = reward + (beyond if propagation == "code" else 0.0)
        own = _discount([turn.penalty for turn in episode.turns], inside, step)
        first = own[0] if own else inside
        values.append(own if propagation == "code" else [value + beyond for value in own])
        beyond = across * (first if propagation == "code" else first + beyond)
    return values[::-1]


def _discount(costs: list[float], last: float, step: float) -> list[float]:
    values: list[float] = []
    ahead = last
    for cost in reversed(costs):
        ahead = ahead + cost
        values.append(ahead)
        ahead *= step
    return values[::-1]


def _return(
    turn: Turn, where: Where, value: float, episode_value: float, episode_reward: float
) -> Return:
    return Return(
        turn=turn,
        where=where,
        value=value,
        episode_value=episode_value,
        episode_reward=episode_reward,
    )
