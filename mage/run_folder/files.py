"""Read and write the files of a run.

Whole files are replaced in one step: after a kill the file is the old one or the new one. Lines are
appended and synced to the disk: an incomplete last line, which a kill can leave, is dropped when
the file is next used. Sealed files carry the SHA-256 of their content, so changes are detected.
"""

import glob
import gzip
import hashlib
import io
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mage.config.errors import UserError

Json = dict[str, Any]
SEAL = "sha256"  # the key of the checksum in a sealed JSON file
_FILE = "file"  # the key of its own name, so that files that changed places are found


class RunError(UserError):
    """A run folder that cannot be created, read or written: what happened, and what to do."""


class DamagedError(RunError):
    """A file of a run that was changed, cut or deleted after it was written."""


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Values of a wrong type in the files of a run become one message that names `what`.

    The files may come from a stranger who has written valid checksums.
    """
    try:
        yield
    except UserError:
        raise
    except _WRONG_VALUE as error:
        told = f"{type(error).__name__}: {str(error)[:200]}"
        raise DamagedError(
            f"{what} is damaged: it holds values that MAGE does not write ({told})"
        ) from error


_WRONG_VALUE = (
    *(ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError),
    *(AssertionError, ValueError),
)


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


# -- JSON files


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    return write_atomic(path, (json.dumps(finite(value), indent=2) + "\n").encode())


def read_json(path: Path) -> Json:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(f"there is no {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise DamagedError(f"{path} does not hold a JSON object")
    return value


def write_sealed(path: Path, value: Mapping[str, Any]) -> Path:
    """Write a JSON object with its file name and a checksum of its content."""
    return write_json(path, seal({**value, _FILE: path.name}))


def seal(value: Mapping[str, Any]) -> Json:
    """The value with a checksum of its content."""
    content = finite(value)
    assert SEAL not in content, "a sealed value is not sealed again"
    return content | {SEAL: _digest(content)}


def unseal(value: Mapping[str, Any]) -> Json | None:
    """The content of a sealed value; None if it does not match its checksum."""
    content = {name: item for name, item in value.items() if name != SEAL}
    return content if value.get(SEAL) == _digest(content) else None


def read_sealed(path: Path, *, required: bool) -> Json:
    """Read a JSON object and verify its checksum, which may be absent if it is not `required`."""
    value = read_json(path)
    if SEAL not in value and not required:
        return value
    with reading(path):
        content = unseal(value)
    if content is None:
        fault = "does not match its checksum" if SEAL in value else f"has no checksum ({SEAL})"
        raise DamagedError(f"{path} {fault}: it was changed after it was written")
    if (written := content.pop(_FILE, path.name)) != path.name:
        raise DamagedError(f"{path} is damaged: it holds the content of another file ({written})")
    return content


def _digest(value: Json) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- folders

CHECKSUMS = "checksums.json"  # in a folder: the SHA-256 of its files


def write_checksums(folder: Path) -> Path:
    """Record the checksums of all files of a folder in one more file."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    sums = {name: file_digest(folder / name) for name in names if name != CHECKSUMS}
    return write_sealed(folder / CHECKSUMS, {"files": sums})


def verify_checksums(folder: Path) -> None:
    """Raise DamagedError if a file was changed or deleted; without checksums nothing is checked."""
    if not (folder / CHECKSUMS).exists():
        return
    for name, digest in read_sealed(folder / CHECKSUMS, required=True)["files"].items():
        if not (folder / name).is_file():
            raise DamagedError(f"{folder / name} is missing")
        if file_digest(folder / name) != digest:
            raise DamagedError(
                f"{folder / name} does not match its checksum: it was changed after it was written"
            )


def sync_files(folder: Path) -> None:
    """Write all files of a folder to the disk, before the folder is renamed."""
    for path in (*folder.iterdir(), folder):
        sync_folder(path)


def remove_partial(path: Path) -> None:
    """Delete what killed processes have left of their attempts to create a folder."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        number = partial.name.split(".")[-2]
        if partial.is_dir() and number.isdecimal() and not is_alive(int(number)):
            shutil.rmtree(partial, ignore_errors=True)


def is_alive(pid: int) -> bool:
    """Whether a process on this host runs; a process that ended but was not reaped does not."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return not Path("/proc/self").exists()


