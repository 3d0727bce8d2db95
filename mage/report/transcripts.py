"""Transcripts for people: which meta-episodes are worth reading, and each told move by move with its memory and true result.

Chosen are the largest gains from the first to the last episode, the largest losses, and one more of every opponent that
is not yet among them. What the agent wrote is quoted, never interpreted: it may hold anything.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mage.environments.base import SEATS
from mage.report.run_results import RunResults, Stage
from mage.run_folder import RunFolder
from mage.types import Episode, MetaEpisode, Split, Task, Turn

Kind = Literal["memory", "sees", "replies", "opponent", "result", "reflects"]
GAINS, LOSSES = 3, 2


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened: its text as it was, and what a reader should know about it."""

    kind: Kind
    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """One episode, line by line."""

    number: int
    headline: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chosen meta-episode: whom it was against, why it was chosen, and what happened."""

    title: str
    reason: str
    details: str
    episodes: tuple[Told, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Transcripts of one place: a final panel, a training update."""

    title: str
    note: str
    transcripts: tuple[Transcript, ...]


# --- Choosing ------------------------------------------------------------------------------------------------------


def choose_sections(results: RunResults) -> list[Section]:
    """The final panels, the same task before training, and training itself; what is not stored is left out."""
    folder, sections = results.folder, []
    for split in results.splits:
        after = _stored(folder, "after", split)
        if after:
            picks = choose(after)
            note = f"Policy of update {results.chosen_update}, chosen among the first {len(after)} tasks of the panel."
            sections.append(_section(f"After training, {split} panel", note, picks))
            sections += _before(folder, split, picks[0][1].task)
    return sections + _training(folder, all_kinds=not sections)


def _before(folder: RunFolder, split: Split, task: Task) -> list[Section]:
    """The first chosen task as the untrained agent played it."""
    same = [meta for meta in _stored(folder, "before", split) if meta.task == task]
    note = "The first task above, before any update."
    return [
        _section(f"Before training, {split} panel", note, [("same task", meta)])
        for meta in same[:1]
    ]


def _training(folder: RunFolder, all_kinds: bool) -> list[Section]:
    """The newest stored update: in full where there is nothing better, else one example of how training looks."""
    steps = folder.episode_steps()
    metas = folder.read_episodes(steps[-1]) if steps else []
    if not metas:
        return []
    picks = choose(metas) if all_kinds else choose(metas)[:1]
    return [
        _section(
            f"In training, update {steps[-1]}", f"Chosen among {len(metas)} meta-episodes.", picks
        )
    ]


def _stored(folder: RunFolder, stage: Stage, split: Split) -> list[MetaEpisode]:
    name = f"{stage}_{split}"
    return (
        folder.read_episodes_of(name)
        if (folder.path / "episodes" / f"{name}.jsonl.gz").is_file()
        else []
    )


def choose(metas: Sequence[MetaEpisode]) -> list[tuple[str, MetaEpisode]]:
    """The meta-episodes worth reading, each with the reason; at least one of every opponent."""
    gains = [
        ("large gain", meta)
        for meta in _extreme([meta for meta in metas if gain(meta) > 0], GAINS, +1)
    ]
    losses = [
        ("loss", meta) for meta in _extreme([meta for meta in metas if gain(meta) < 0], LOSSES, -1)
    ]
    seen = {meta.task.opponent for _, meta in gains + losses}
    others = {
        meta.task.opponent: meta for meta in reversed(metas) if meta.task.opponent not in seen
    }
    return (
        gains
        + losses
        + [("an opponent not shown above", meta) for _, meta in sorted(others.items())]
    )


def _extreme(metas: Sequence[MetaEpisode], count: int, sign: int) -> list[MetaEpisode]:
    """The largest gains or losses; in a game of few scores many are equal, and then opponents take turns."""
    left, met = list(enumerate(metas)), Counter[str]()
    chosen: list[MetaEpisode] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda one: (sign * gain(one[1]), -met[one[1].task.opponent], -one[0]))
        left.remove(best)
        chosen.append(best[1])
        met[best[1].task.opponent] += 1
    return chosen


def gain(meta: MetaEpisode) -> float:
    """Score of the last episode over that of the first."""
    return meta.episodes[-1].score - meta.episodes[0].score


# --- Telling -------------------------------------------------------------------------------------------------------


def _section(title: str, note: str, picks: Sequence[tuple[str, MetaEpisode]]) -> Section:
    return Section(title, note, tuple(tell(meta, reason) for reason, meta in picks))


