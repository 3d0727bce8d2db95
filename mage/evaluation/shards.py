"""Shards: a panel is played some tasks at a time, and each shard is stored when it ends, so a killed evaluation goes on.

Of a meta-episode only its row is kept once it ends, so a panel takes the memory of the games under way, however long it is.
Every shard starts with an empty cache: what it finds depends on its tasks, not on whether the one before was played or read.
A memory that lasts from task to task has shards of its own size, and what it took from the finished ones is stored with them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mage.evaluation.rows import TaskRow, row_from_json, row_to_json, task_row
from mage.learn.ranks import Ranks, interleave
from mage.memory.base import Entry
from mage.play import Entries, Setting, in_order, keep_entries, play_wave
from mage.types import MetaEpisode, Task

_LEAST = 128  # tasks of a shard


@dataclass(frozen=True, slots=True)
class Shard:
    """What is left of some tasks of a panel: their rows, and the episodes for a memory that lasts."""

    rows: tuple[TaskRow, ...]
    entries: tuple[Entry, ...]


class ShardStore:
    """The finished shards of one evaluation, one line each; `about` says of what, and lines about something else are not read."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about

    def read(self) -> list[Shard]:
        """All whole shards; a file that is about something else is begun anew."""
        lines = (
            self.path.read_bytes().rpartition(b"\n")[0].splitlines() if self.path.is_file() else []
        )
        if not lines or json.loads(lines[0]) != self.about:
            self.path.write_bytes(json.dumps(self.about).encode() + b"\n")
            return []
        self.path.write_bytes(
            b"".join(line + b"\n" for line in lines)
        )  # without the half line that a kill may leave
        return [_read_shard(json.loads(line)) for line in lines[1:]]

    def add(self, shard: Shard) -> None:
        line = {
            "rows": [row_to_json(row) for row in shard.rows],
            "entries": [asdict(entry) for entry in shard.entries],
        }
        with open(self.path, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")


def _read_shard(line: dict[str, Any]) -> Shard:
    return Shard(
        tuple(map(row_from_json, line["rows"])), tuple(Entry(**entry) for entry in line["entries"])
    )


def play_shards(
    setting: Setting,
    tasks: Sequence[Task],
    seed: int,
    *,
    ranks: Ranks,
    transcripts: int | None,
    store: ShardStore | None = None,
    on_played: Callable[[int], None] = lambda done: None,
    on_transcripts: Callable[[list[MetaEpisode]], None] = lambda metas: None,
) -> tuple[list[TaskRow], list[MetaEpisode]]:
    """All rows in the tasks' order, and this member's meta-episodes of the first `transcripts` tasks (None = all) as far as
    they were played now; the leader hears of them after every shard that has some."""
    found: list[Shard] = ranks.broadcast(
        store.read() if store is not None and ranks.is_main else []
    )
    metas: list[MetaEpisode] = []
    for start, end in _spans(setting, len(tasks)):
        number = start // _size(setting)
        if number == len(found):
            shard, kept = _sit(
                setting, tasks[start:end], start, seed, ranks, transcripts, on_played
            )
            found.append(shard)
            metas += kept
            if ranks.is_main:
                if kept:
                    on_transcripts(metas)
                if store is not None:
                    store.add(shard)
        if setting.memory.tasks_at_once is not None:
            setting = replace(setting, memory=setting.memory.after(found[number].entries))
        on_played(end)
    return [row for shard in found for row in shard.rows], metas


def _size(setting: Setting) -> int:
    """Two fills of the engine, so that it is rarely half empty; a wave, where a memory says so."""
    return setting.memory.tasks_at_once or max(_LEAST, 2 * (setting.agent.engine.capacity or 0))


def _spans(setting: Setting, count: int) -> list[tuple[int, int]]:
    size = _size(setting)
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def _sit(
    setting: Setting,
    tasks: Sequence[Task],
    start: int,
    seed: int,
    ranks: Ranks,
    transcripts: int | None,
    on_played: Callable[[int], None],
) -> tuple[Shard, list[MetaEpisode]]:
    engine, lasts = setting.agent.engine, setting.memory.tasks_at_once is not None
    engine.refresh(engine.policy_version)
    metas: list[MetaEpisode] = []
    done = 0

    def keep(meta: MetaEpisode) -> tuple[TaskRow, Entries | None]:
        nonlocal done
        done += 1
        on_played(min(start + done * ranks.size, start + len(tasks)))
        if transcripts is None or meta.group < transcripts:
            metas.append(meta)
        return task_row(meta), keep_entries(setting, meta) if lasts else None

    numbers = ranks.split(range(start, start + len(tasks)))
    played = play_wave(setting, {number: [tasks[number - start]] for number in numbers}, seed, keep)
    rows = interleave(ranks.gather([row for row, _ in played]))
    entries = in_order(ranks.gather([one for _, one in played if one is not None])) if lasts else []
    return Shard(tuple(rows), tuple(entries)), sorted(metas, key=lambda meta: meta.group)
