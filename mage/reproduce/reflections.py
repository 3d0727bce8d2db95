"""Reflections quoted by trial (paper, Appendix D), chosen by a rule and not by a reader.

The rule: among the stored meta-episodes of an arm, in the order of the panel, the first one that
was lost in episode 1 and won in a later episode. It is quoted up to its first win: the outcome of
each episode, the reflection written after it, and the first reply of the next one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mage.types import Episode, MetaEpisode, Outcome

RULE = (
    "The first task in the order of the panel that the agent lost in episode 1 and won later, "
    "quoted up to its first win. Long replies are cut, as marked by three dots."
)
_LONGEST = 600  # characters of a quoted reply


@dataclass(frozen=True, slots=True)
class Trial:
    """One episode: the first reply in it, how it ended, and the reflection written after it."""

    episode: int
    reply: str
    outcome: Outcome
    reflection: str


@dataclass(frozen=True, slots=True)
class Quote:
    """The quoted meta-episode of an arm; no trials if the rule finds none among `searched`."""

    label: str
    searched: int
    task: int
    opponent: str
    trials: tuple[Trial, ...]


def quote_reflections(metas: Mapping[str, Sequence[MetaEpisode]]) -> tuple[Quote, ...]:
    """One quote for every arm that writes reflections."""
    return tuple(
        _quote(label, found)
        for label, found in metas.items()
        if any(episode.reflection for meta in found for episode in meta.episodes)
    )


def _quote(label: str, metas: Sequence[MetaEpisode]) -> Quote:
    chosen = next((meta for meta in metas if _first_win(meta) > 0), None)
    if chosen is None:
        return Quote(label, len(metas), 0, "", ())
    last = _first_win(chosen)
    followed = [*chosen.episodes[1 : last + 1], None]
    trials = tuple(
        Trial(k + 1, _first_reply(episode), episode.outcome, _reflection(after))
        for k, (episode, after) in enumerate(zip(chosen.episodes, followed, strict=False))
    )
    return Quote(label, len(metas), chosen.group + 1, chosen.task.opponent, trials)


def _first_win(meta: MetaEpisode) -> int:
    """The first episode that was won after a loss in the first one; 0 if the rule excludes it."""
    if meta.episodes[0].outcome != "lost":
        return 0
    return next((k for k, one in enumerate(meta.episodes) if one.outcome == "won"), 0)


def _first_reply(episode: Episode) -> str:
    return _cut(episode.turns[0].completion.text) if episode.turns else ""


def _reflection(following: Episode | None) -> str:
    note = following.reflection if following else None
    return _cut(note.completion.text) if note else ""


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} ..."