def tell(meta: MetaEpisode, reason: str) -> Transcript:
    """A meta-episode move by move."""
    task, scores = meta.task, ", ".join(f"{episode.score:+g}" for episode in meta.episodes)
    against = (
        f"against {task.opponent}, agent {SEATS[task.seat]}" if task.opponent else task.environment
    )
    details = f"{task.environment}, task seed {task.seed}, {task.split} split, policy version {meta.policy_version}"
    told = tuple(_tell_episode(meta, number) for number in range(len(meta.episodes)))
    return Transcript(
        f"{against}: scores {scores}",
        f"{reason} ({gain(meta):+g} from first to last)",
        details,
        told,
    )


def _tell_episode(meta: MetaEpisode, number: int) -> Told:
    episode = meta.episodes[number]
    after = meta.episodes[number + 1].reflection if number + 1 < len(meta.episodes) else None
    lines = [
        Line("memory", meta.memories[number]),
        *_tell_moves(episode, meta.task.seat),
        _tell_result(episode),
    ]
    if after is not None:
        lines.append(Line("reflects", after.completion.text, _cut(after)))
    return Told(number + 1, f"{episode.outcome}, score {episode.score:+g}", tuple(lines))


def _tell_moves(episode: Episode, seat: int) -> Iterator[Line]:
    """Every reply in its place among the moves of all seats: one of the agent's moves is its next legal reply."""
    turns = iter(episode.turns)
    for move in episode.moves:
        if move.seat != seat:
            yield Line("opponent", move.action)
            continue
        for turn in turns:
            yield from _tell_turn(turn)
            if turn.legal:
                break
    for turn in turns:
        yield from _tell_turn(turn)


def _tell_turn(turn: Turn) -> Iterator[Line]:
    yield Line("sees", turn.observation)
    read = (
        "no action found, illegal"
        if turn.action is None
        else f"{'legal' if turn.legal else 'ILLEGAL'}: {turn.action}"
    )
    cost = f"penalty {turn.penalty:+g}" if turn.penalty else ""
    yield Line("replies", turn.completion.text, ", ".join(filter(None, (read, cost, _cut(turn)))))


def _tell_result(episode: Episode) -> Line:
    ending = (
        "" if episode.ending == "finished" else f", ended by {episode.ending.replace('_', ' ')}"
    )
    return Line(
        "result",
        episode.recap,
        f"{episode.outcome}, score {episode.score:+g}, reward {episode.reward:+g}{ending}",
    )


def _cut(turn: Turn) -> str:
    return "cut off at the length limit" if turn.completion.finish == "length" else ""


# --- Writing -------------------------------------------------------------------------------------------------------

LABELS: dict[Kind, str] = {
    "memory": "Memory shown",
    "sees": "Sees",
    "replies": "Replies",
    "opponent": "Opponent",
    "result": "Result",
    "reflects": "Reflection",
}


def to_markdown(results: RunResults, sections: Sequence[Section]) -> str:
    """All sections as one file for a person."""
    lines = [
        f"# Transcripts of {results.title} ({results.environment}, {results.updates:,} updates)",
        "",
    ]
    if not sections:
        lines += ["No episodes are stored yet.", ""]
    for section in sections:
        lines += [f"## {section.title}", "", section.note, ""]
        for number, transcript in enumerate(section.transcripts, 1):
            lines += _markdown_transcript(number, transcript)
    return "\n".join(lines)


def _markdown_transcript(number: int, transcript: Transcript) -> list[str]:
    lines = [
        f"### {number}. {transcript.title}",
        "",
        f"Chosen as: {transcript.reason}. {transcript.details}.",
        "",
    ]
    for told in transcript.episodes:
        lines += [
            f"**Episode {told.number}: {told.headline}**",
            "",
            *(_markdown_line(line) for line in told.lines),
            "",
        ]
    return lines


def _markdown_line(line: Line) -> str:
    remark = f" ({line.remark})" if line.remark else ""
    if not line.text.strip():
        return f"- {LABELS[line.kind]}{remark}: empty"
    if len(line.text.splitlines()) == 1 and "`" not in line.text:
        return f"- {LABELS[line.kind]}{remark}: `{line.text}`"
    return "\n  ".join([f"- {LABELS[line.kind]}{remark}:", "", *_fenced(line.text)])


def _fenced(text: str) -> list[str]:
    """A block that the text itself cannot close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [fence, *text.splitlines(), fence]
