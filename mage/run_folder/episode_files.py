"""Files of stored meta-episodes: `NAME.jsonl.gz` and its table of contents `NAME.index.json`.

A file consists of gzip members of a few meta-episodes each, so one meta-episode is read without
unpacking the others; other programs read the whole as one gzip file. The table holds one row for
each meta-episode, so that 10,000 of them are listed without reading their transcripts.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mage.run_folder.files import (
    Json,
    pack,
    read_packed,
    seal,
    to_line,
    unpack,
    unseal,
    write_atomic,
)
from mage.types import MetaEpisode

MEMBER = 16  # meta-episodes of one gzip member
_NUMBERS = re.compile(rb'"(prompt_ids|logprobs)":\[[^\]]*\]')
_COLUMNS = (
    "number group member opponent seat seed scores outcomes gain illegal cut_off replies tokens "
    "reflects"
)
COLUMNS = tuple(_COLUMNS.split())


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows of a file (see COLUMNS) and the byte offset of every gzip member.

    Without offsets the file has one member: it was written without a table of contents.
    """

    rows: list[list[Any]]
    offsets: tuple[int, ...]

    def place(self, number: int) -> tuple[int, int]:
        """The gzip member of a meta-episode, and its line there."""
        return divmod(number, MEMBER) if self.offsets else (0, number)


def write_meta_episodes(path: Path, metas: Iterable[MetaEpisode]) -> None:
    """Write a file of meta-episodes and then its table of contents."""
    metas = list(metas)
    starts = range(0, max(1, len(metas)), MEMBER)  # a file without lines has one member too
    members = [pack(path, _lines(metas[start : start + MEMBER])) for start in starts]
    offsets = [0]
    for member in members:
        offsets.append(offsets[-1] + len(member))
    rows = [index_row(number, meta) for number, meta in enumerate(metas)]
    write_atomic(path, b"".join(members))
    table: Json = {
        "file": path.name,
        "columns": list(COLUMNS),
        "size": offsets[-1],
        "offsets": offsets,
        "rows": rows,
    }
    write_atomic(contents_path(path), to_line(seal(table)))


def read_contents(path: Path) -> Contents:
    """The table of contents; if it is missing, changed or of another file, the file is read."""
    try:
        table = unseal(json.loads(contents_path(path).read_bytes())) or {}
        written = (table["file"], table["size"], tuple(table["columns"]))
        if written == (path.name, path.stat().st_size, COLUMNS):
            return Contents(table["rows"], tuple(table["offsets"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    lines = read_packed(path)
    rows = [index_row(number, _parse(line)) for number, line in enumerate(lines)]
    return Contents(rows, ())


def read_member(path: Path, contents: Contents, member: int) -> list[bytes]:
    """The stored meta-episodes of one gzip member as lines of JSON."""
    if not contents.offsets:
        return read_packed(path)
    start, end = contents.offsets[member : member + 2]
    with open(path, "rb") as file:
        file.seek(start)
        return unpack(path, file.read(end - start))


def contents_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".jsonl.gz") + ".index.json")


def index_row(number: int, meta: Any) -> list[Any]:
    """The row of a meta-episode: a record, or a stored line with the same attributes."""
    episodes, task = meta.episodes, meta.task
    turns = [turn for episode in episodes for turn in episode.turns]
    scores = [episode.score for episode in episodes]
    return [
        number,
        meta.group,
        meta.member,
        task.opponent,
        task.seat,
        str(task.seed),
        scores,
        "".join(episode.outcome[0] for episode in episodes),
        scores[-1] - scores[0] if scores else 0.0,
        sum(not turn.legal for turn in turns),
        sum(turn.completion.finish == "length" for turn in turns),
        len(turns),
        sum(len(reply.token_ids) for turn in turns for reply in _completions(turn)),
        sum(episode.reflection is not None for episode in episodes),
    ]


def _completions(turn: Any) -> list[Any]:
    """All replies of a turn; stored turns without calls of tools do not have the field."""
    return [*(call.completion for call in getattr(turn, "calls", ())), turn.completion]


def _lines(metas: Sequence[MetaEpisode]) -> str:
    return "".join(
        json.dumps(meta, default=_as_dict, separators=(",", ":")) + "\n" for meta in metas
    )


def _as_dict(record: Any) -> Json:
    assert is_dataclass(record), (
        f"only records and plain values are stored, not {type(record).__name__}"
    )
    return {
        field.name: getattr(record, field.name)
        for field in fields(record)
        if _is_stored(field.metadata.get("stored", True), getattr(record, field.name))
    }


def _is_stored(stored: bool | str, value: Any) -> bool:
    return stored is True or (stored == "if set" and bool(value))


def _parse(line: bytes) -> Any:
    """A stored line without its long lists of numbers, which a row does not need.

    A quote inside of a JSON string is escaped, so no text of a model matches the pattern.
    """
    short = _NUMBERS.sub(rb'"\1":[]', line)
    return json.loads(short, object_hook=lambda values: SimpleNamespace(**values))
