"""Task rows of kept results: the final panels of a run in one compressed file, `tasks.jsonl.xz`.

One JSON line for each row, with the name of its panel. The panels of a run share their tasks, so
one file is much smaller than one for each panel.
"""

import json
import lzma
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from mage.evaluation.rows import TaskRow, read_tasks, row_from_json, row_to_json
from mage.run_folder import DamagedError, write_atomic
from mage.run_folder.kept import is_kept

KEPT_ROWS = "tasks.jsonl.xz"
_MOST = 256 << 20  # bytes of an unpacked file; a small hostile file can hold far more
_MEMORY = 128 << 20  # bytes that unpacking may use; our own files need 65 million


def write_kept_rows(folder: Path, panels: Mapping[str, Sequence[TaskRow]]) -> Path:
    """Store the rows of all panels."""
    lines = (
        json.dumps({"panel": name, **row_to_json(row)}, separators=(",", ":"))
        for name, rows in panels.items()
        for row in rows
    )
    text = "".join(f"{line}\n" for line in lines)
    return write_atomic(
        folder / KEPT_ROWS, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    )


def read_kept_rows(folder: Path) -> Mapping[str, tuple[TaskRow, ...]]:
    """The rows by panel; empty if none were kept."""
    path = folder / KEPT_ROWS
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else {}


def rows_path(run: Path, name: str) -> Path:
    """The file with the task rows of an evaluation, of a run or of kept results."""
    return run / KEPT_ROWS if is_kept(run) else run / "evaluations" / f"{name}.tasks.jsonl"


def read_rows(run: Path, name: str) -> tuple[TaskRow, ...] | None:
    """The task rows of an evaluation; None if they are not stored."""
    if is_kept(run):
        return read_kept_rows(run).get(name)
    path = rows_path(run, name)
    return read_tasks(path) if path.is_file() else None


@lru_cache(maxsize=32)
def _read(path: Path, changed: int) -> Mapping[str, tuple[TaskRow, ...]]:
    found: dict[str, list[TaskRow]] = {}
    try:
        for line in _unpack(path).splitlines():
            fields = json.loads(line)
            found.setdefault(fields.pop("panel"), []).append(row_from_json(fields))
    except (lzma.LZMAError, EOFError, OSError) as error:
        raise DamagedError(f"{path} is damaged and cannot be read ({error})") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedError(f"{path} is damaged: a line is not a task row") from None
    return {name: tuple(rows) for name, rows in found.items()}


def _unpack(path: Path) -> bytes:
    unpacker = lzma.LZMADecompressor(memlimit=_MEMORY)
    data = unpacker.decompress(path.read_bytes(), max_length=_MOST)
    if not unpacker.eof:
        raise EOFError("it is cut, or too large")
    return data
