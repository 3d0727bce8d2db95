"""Which moves agents make in which states, by episode (paper, Appendix E), from stored transcripts.

The rows are the most frequent states over all arms, with the most frequent moves in each state. In
environments whose states hardly repeat over tasks the rows are rare; the two measures still hold:

repeats  share of the turns of an episode whose pair of state and move the SAME task had in the
         episode before. Near 1: a fixed path, which the paper calls a tunnel.
entropy  of the pairs of an episode over all tasks, in nats. Near 0: one pair everywhere.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mage.evaluation.statistics import Estimate, mean
from mage.reproduce.plan import Plan, finished_runs
from mage.types import Episode, MetaEpisode, Split

_STATES, _MOVES = 6, 3
ILLEGAL = "(illegal)"
Count = Counter[tuple[int, str, str]]  # (episode from 0, state, move) -> count


@dataclass(frozen=True, slots=True)
class Habit:
    """The pairs of state and move in one episode (from 1); the first episode repeats nothing."""

    episode: int
    turns: int
    pairs: int
    repeats: Estimate | None
    entropy: float


@dataclass(frozen=True, slots=True)
class ArmChoices:
    """`shares[row, episode]`: share of the move among all moves in the state; nan if none.

    `frequencies[row, episode]`: share of the pair of state and move among all turns.
    """

    label: str
    meta_episodes: int
    shares: np.ndarray
    frequencies: np.ndarray
    habits: tuple[Habit, ...]


@dataclass(frozen=True, slots=True)
class WorldChoices:
    rows: tuple[tuple[str, str], ...]
    arms: tuple[ArmChoices, ...]


def read_choices(metas: dict[str, list[MetaEpisode]]) -> WorldChoices | None:
    """The choices in the meta-episodes of every arm; None if there are none."""
    if not any(metas.values()):
        return None
    totals = {
        label: sum(map(count_choices, found), start=Counter()) for label, found in metas.items()
    }
    rows = _choose_rows(sum(totals.values(), start=Counter()))
    episodes = 1 + max(episode for total in totals.values() for episode, _, _ in total)
    arms = []
    for label, total in totals.items():
        of_state, of_all = shares(total, rows, episodes), frequencies(total, rows, episodes)
        habits = measure_habits(metas[label], total, episodes)
        arms.append(ArmChoices(label, len(metas[label]), of_state, of_all, habits))
    return WorldChoices(rows, tuple(arms))


def stored_metas(plan: Plan, world: str, split: Split, runs: Path) -> dict[str, list[MetaEpisode]]:
    """The stored meta-episodes of the final panel, by label, of all finished runs."""
    there = finished_runs(plan, runs)
    found: dict[str, list[MetaEpisode]] = {}
    for job in plan.jobs:
        if job.world == world and job.name in there:
            name = f"after_{split}"
            if (there[job.name].path / "episodes" / f"{name}.jsonl.gz").is_file():
                found.setdefault(job.arm.label, []).extend(there[job.name].read_episodes_of(name))
    return found


def count_choices(meta: MetaEpisode) -> Count:
    """Counts of moves by episode and state; illegal replies count as `(illegal)`."""
    return Counter(
        (k, *pair) for k, episode in enumerate(meta.episodes) for pair in _pairs_of(episode)
    )


def _pairs_of(episode: Episode) -> list[tuple[str, str]]:
    return [(turn.anchor, str(turn.action) if turn.legal else ILLEGAL) for turn in episode.turns]


def shares(count: Count, rows: Sequence[tuple[str, str]], episodes: int) -> np.ndarray:
    """The share of each move in its state, by episode."""
    met: Counter[tuple[int, str]] = Counter()
    for (episode, state, _), times in count.items():
        met[episode, state] += times

    def share(k: int, state: str, move: str) -> float:
        return count[k, state, move] / met[k, state] if met[k, state] else math.nan

    return np.array([[share(k, *row) for k in range(episodes)] for row in rows])


def frequencies(count: Count, rows: Sequence[tuple[str, str]], episodes: int) -> np.ndarray:
    """The share of each pair among all turns of an episode; 0 if the episode has no turn."""
    turns = _turns(count)
    return np.array([[count[k, *row] / max(1, turns[k]) for k in range(episodes)] for row in rows])


def measure_habits(metas: Sequence[MetaEpisode], count: Count, episodes: int) -> tuple[Habit, ...]:
    """Repeats and entropy by episode."""
    turns = _turns(count)
    return tuple(
        Habit(
            k + 1,
            turns[k],
            sum(episode == k for episode, _, _ in count),
            _repeats(metas, k),
            _entropy([times for (episode, _, _), times in count.items() if episode == k]),
        )
        for k in range(episodes)
    )


def _turns(count: Count) -> Counter[int]:
    turns: Counter[int] = Counter()
    for (episode, _, _), times in count.items():
        turns[episode] += times
    return turns


def _repeats(metas: Sequence[MetaEpisode], k: int) -> Estimate | None:
    """The mean over tasks of the share of turns in episode k that episode k - 1 had as well."""
    found = []
    for meta in metas:
        if 0 < k < len(meta.episodes) and meta.episodes[k].turns:
            before = set(_pairs_of(meta.episodes[k - 1]))
            now = _pairs_of(meta.episodes[k])
            found.append(sum(pair in before for pair in now) / len(now))
    return mean(found) if found else None


def _entropy(times: Sequence[int]) -> float:
    total = sum(times)
    return -math.fsum(one / total * math.log(one / total) for one in times) if total else 0.0


def _choose_rows(total: Count) -> tuple[tuple[str, str], ...]:
    states: Counter[str] = Counter()
    moves: Counter[tuple[str, str]] = Counter()
    for (_, state, move), times in total.items():
        states[state] += times
        moves[state, move] += times
    chosen = [state for state, _ in states.most_common(_STATES)]
    return tuple(
        pair
        for state in chosen
        for pair in [pair for pair, _ in moves.most_common() if pair[0] == state][:_MOVES]
    )
