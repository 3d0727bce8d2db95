"""Returns: discounted rewards within and across episodes (MAGE eq. 5-7, LaMer).

R_n is the task reward of episode n. The meta-reward r_n at the last turn of episode n is

    differential  R_n - R_{n-1}, R_0 = 0 (MAGE)     cumulative  R_n (LaMer)
    single        R_n, no later episodes            final       w_n R_n, episode discount 1

and the return of turn t is

    "code"   G_{n,t} = g_step^(T_n - t) (r_n + g_traj G_{n+1,1})
    "paper"  G_{n,t} = g_step^(T_n - t) r_n + sum_{m>n} g_traj^(m-n) g_{m,1}

where g_{m,1} is the return of the first turn of episode m without later episodes. A penalty of a
reply is a reward at its turn; with `penalties = False` it is no part of the returns, as published.
A reflection gets the return of the first turn of the next episode.

With `own_difference = False` the returns of the turns of episode n itself do not have - R_{n-1}: it
is known before the episode begins, so it says nothing about these turns and is only noise. Returns
of earlier episodes are the same as before.

With `per_turn`, what an environment scores during an episode (`Episode.gains`, times w_n for final)
is a reward at the turn before it, and only the rest of r_n is at the last turn.

Example: three turns per episode, discounts .95/.6, lost then won, differential:
.75 .79 .83 | reflection 18.05 | 18.05 19 20.
"""

from collections.abc import Sequence
from typing import Literal

from mage.types import Episode, MetaEpisode, Return, TurnRef

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
    penalties: bool = True,
    per_turn: bool = False,
    own_difference: bool = True,
) -> list[Return]:
    """The returns of every reflection and turn of a meta-episode, in order of play."""
    rewards = meta_rewards([episode.reward for episode in meta.episodes], kind, weights)
    across = {"single": 0.0, "final": 1.0}.get(kind, episode_discount)
    counted = 1.0 if penalties else 0.0
    scales = list(weights) if kind == "final" else [1.0] * len(rewards)
    scales = scales if per_turn else [0.0] * len(rewards)
    pairs = list(zip(meta.episodes, scales, strict=False))
    turn_rewards = [_turn_rewards(episode, counted, scale) for episode, scale in pairs]
    # With `per_turn`, the rest of r_n is at the last turn: 0, or -R_{n-1} if differential.
    last_rewards = [
        reward - scale * sum(episode.gains) if scale else reward
        for reward, (episode, scale) in zip(rewards, pairs, strict=True)
    ]
    known = [0.0] * len(rewards)
    if kind == "differential" and not own_difference:
        known = [0.0, *(episode.reward for episode in meta.episodes[:-1])]
    values = _turn_values(last_rewards, known, turn_rewards, step_discount, across, propagation)
    return [
        found
        for number, own in enumerate(values)
        for found in _episode_returns(meta, number, own, rewards[number], counted)
    ]


def _episode_returns(
    meta: MetaEpisode, number: int, values: list[float], reward: float, counted: float
) -> list[Return]:
    """The returns of the reflection before an episode and of its turns."""
    episode = meta.episodes[number]
    first = values[0] if values else reward
    rows = list(zip(episode.turns, values, range(len(values)), strict=True))
    if episode.reflection is not None:
        rows.insert(0, (episode.reflection, first + counted * episode.reflection.penalty, -1))
    return [
        Return(
            turn=turn,
            where=TurnRef(meta.group, meta.member, number, index, meta.task.opponent),
            value=value,
            episode_value=first,
            episode_reward=episode.reward,
            meta_reward=reward,
        )
        for turn, value, index in rows
    ]


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


def _turn_rewards(episode: Episode, counted: float, scale: float) -> list[float]:
    """The reward of each turn: its penalty, and what was scored after it."""
    penalties = [counted * turn.penalty for turn in episode.turns]
    if not scale or not episode.gains:
        return penalties
    return [p + scale * gain for p, gain in zip(penalties, episode.gains, strict=True)]


def _turn_values(
    rewards: list[float],
    known: list[float],
    turn_rewards: list[list[float]],
    step: float,
    across: float,
    propagation: Propagation,
) -> list[list[float]]:
    """G_{n,t}, from the last episode back to the first.

    `known` is added to the returns of an episode and not passed to earlier episodes.
    """
    beyond, values = 0.0, []
    for reward, before, own_rewards in zip(
        reversed(rewards), reversed(known), reversed(turn_rewards), strict=True
    ):
        inside = reward + (beyond if propagation == "code" else 0.0)
        own = _discount(own_rewards, inside + before, step)
        passed = _discount(own_rewards, inside, step) if before else own
        first = passed[0] if passed else inside
        values.append(own if propagation == "code" else [value + beyond for value in own])
        beyond = across * (first if propagation == "code" else first + beyond)
    return values[::-1]


def _discount(rewards: list[float], last: float, step: float) -> list[float]:
    """Discounted sums of the rewards from each turn on, with `last` added at the last turn."""
    values: list[float] = []
    ahead = last
    for reward in reversed(rewards):
        ahead = ahead + reward
        values.append(ahead)
        ahead *= step
    return values[::-1]
