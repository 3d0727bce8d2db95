"""Returns: discounted rewards within and across episodes (MAGE eq. 5-7, LaMer).

R_n is the task reward of episode n. The meta-reward r_n at the last turn of episode n is

    differential  R_n - R_{n-1}, R_0 = 0 (MAGE)     cumulative  R_n (LaMer)
    single        R_n, no later episodes            final       w_n R_n, episode discount 1
    balanced      R_n, episode discount 1

and the return of turn t is

    "code"   G_{n,t} = g_step^(T_n - t) (r_n + g_traj G_{n+1,1})
    "paper"  G_{n,t} = g_step^(T_n - t) r_n + sum_{m>n} g_traj^(m-n) g_{m,1}

where g_{m,1} is the return of the first turn of episode m without later episodes. A penalty of a
reply is a reward at its turn; with `penalties = False` it is no part of the returns, as published.
A reflection gets the return of the first turn of the next episode.

`balanced` then divides the returns of an episode by the square root of the number of episodes that
remain, this one included: the objective is the plain sum, the noise is about that of one episode
(docs/exploration.md).

With `own_difference = False` the returns of the turns of episode n itself do not have - R_{n-1}: it
is known before the episode begins, so it says nothing about these turns and is only noise. Returns
of earlier episodes are the same as before.

With `per_turn`, what an environment scores during an episode (`Episode.gains`, times w_n for final)
is a reward at the turn before it, and only the rest of r_n is at the last turn.

Example: three turns per episode, discounts .95/.6, lost then won, differential:
.75 .79 .83 | reflection 18.05 | 18.05 19 20.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from mage.types import Episode, MetaEpisode, Return, TurnRef

ReturnKind = Literal["differential", "cumulative", "single", "final", "balanced"]
Propagation = Literal["code", "paper"]


def compute_returns(
    meta: MetaEpisode,
    *,
    kind: ReturnKind = "differential",
    step_discount: float = 0.95,
    episode_discount: float = 0.6,
    propagation: Propagation = "code",
    weights: Sequence[float] | None = None,
    penalties: bool = True,
    per_turn: bool = False,
    own_difference: bool = True,
) -> list[Return]:
    """The returns of every reflection and turn of a meta-episode, in order of play."""
    task_rewards = [episode.reward for episode in meta.episodes]
    rewards = meta_rewards(task_rewards, kind, weights or ())
    across = {"single": 0.0, "final": 1.0, "balanced": 1.0}.get(kind, episode_discount)
    scales = [1.0] * len(rewards) if kind != "final" else weights or ()
    values: list[list[float]] = []  # of every episode, the last one first
    later = 0.0  # discounted return of the next episode's first turn
    for n in reversed(range(len(rewards))):
        turn_rewards, last = _place_rewards(
            meta.episodes[n], rewards[n], scales[n] if per_turn else 0.0, penalties
        )
        turn_values = partial(_turn_values, turn_rewards, last, later, step_discount, propagation)
        own = turn_values()
        later = across * (own[0] if own else last + later)
        if kind == "differential" and not own_difference and n:
            own = turn_values(known=task_rewards[n - 1])
        values.append(own)
    returns = [
        item
        for n, own in enumerate(reversed(values))
        for item in _episode_returns(meta, n, own, rewards[n], penalties)
    ]
    return [_balance(item, len(rewards)) for item in returns] if kind == "balanced" else returns


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


def _balance(item: Return, episodes: int) -> Return:
    """Divided by the square root of the number of episodes that remain, this one included."""
    scale = (episodes - item.where.episode) ** -0.5
    return replace(item, value=scale * item.value, episode_value=scale * item.episode_value)


def _place_rewards(
    episode: Episode, reward: float, scale: float, penalties: bool
) -> tuple[list[float], float]:
    """The reward of each turn, and what is added at the last turn.

    A turn has its penalty and `scale` times what was scored after it (`scale = 0`: not per turn).
    The last turn has r_n, or the rest of it: 0, or -R_{n-1} if differential.
    """
    turn_rewards = [turn.penalty if penalties else 0.0 for turn in episode.turns]
    if not scale or not episode.gains:
        return turn_rewards, reward
    gains = [scale * gain for gain in episode.gains]
    turn_rewards = [own + gain for own, gain in zip(turn_rewards, gains, strict=True)]
    return turn_rewards, reward - scale * sum(episode.gains)


def _turn_values(
    turn_rewards: list[float],
    last: float,
    later: float,
    step: float,
    propagation: Propagation,
    known: float = 0.0,
) -> list[float]:
    """G_{n,t} of the turns of an episode, with `later` from the episodes after it."""
    if propagation == "code":
        return _discount(turn_rewards, last + later + known, step)
    return [value + later for value in _discount(turn_rewards, last + known, step)]


def _discount(rewards: list[float], last: float, step: float) -> list[float]:
    """Discounted sums of the rewards from each turn on, with `last` added at the last turn."""
    values: list[float] = []
    ahead = last
    for reward in reversed(rewards):
        ahead = ahead + reward
        values.append(ahead)
        ahead *= step
    return values[::-1]


def _episode_returns(
    meta: MetaEpisode, number: int, values: list[float], reward: float, penalties: bool
) -> list[Return]:
    """The returns of the reflection before an episode and of its turns."""
    episode = meta.episodes[number]
    first = values[0] if values else reward
    rows = list(zip(episode.turns, values, range(len(values)), strict=True))
    role = f"{meta.task.environment}/{meta.task.seat}"
    if episode.reflection is not None:
        penalty = episode.reflection.penalty if penalties else 0.0
        rows.insert(0, (episode.reflection, first + penalty, -1))
    return [
        Return(
            turn=turn,
            where=TurnRef(meta.group, meta.member, number, index, meta.task.opponent, role),
            value=value,
            episode_value=first,
            episode_reward=episode.reward,
            meta_reward=reward,
        )
        for turn, value, index in rows
    ]
