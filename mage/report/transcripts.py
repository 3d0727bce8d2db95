"""Transcripts as Markdown: a choice of meta-episodes, move by move with memory and result.

The choice holds the largest gains from the first to the last episode, the largest losses, and one
meta-episode of every other opponent. Replies of the agent are quoted and never interpreted.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from mage.environments.base import SEATS
from mage.report.run_results import RunResults, Stage
from mage.run_folder import RunFolder
from mage.types import Episode, MetaEpisode, Split, Turn

GAINS, LOSSES = 3, 2
Picks = Sequence[tuple[str, MetaEpisode]]  # meta-episodes with the reason for their choice


def write_transcripts(results: RunResults) -> str:
    """One Markdown file: the final panels, the same task before training, and training."""
    head = f"# Transcripts of {results.title} ({results.environment}, {results.updates:,} updates)"
    sections = [*_panels(results)]
    sections += _training(results.folder, all_kinds=not sections)
    lines = [line for section in sections for line in section]
    return "\n".join([head, "", *(lines or ["No episodes are stored yet.", ""])])


# --- Choosing


def _panels(results: RunResults) -> Iterator[list[str]]:
    """The final panels after training, and the first chosen task before any update."""
    for split in results.splits:
        after = _stored(results.folder, "after", split)
        if not after:
            continue
        picks = choose(after)
        note = (
            f"Policy of update {results.chosen_update}, "
            f"chosen among the first {len(after)} tasks of the panel."
        )
        yield _section(f"After training, {split} panel", note, picks)
        before = _stored(results.folder, "before", split)
        same = [("same task", meta) for meta in before if meta.task == picks[0][1].task][:1]
        if same:
            note = "The first task above, before any update."
            yield _section(f"Before training, {split} panel", note, same)


def _training(folder: RunFolder, all_kinds: bool) -> Iterator[list[str]]:
    """The newest stored update: a full choice if there is no final panel, otherwise one example."""
    steps = folder.episode_steps()
    metas = folder.read_episodes(steps[-1]) if steps else []
    if metas:
        picks = choose(metas) if all_kinds else choose(metas)[:1]
        note = f"Chosen among {len(metas)} meta-episodes."
        yield _section(f"In training, update {steps[-1]}", note, picks)


def _stored(folder: RunFolder, stage: Stage, split: Split) -> list[MetaEpisode]:
    name = f"{stage}_{split}"
    is_there = (folder.path / "episodes" / f"{name}.jsonl.gz").is_file()
    return folder.read_episodes_of(name) if is_there else []


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


# --- Writing


def _section(title: str, note: str, picks: Picks) -> list[str]:
    lines = [f"## {title}", "", note, ""]
    for number, (reason, meta) in enumerate(picks, 1):
        lines += describe(meta, reason, number)
    return lines


def describe(meta: MetaEpisode, reason: str, number: int = 1) -> list[str]:
    """The lines of a meta-episode, move by move."""
    task, scores = meta.task, ", ".join(f"{episode.score:+g}" for episode in meta.episodes)
    against = f"against {task.opponent}, agent {SEATS[task.seat]}"
    lines = [
        f"### {number}. {against if task.opponent else task.environment}: scores {scores}",
        "",
        f"Chosen as: {reason} ({gain(meta):+g} from first to last). {task.environment}, "
        f"task seed {task.seed}, {task.split} split, policy version {meta.policy_version}.",
        "",
    ]
    for k, episode in enumerate(meta.episodes):
        headline = f"**Episode {k + 1}: {episode.outcome}, score {episode.score:+g}**"
        lines += [headline, "", *_describe_episode(meta, k), ""]
    return lines


def _describe_episode(meta: MetaEpisode, number: int) -> Iterator[str]:
    episode = meta.episodes[number]
    yield _line("Memory shown", meta.memories[number])
    yield from _describe_moves(episode, meta.task.seat)
    is_whole = episode.ending == "finished"
    ending = "" if is_whole else f", ended by {episode.ending.replace('_', ' ')}"
    result = f"{episode.outcome}, score {episode.score:+g}, reward {episode.reward:+g}{ending}"
    yield _line("Result", episode.recap, result)
    after = meta.episodes[number + 1].reflection if number + 1 < len(meta.episodes) else None
    if after is not None:
        yield _line("Reflection", after.completion.text, _cut(after))


def _describe_moves(episode: Episode, seat: int) -> Iterator[str]:
    """The replies in order among the moves of all seats; a legal reply is the next own move."""
    turns = iter(episode.turns)
    for move in episode.moves:
        if move.seat != seat:
            yield _line("Opponent", move.action)
            continue
        for turn in turns:
            yield from _describe_turn(turn)
            if turn.legal:
                break
    for turn in turns:
        yield from _describe_turn(turn)


def _describe_turn(turn: Turn) -> Iterator[str]:
    yield _line("Sees", turn.observation)
    for call in turn.calls:
        yield _line("Calls a tool", call.completion.text)
        yield _line("Gets", call.result, "an error" if call.failed else "")
    read = f"{'legal' if turn.legal else 'ILLEGAL'}: {turn.action}"
    remarks = (
        "no action found, illegal" if turn.action is None else read,
        f"penalty {turn.penalty:+g}" if turn.penalty else "",
        _cut(turn),
    )
    yield _line("Replies", turn.completion.text, ", ".join(filter(None, remarks)))


def _cut(turn: Turn) -> str:
    return "cut off at the length limit" if turn.completion.finish == "length" else ""


def _line(label: str, text: str, remark: str = "") -> str:
    """One event: its text, unchanged, and a remark for the reader."""
    head = f"- {label} ({remark}):" if remark else f"- {label}:"
    if not text.strip():
        return f"{head} empty"
    if len(text.splitlines()) == 1 and "`" not in text:
        return f"{head} `{text}`"
    # The fence must not occur in the text.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return "\n  ".join([head, "", fence, *text.splitlines(), fence])
