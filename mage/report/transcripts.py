"""Transcripts as text: a choice of meta-episodes, each move by move with memory and result.

The choice holds the largest gains from the first to the last episode, the largest losses, and one
meta-episode of every other opponent. Replies of the agent are quoted and never interpreted.
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
    """One event of an episode: its text, unchanged, and a remark for the reader."""

    kind: Kind
    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class EpisodeText:
    """One episode, line by line."""

    number: int
    headline: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chosen meta-episode: its opponent, why it was chosen, and its events."""

    title: str
    reason: str
    details: str
    episodes: tuple[EpisodeText, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Transcripts of a final panel or of a training update."""

    title: str
    note: str
    transcripts: tuple[Transcript, ...]


# --- Choosing


def choose_sections(results: RunResults) -> list[Section]:
    """The final panels, the same task before training, and training, as far as they are stored."""
    folder, sections = results.folder, []
    for split in results.splits:
        after = _stored(folder, "after", split)
        if after:
            picks = choose(after)
            note = (
                f"Policy of update {results.chosen_update}, "
                f"chosen among the first {len(after)} tasks of the panel."
            )
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
    """The newest stored update: a full choice if there is no final panel, otherwise one example."""
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
    """A choice of meta-episodes, each with the reason; at least one of every opponent."""
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
    """The largest gains or losses; among equal ones, the opponent that was chosen least often."""
    left, met = list(enumerate(metas)), Counter[str]()
    chosen: list[MetaEpisode] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda one: (sign * gain(one[1]), -met[one[1].task.opponent], -one[0]))
        left.remove(best)
        chosen.append(best[1])
        met[best[1].task.opponent] += 1
    return chosen


def gain(meta: MetaEpisode) -> float:
    """Score of the last episode minus score of the first."""
    return meta.episodes[-1].score - meta.episodes[0].score


# --- Describing


def _section(title: str, note: str, picks: Sequence[tuple[str, MetaEpisode]]) -> Section:
    return Section(title, note, tuple(describe(meta, reason) for reason, meta in picks))


def describe(meta: MetaEpisode, reason: str) -> Transcript:
    """A meta-episode as text, move by move."""
    task, scores = meta.task, ", ".join(f"{episode.score:+g}" for episode in meta.episodes)
    against = (
        f"against {task.opponent}, agent {SEATS[task.seat]}" if task.opponent else task.environment
    )
    details = (
        f"{task.environment}, task seed {task.seed}, {task.split} split, "
        f"policy version {meta.policy_version}"
    )
    episodes = tuple(_describe_episode(meta, number) for number in range(len(meta.episodes)))
    return Transcript(
        f"{against}: scores {scores}",
        f"{reason} ({gain(meta):+g} from first to last)",
        details,
        episodes,
    )


def _describe_episode(meta: MetaEpisode, number: int) -> EpisodeText:
    episode = meta.episodes[number]
    after = meta.episodes[number + 1].reflection if number + 1 < len(meta.episodes) else None
    lines = [
        Line("memory", meta.memories[number]),
        *_describe_moves(episode, meta.task.seat),
        _describe_result(episode),
    ]
    if after is not None:
        lines.append(Line("reflects", after.completion.text, _cut(after)))
    return EpisodeText(number + 1, f"{episode.outcome}, score {episode.score:+g}", tuple(lines))


def _describe_moves(episode: Episode, seat: int) -> Iterator[Line]:
    """The replies in order among the moves of all seats; a legal reply is the next own move."""
    turns = iter(episode.turns)
    for move in episode.moves:
        if move.seat != seat:
            yield Line("opponent", move.action)
            continue
        for turn in turns:
            yield from _describe_turn(turn)
            if turn.legal:
                break
    for turn in turns:
        yield from _describe_turn(turn)


def _describe_turn(turn: Turn) -> Iterator[Line]:
    yield Line("sees", turn.observation)
    read = (
        "no action found, illegal"
        if turn.action is None
        else f"{'legal' if turn.legal else 'ILLEGAL'}: {turn.action}"
    )
    cost = f"penalty {turn.penalty:+g}" if turn.penalty else ""
    yield Line("replies", turn.completion.text, ", ".join(filter(None, (read, cost, _cut(turn)))))


def _describe_result(episode: Episode) -> Line:
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


# --- Writing

LABELS: dict[Kind, str] = {
    "memory": "Memory shown",
    "sees": "Sees",
    "replies": "Replies",
    "opponent": "Opponent",
    "result": "Result",
    "reflects": "Reflection",
}


def to_markdown(results: RunResults, sections: Sequence[Section]) -> str:
    """All sections as one Markdown file."""
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
    for episode in transcript.episodes:
        lines += [
            f"**Episode {episode.number}: {episode.headline}**",
            "",
            *(_markdown_line(line) for line in episode.lines),
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
    """A fenced block whose fence does not occur in the text."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [fence, *text.splitlines(), fence]
