"""Which moves agents make in which states, by episode (paper, Appendix E), from stored transcripts.

The rows are the most frequent states over all arms, with the most frequent moves in each state.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mage.reproduce.plan import Plan, is_done, open_runs
from mage.types import MetaEpisode, Split

_STATES, _MOVES = 6, 3
Count = Counter[tuple[int, str, str]]  # (episode from 0, state, move) -> count


@dataclass(frozen=True, slots=True)
class ArmChoices:
    """`shares[row, episode]`: share of the move among all moves in the state; nan if none."""

    label: str
    meta_episodes: int
    shares: np.ndarray


@dataclass(frozen=True, slots=True)
class WorldChoices:
    rows: tuple[tuple[str, str], ...]
    arms: tuple[ArmChoices, ...]


def read_choices(plan: Plan, world: str, split: Split, runs: Path) -> WorldChoices | None:
    """The choices of all finished runs of an environment; None if there are none."""
    there = open_runs(plan, runs)
    counts: dict[str, list[Count]] = {}
    for job in plan.jobs:
        if job.world == world and job.name in there and is_done(there[job.name]):
            name = f"after_{split}"
            if (there[job.name].path / "episodes" / f"{name}.jsonl.gz").is_file():
                counts.setdefault(job.arm.label, []).extend(
                    map(count_choices, there[job.name].read_episodes_of(name))
                )
    if not counts:
        return None
    totals = {label: _sum(found) for label, found in counts.items()}
    rows = _choose_rows(_sum(totals.values()))
    episodes = 1 + max(episode for total in totals.values() for episode, _, _ in total)
    return WorldChoices(
        rows,
        tuple(
            ArmChoices(label, len(counts[label]), shares(total, rows, episodes))
            for label, total in totals.items()
        ),
    )


def count_choices(meta: MetaEpisode) -> Count:
    """Counts of moves by episode and state; illegal replies count as `(illegal)`."""
    return Counter(
        (k, turn.anchor, str(turn.action) if turn.legal else "(illegal)")
        for k, episode in enumerate(meta.episodes)
        for turn in episode.turns
    )


def shares(count: Count, rows: Sequence[tuple[str, str]], episodes: int) -> np.ndarray:
    """The share of each move in its state, by episode."""
    met: Counter[tuple[int, str]] = Counter()
    for (episode, state, _), times in count.items():
        met[episode, state] += times
    return np.array(
        [
            [
                count[k, state, move] / met[k, state] if met[k, state] else np.nan
                for k in range(episodes)
            ]
            for state, move in rows
        ]
    )


def _choose_rows(total: Count) -> tuple[tuple[str, str], ...]:
    states: Counter[str] = Counter()
    moves: Counter[tuple[str, str]] = Counter()
    for (_, state, move), times in total.items():
        states[state] += times
        moves[state, move] += times
    chosen = [state for state, _ in states.most_common(_STATES)]
    return tuple(
        (state, move)
        for one in chosen
        for state, move in [pair for pair, _ in moves.most_common() if pair[0] == one][:_MOVES]
    )


def _sum(counts: Iterable[Count]) -> Count:
    total: Count = Counter()
    for count in counts:
        total.update(count)
    return total
