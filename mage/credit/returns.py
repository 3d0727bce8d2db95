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

Example: three turns per episode, discounts .95/.6, lost (R_1 = -10) then won (R_2 = 10),
differential: .75 .79 .83 | reflection 18.05 | 18.05 19 20.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from mage.types import Episode, MetaEpisode, Return

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
    """The returns of every reflection and turn of a meta-episode, in order of play.

    With `own_difference = False` the returns of episode n itself, its turns and the reflection
    before it, do not have - R_{n-1}: it is known before they begin, so it says nothing about them
    and is only noise. Returns of earlier episodes are the same as before.
    """
    assert weights or kind != "final", "a recipe with final returns has weights"
    task_rewards = [episode.reward for episode in meta.episodes]
    rewards = meta_rewards(task_rewards, kind, weights or ())
    across = _episode_discount(kind, episode_discount)
    found: list[list[Return]] = []  # of every episode, the last one first
    later = 0.0  # discounted return of the next episode
    for n in reversed(range(len(rewards))):
        weight = weights[n] if weights and kind == "final" else 1.0
        gain_scale = weight if per_turn else None
        turn_rewards, last = _place_rewards(meta.episodes[n], rewards[n], gain_scale, penalties)
        given = (turn_rewards, last, later, step_discount, propagation)
        values, start = _turn_values(*given)
        later = across * start  # earlier episodes are credited with the full r_n
        if n and kind == "differential" and not own_difference:
            values, start = _turn_values(*given, known=task_rewards[n - 1])
        found.append(_episode_returns(meta, n, values, start, rewards[n], penalties))
    returns = [item for own in reversed(found) for item in own]
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
        # Not strict: a meta-episode that stops early has fewer episodes than there are weights.
        return [weight * reward for weight, reward in zip(weights, rewards, strict=False)]
    return list(rewards)


def _episode_discount(kind: ReturnKind, given: float) -> float:
    """What the return of the next episode is multiplied with."""
    return {"single": 0.0, "final": 1.0, "balanced": 1.0}.get(kind, given)


def _balance(item: Return, episodes: int) -> Return:
    """Divided by the square root of the number of episodes that remain, this one included.

    The objective is the plain sum; the noise is about that of one episode (docs/exploration.md).
    """
    scale = (episodes - item.where.episode) ** -0.5
    return replace(item, value=scale * item.value, episode_value=scale * item.episode_value)


def _place_rewards(
    episode: Episode, reward: float, scale: float | None, penalties: bool
) -> tuple[list[float], float]:
    """The reward of each turn, and what is added at the last turn.

    A turn has its penalty. With a `scale` it also has `scale` times what the environment scored
    after it (`Episode.gains`), and the last turn has the rest of r_n: the reward before the first
    turn, which is mostly 0, and -R_{n-1} if differential. Without a scale the last turn has r_n.
    """
    turn_rewards = [turn.penalty if penalties else 0.0 for turn in episode.turns]
    if scale is None or not episode.gains:
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
) -> tuple[list[float], float]:
    """G_{n,t} of the turns of an episode, and the return of the episode from its start.

    `later` comes from the episodes after it. `known` is added at the last turn.
    """
    if propagation == "code":
        values = _discount(turn_rewards, last + later + known, step)
    else:
        values = [value + later for value in _discount(turn_rewards, last + known, step)]
    return values, values[0] if values else last + later + known


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
    meta: MetaEpisode, n: int, values: list[float], start: float, reward: float, penalties: bool
) -> list[Return]:
    """The returns of the reflection before an episode and of its turns.

    `start` is the return from the start of the episode, which the reflection gets.
    """
    episode = meta.episodes[n]
    rows = list(zip(episode.turns, values, range(len(values)), strict=True))
    if episode.reflection is not None:
        penalty = episode.reflection.penalty if penalties else 0.0
        rows.insert(0, (episode.reflection, start + penalty, -1))
    return [
        Return(
            turn=turn,
            where=meta.where(n, index),
            value=value,
            episode_value=start,
            episode_reward=episode.reward,
            meta_reward=reward,
        )
        for turn, value, index in rows
    ]