# -- files of lines


def append_line(path: Path, line: bytes) -> None:
    """Add a line and sync it to the disk; an incomplete last line is removed first."""
    try:
        is_new = not path.exists()
        with open(path, "ab+") as file:
            size = file.tell()
            if (whole := _whole_lines(file, size)) < size:
                file.truncate(whole)
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(path.parent)
    except OSError as error:
        raise cannot("write", path, error) from None


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    """Replace a file of lines in one step."""
    return write_atomic(path, b"".join(line + b"\n" for line in lines))


def read_lines(path: Path) -> list[bytes]:
    """All complete lines of a file; an absent file has none."""
    if not path.is_file():
        return []
    try:
        return path.read_bytes().rpartition(b"\n")[0].splitlines()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None


def last_line(path: Path, most: int) -> bytes:
    """The last complete line of a file whose lines have at most `most` bytes; b"" if it has none.

    Only the end of the file is read.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2 * (most + 1)))
            return file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None


def to_line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(finite(record)).encode()


def parse_lines(path: Path, lines: Iterable[bytes]) -> list[Json]:
    """The JSON objects in the lines of a file."""
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{path} is damaged: line {number} is not JSON ({error})") from None
        if not isinstance(record, dict):
            raise DamagedError(f"{path} is damaged: line {number} is not a JSON object")
        found.append(record)
    return found


# -- packed files of lines: the name of the file is stored in the gzip header

# A hostile file of 1 MB can hold 1 GB. Transcripts are 5 to 20 times smaller when packed.
_MOST_UNPACKED = 256 << 20  # bytes that a packed file may always hold
_MOST_RATIO = 100  # bytes that it may hold for each byte of the file


def write_packed(path: Path, text: str) -> Path:
    """Write lines as a gzip file, which has a checksum; equal lines give equal files."""
    return write_atomic(path, pack(path, text))


def pack(path: Path, text: str) -> bytes:
    """Lines as one gzip member with the name of its file."""
    packed = io.BytesIO()
    with gzip.GzipFile(path.name, "wb", compresslevel=5, fileobj=packed, mtime=0) as file:
        file.write(text.encode())
    return packed.getvalue()


def read_packed(path: Path) -> list[bytes]:
    """The lines of a packed file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedError(
            f"{path} is damaged and cannot be read ({type(error).__name__})"
        ) from None
    return unpack(path, data)


def unpack_text(path: Path, data: bytes) -> bytes:
    """The content of one or more gzip members, if it has a size that a file of MAGE can have."""
    most = _MOST_UNPACKED + _MOST_RATIO * len(data)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedError(
            f"{path} is damaged and cannot be read: gzip cannot unpack it ({type(error).__name__})"
        ) from None
    if len(text) > most:
        raise DamagedError(
            f"{path} is damaged: its {len(data):,} bytes hold more than {most:,}, which no "
            "transcripts and no task rows do"
        )
    return text


def unpack(path: Path, data: bytes) -> list[bytes]:
    """The lines of one or more gzip members of a packed file."""
    lines = unpack_text(path, data).splitlines()
    if not data:
        raise DamagedError(f"{path} is damaged: it is empty")
    written = _packed_name(data)
    if written is not None and written != path.name.removesuffix(".gz"):
        raise DamagedError(f"{path} is damaged: it holds the content of another file ({written})")
    return lines


def _packed_name(data: bytes) -> str | None:
    """The name in a gzip header (RFC 1952); files of old versions of MAGE have none."""
    flags = data[3] if len(data) > 3 else 0
    return data[10:].partition(b"\0")[0].decode("latin-1") if flags & 0x0C == 0x08 else None


_LARGEST = 1 << 1000


def finite(value: Any) -> Any:
    """The value without nan, infinity and larger numbers than a float holds: they become null."""
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, int) and abs(value) > _LARGEST:
        return None  # a browser reads it as infinity
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cannot(verb: str, path: Path, error: OSError) -> RunError:
    """The message about an operation that the operating system refused."""
    return RunError(
        f"cannot {verb} {path}: {error.strerror or error}. Files saved earlier are unchanged. "
        "Free some disk space or use another folder, then continue with --resume"
    )


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder, or the content of a file, survive a power failure."""
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
