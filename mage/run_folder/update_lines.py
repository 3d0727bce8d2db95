"""A file with one line of JSON per update, and the checksums of its lines in a second file.

Line k of `metrics.sha256` is the SHA-256 of line k - 1 of the same file and line k of
`metrics.jsonl`, so a line that is changed, removed or moved is found, with its number. The
checksums are kept apart so that two runs of one recipe and seed have equal lines, and so that a
line without a checksum, which a kill can leave, is an incomplete line.
"""

import hashlib
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mage.run_folder.files import (
    DamagedError,
    Json,
    append_line,
    last_line,
    parse_lines,
    read_lines,
    to_line,
    write_lines,
)

_SUM = 64  # bytes of a SHA-256 in hexadecimal digits


class UpdateLines:
    """`checked` files must have checksums; those of old runs have none."""

    def __init__(self, path: Path, *, checked: bool) -> None:
        self.path, self.checked = path, checked
        self.sums = path.with_suffix(".sha256")

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the line of an update and then its checksum, both synced to the disk."""
        line = to_line(record)
        if not self.sums.exists():
            write_lines(self.sums, [])  # first, so that a line is never without this file
        before = last_line(self.sums, _SUM)  # not the whole file, so that a long run stays fast
        append_line(self.path, line)
        append_line(self.sums, _next_sum(before, line))

    def read(self) -> list[Json]:
        """The records of all complete lines, verified."""
        return parse_lines(self.path, self._verified())

    def read_marked(self, mark: bytes) -> list[Json]:
        """The records of the lines that hold a mark, and of the last one; all are verified."""
        lines = self._verified()
        return parse_lines(self.path, [*(one for one in lines[:-1] if mark in one), *lines[-1:]])

    def count(self) -> int:
        """The number of complete lines, verified."""
        return len(self._verified())

    def check_end(self) -> None:
        """Raise DamagedError if there are lines without checksums, which `read` ignores.

        A kill leaves at most one, so this is for runs that are finished.
        """
        lines, sums = len(read_lines(self.path)), len(read_lines(self.sums))
        if self.sums.exists() and lines > sums:
            raise DamagedError(
                f"{self.path} is damaged: it has {lines} lines, {sums} were written. The last "
                f"{lines - sums} were added later"
            )

    def keep_until(self, update: int) -> None:
        """Remove the lines after an update; checksums first, so that a kill leaves valid files."""
        if not self.path.exists() and not self.sums.exists():
            return
        kept = [to_line(record) for record in self.read() if record["update"] <= update]
        sums = [b""]
        for line in kept:
            sums.append(_next_sum(sums[-1], line))
        write_lines(self.sums, sums[1:])
        write_lines(self.path, kept)

    def _verified(self) -> list[bytes]:
        # Checksums first: a running process may append a line and its checksum in between.
        sums = read_lines(self.sums)
        lines = read_lines(self.path)
        if not self.sums.exists():
            if self.checked and lines:
                raise DamagedError(f"{self.sums} is missing: {self.path} cannot be verified")
            return lines
        before = b""
        for number, (line, stored) in enumerate(zip_longest(lines[: len(sums)], sums), start=1):
            if line is None:
                raise DamagedError(
                    f"{self.path} is damaged: it has {len(lines)} lines, {len(sums)} were written. "
                    f"The last {len(sums) - len(lines)} are missing"
                )
            if _next_sum(before, line) != stored:
                raise DamagedError(self._changed(number, len(lines), len(sums)))
            before = stored
        return lines[: len(sums)]

    def _changed(self, number: int, lines: int, written: int) -> str:
        if lines < written:
            fault = f"line {number} is missing or changed; it has {lines} lines of {written}"
        else:
            fault = f"line {number} was changed after it was written"
        return f"{self.path} is damaged: {fault}"


def _next_sum(before: bytes, line: bytes) -> bytes:
    return hashlib.sha256(before + line).hexdigest().encode()
