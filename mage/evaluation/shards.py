"""Evaluation in shards. Each finished shard is saved, so an interrupted evaluation can resume.

Only the row of a finished meta-episode is kept, so memory use does not grow with the panel. Every
shard starts with an empty cache, so its results depend on its tasks only, not on whether earlier
shards were played or read. A memory that persists across tasks sets the size of a shard, and what
it took from finished shards is stored with them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mage.evaluation.rows import TaskRow, row_from_json, row_to_json, task_row
from mage.memory.base import Entry
from mage.play import Entries, PlaySetup, in_order, keep_entries, play_wave
from mage.ranks.ranks import Ranks, interleave
from mage.run_folder.files import append_line, read_lines, seal, to_line, unseal, write_lines
from mage.types import MetaEpisode, Task

_MIN_SIZE = 128  # tasks of a shard


@dataclass(frozen=True, slots=True)
class Shard:
    """Results of some tasks of a panel: their rows, and the entries of a persistent memory."""

    rows: tuple[TaskRow, ...]
    entries: tuple[Entry, ...]


class ShardStore:
    """The finished shards of one evaluation, one per line.

    `about` identifies the evaluation. Shards of another evaluation are ignored.
    """

    def __init__(
        self,
        path: Path,
        about: dict[str, Any],
        on_warning: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.path, self.about, self.on_warning = path, about, on_warning

    def read(self) -> list[Shard]:
        """All complete shards. A file of another evaluation is replaced by an empty one.

        A shard that does not match its checksum is dropped with those after it: they are played
        again.
        """
        head, *lines = read_lines(self.path) or [b""]
        if head != to_line(self.about):
            lines = []
        shards: list[Shard] = []
        for line in lines:
            shard = _read_shard(line)
            if shard is None:
                self.on_warning(
                    f"{self.path} is damaged: shard {len(shards) + 1} does not match its checksum. "
                    "It and the shards after it are played again"
                )
                break
            shards.append(shard)
        write_lines(self.path, [to_line(self.about), *lines[: len(shards)]])
        return shards

    def add(self, shard: Shard) -> None:
        content = {
            "rows": [row_to_json(row) for row in shard.rows],
            "entries": [asdict(entry) for entry in shard.entries],
        }
        append_line(self.path, to_line(seal(content)))


def _read_shard(line: bytes) -> Shard | None:
    """The shard of a line; None if the line is damaged."""
    try:
        content = unseal(json.loads(line))
    except (ValueError, AttributeError, RecursionError):
        return None
    if content is None:
        return None
    rows, entries = content["rows"], content["entries"]
    return Shard(tuple(map(row_from_json, rows)), tuple(Entry(**entry) for entry in entries))


def play_shards(
    setup: PlaySetup,
    tasks: Sequence[Task],
    seed: int,
    *,
    ranks: Ranks,
    transcripts: int | None,
    store: ShardStore | None = None,
    on_played: Callable[[int], None] = lambda done: None,
    on_transcripts: Callable[[list[MetaEpisode]], None] = lambda metas: None,
) -> tuple[list[TaskRow], list[MetaEpisode]]:
    """All rows in the order of the tasks, and meta-episodes of the first `transcripts` tasks.

    The meta-episodes are those that all ranks have played now; `transcripts=None` keeps all.
    `on_transcripts` gets those of one shard, on rank 0, before the shard is stored.
    """
    stored: list[Shard] = ranks.broadcast(
        store.read() if store is not None and ranks.is_main else []
    )
    # Capacities can differ between ranks; all must make the same number of gathers.
    size = min(ranks.gather(_size(setup)))
    rows: list[TaskRow] = []
    metas: list[MetaEpisode] = []
    while len(rows) < len(tasks):
        if stored:
            shard = stored.pop(0)
        else:
            span = tasks[len(rows) : len(rows) + size]
            shard, kept = _play_shard(setup, span, len(rows), seed, ranks, transcripts, on_played)
            metas += kept
            if ranks.is_main and kept:
                on_transcripts(kept)
            if ranks.is_main and store is not None:
                store.add(shard)
        rows += shard.rows
        if setup.memory.tasks_at_once is not None:
            setup = replace(setup, memory=setup.memory.after(shard.entries))
        on_played(len(rows))
    return rows, metas


def _size(setup: PlaySetup) -> int:
    """Tasks of a shard: as the memory requires, or twice the engine's capacity.

    Twice, so that few slots of the engine are idle at the end of a shard.
    """
    return setup.memory.tasks_at_once or max(_MIN_SIZE, 2 * (setup.agent.engine.capacity or 0))


def _play_shard(
    setup: PlaySetup,
    tasks: Sequence[Task],
    start: int,
    seed: int,
    ranks: Ranks,
    transcripts: int | None,
    on_played: Callable[[int], None],
) -> tuple[Shard, list[MetaEpisode]]:
    engine, persistent = setup.agent.engine, setup.memory.tasks_at_once is not None
    engine.refresh(engine.policy_version)
    metas: list[MetaEpisode] = []
    done, world_of = 0, setup.environment.world_of
    worlds = {task.environment: world_of(task) for task in tasks}
    digests = {name: world.digest() for name, world in worlds.items()}

    def keep(meta: MetaEpisode) -> tuple[TaskRow, Entries | None]:
        nonlocal done
        done += 1
        on_played(min(start + done * ranks.size, start + len(tasks)))
        if transcripts is None or meta.group < transcripts:
            metas.append(meta)
        return task_row(meta, digests[meta.task.environment]), keep_entries(
            setup, meta
        ) if persistent else None

    numbers = ranks.split(range(start, start + len(tasks)))
    played = play_wave(setup, {number: [tasks[number - start]] for number in numbers}, seed, keep)
    rows = interleave(ranks.gather([row for row, _ in played]))
    entries: list[Entry] = []
    if persistent:
        entries = in_order(ranks.gather([one for _, one in played if one is not None]))
    if transcripts is None or start < transcripts:
        metas = [meta for part in ranks.gather(metas) for meta in part]
    return Shard(tuple(rows), tuple(entries)), sorted(metas, key=lambda meta: meta.group)
