"""Read and write the files of a run.

Whole files are replaced in one step: after a kill the file is the old one or the new one. Lines are
appended: an incomplete last line, which a kill can leave, is dropped when the file is next used.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class RunError(ValueError):
    """A run folder that cannot be created, read or written: what happened, and what to do."""


def write_atomic(path: Path, data: bytes) -> Path:
    """Replace a file in one step. After a kill or on a full disk the old file is unchanged."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        _remove(temporary)
        raise cannot("write", path, error) from None
    return path


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    return write_atomic(path, (json.dumps(finite(value), indent=2) + "\n").encode())


def read_json(path: Path) -> Json:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise RunError(f"there is no {path}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line of JSON; an incomplete last line is removed first."""
    try:
        with open(path, "ab+") as file:
            size = file.tell()
            if (whole := _whole_lines(file, size)) < size:
                file.truncate(whole)
            file.write(_line(record))
            file.flush()
    except OSError as error:
        raise cannot("write", path, error) from None


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Replace a file of JSON lines in one step."""
    return write_atomic(path, b"".join(map(_line, records)))


def read_lines(path: Path) -> list[Json]:
    """All complete lines of a file of JSON lines; an absent file has none."""
    if not path.is_file():
        return []
    whole, _, _incomplete = path.read_bytes().rpartition(b"\n")
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None


def finite(value: Any) -> Any:
    """The value without nan and infinity, which JSON cannot hold: they become null."""
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cannot(verb: str, path: Path, error: OSError) -> RunError:
    """The message about an operation that the operating system refused."""
    return RunError(
        f"cannot {verb} {path}: {error.strerror or error}. Files saved earlier are unchanged. "
        "Free some disk space or use another folder, then continue with --resume"
    )


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable, so that it survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except OSError:  # a full disk may refuse this as well; the first error is reported
        return


def _whole_lines(file: Any, size: int) -> int:
    """The number of bytes in complete lines."""
    if not size:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    return int(file.read().rfind(b"\n") + 1)


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(finite(record)) + "\n").encode()
