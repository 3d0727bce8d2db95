"""The container of a GGUF file, versions 2 and 3: a header of typed keys, a table of tensors, then their aligned bytes.

Tensors are read one at a time out of a memory map, so that a file may be larger than the memory.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mage.models.sources.quants import FORMATS, Array, Format, decode

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _LIST = 8, 9
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies and what it is; `shape` is that of numpy and torch, the slowest axis first."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """`metadata` as plain values; `entries` by name; `tensor(name)` as float32."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty")
        self._data: Array = np.memmap(path, np.uint8, "r")
        header = _Header(path, self._data)
        self.metadata: dict[str, Any] = header.metadata()
        self.entries = header.entries()
        step = int(self.metadata.get("general.alignment", 32))
        self._start = -(-header.place // step) * step
        for name in self.entries:
            self._check(name)

    def tensor(self, name: str) -> Array:
        """One tensor as float32."""
        entry, form = self.entries[name], self._format(name)
        start = self._start + entry.offset
        return decode(self._data[start : start + form.bytes_of(_count(entry))], form).reshape(
            entry.shape
        )

    def _format(self, name: str) -> Format:
        kind = self.entries[name].kind
        if kind not in FORMATS:
            known = ", ".join(form.name for form in FORMATS.values())
            raise ValueError(
                f"{self.path}: tensor {name} has number format {kind}, which is not read here; read are {known}"
            )
        return FORMATS[kind]

    def _check(self, name: str) -> None:
        """Everything that can be wrong with the table is told before any weight is read."""
        entry, form = self.entries[name], self._format(name)
        if not entry.shape or entry.shape[-1] % form.elements:
            raise ValueError(
                f"{self.path}: tensor {name} of shape {entry.shape} does not fill blocks of {form.elements} ({form.name})"
            )
        end = self._start + entry.offset + form.bytes_of(_count(entry))
        if end > len(self._data):
            raise ValueError(
                f"{self.path} is cut off: tensor {name} ends at byte {end:,}, the file at {len(self._data):,}; get the file again"
            )


class _Header:
    """Reads forward from the first byte."""

    def __init__(self, path: Path, data: Array) -> None:
        self.path, self.data, self.place = path, data, 4
        if bytes(data[:4]) != b"GGUF":
            raise ValueError(f"{path} is no GGUF file: it does not begin with the letters GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise ValueError(
                f"{path} has GGUF version {version}; read are {' and '.join(map(str, _VERSIONS))}, little-endian"
            )
        self.tensors, self.keys = self._number("Q"), self._number("Q")

    def metadata(self) -> dict[str, Any]:
        return {self._text(): self._value(self._number("I")) for _ in range(self.keys)}

    def entries(self) -> dict[str, Entry]:
        return dict(self._entry() for _ in range(self.tensors))

    def _entry(self) -> tuple[str, Entry]:
        name = self._text()
        shape = tuple(self._number("Q") for _ in range(self._number("I")))
        return name, Entry(shape[::-1], self._number("I"), self._number("Q"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _LIST:
            return self._list(self._number("I"), self._number("Q"))
        if kind not in _NUMBERS:
            raise ValueError(
                f"{self.path} has a key of the unknown type {kind}: the file is damaged or newer than this reader"
            )
        return self._number(_NUMBERS[kind])

    def _list(self, kind: int, length: int) -> list[Any]:
        if kind not in _NUMBERS:
            return [self._value(kind) for _ in range(length)]
        code = _NUMBERS[kind]
        return list(struct.unpack(f"<{length}{code}", self._take(length * struct.calcsize(code))))

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize(code)))[0]

    def _text(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "replace")

    def _take(self, length: int) -> bytes:
        if self.place + length > len(self.data):
            raise ValueError(
                f"{self.path} is cut off or damaged: its header goes on past its last byte; get the file again"
            )
        self.place += length
        return self.data[self.place - length : self.place].tobytes()


def _count(entry: Entry) -> int:
    count = 1
    for length in entry.shape:
        count *= length
    return count
