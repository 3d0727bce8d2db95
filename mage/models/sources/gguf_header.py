"""The header of a GGUF file (versions 2 and 3): typed metadata and the table of tensors.

A damaged or hostile file may promise any count or length, so every length is compared with the
size of the file. Config and weights (gguf_weights.py) and tokenizer (gguf_tokenizer.py) are made
from it.
"""

import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mage.config.errors import UserError

# type number of the format -> struct code
_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
_VERSIONS = (2, 3)
_MOST_AXES, _DEEPEST = 4, 2


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape (slowest axis first), number format, and the place of its first byte in the file."""

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata as plain values, and the table of tensors."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}


def read_header(path: Path) -> Header:
    """Read and check a header. Raises ValueError with the reason if the file cannot be used."""
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty")
    data: np.ndarray[Any, Any] = np.memmap(path, np.uint8, "r")
    walk = _Walk(path, data)
    metadata = walk.metadata()
    offsets = walk.tensors()
    step = metadata.get("general.alignment", 32)
    if not isinstance(step, int) or step < 1 or step & (step - 1):
        raise UserError(f"{path} has general.alignment = {step}: it must be a power of two")
    start = -(-walk.place // step) * step
    tensors = {
        name: replace(tensor, start=start + tensor.start) for name, tensor in offsets.items()
    }
    for name, tensor in tensors.items():
        _check_extent(path, name, tensor, len(data))
    return Header(path, metadata, tensors)


def _check_extent(path: Path, name: str, tensor: Tensor, end_of_file: int) -> None:
    """Check that the bytes of a tensor lie inside the file."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    except (ValueError, KeyError):
        raise UserError(
            f"{path}: tensor {name} has the unknown number format {tensor.kind}. "
            "Update the package gguf, or give a transformers folder of this model instead"
        ) from None
    if not tensor.shape or tensor.shape[-1] % elements or 0 in tensor.shape:
        raise UserError(
            f"{path}: tensor {name} of shape {tensor.shape} does not fill blocks of {elements}"
        )
    end = tensor.start + prod(tensor.shape) // elements * size
    if end > end_of_file:
        raise UserError(
            f"{path} is incomplete: tensor {name} ends at byte {end:,}, the file at "
            f"{end_of_file:,}; get the file again"
        )


class _Walk:
    """Reads forward from the first byte and never past the last one."""

    def __init__(self, path: Path, data: "np.ndarray[Any, Any]") -> None:
        self.path, self.data, self.place = path, data, 4
        if bytes(data[:4]) != b"GGUF":
            raise UserError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise UserError(
                f"{path} has GGUF version {version}; supported are "
                f"{' and '.join(map(str, _VERSIONS))}, little-endian"
            )
        self.tensor_count, self.key_count = self._number("Q"), self._number("Q")

    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self.key_count):
            key = self._text()
            if key in found:
                raise UserError(f"{self.path} has the key {key[:80]!r} twice: it is damaged")
            found[key] = self._value(self._number("I"))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """The table of tensors; `start` still counts from the end of the header."""
        found: dict[str, Tensor] = {}
        for _ in range(self.tensor_count):
            name, tensor = self._tensor()
            if name in found:
                raise UserError(f"{self.path} has the tensor {name[:80]!r} twice: it is damaged")
            found[name] = tensor
        return found

    def _tensor(self) -> tuple[str, Tensor]:
        name, axes = self._text(), self._number("I")
        if axes > _MOST_AXES:
            raise UserError(f"{self.path}: tensor {name[:80]!r} has {axes} axes: it is damaged")
        shape = tuple(self._number("Q") for _ in range(axes))
        return name, Tensor(shape[::-1], self._number("I"), self._number("Q"))

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _LIST and depth < _DEEPEST:
            return self._list(self._number("I"), self._number("Q"), depth + 1)
        if kind not in _NUMBERS:
            raise UserError(
                f"{self.path} has a key of the unknown type {kind}: "
                "the file is damaged or newer than this reader"
            )
        return self._number(_NUMBERS[kind])

    def _list(self, kind: int, length: int, depth: int) -> list[Any]:
        if kind not in _NUMBERS:
            return [self._value(kind, depth) for _ in range(length)]
        code = _NUMBERS[kind]
        return list(struct.unpack(f"<{length}{code}", self._take(length * struct.calcsize(code))))

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize(code)))[0]

    def _text(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "replace")

    def _take(self, length: int) -> bytes:
        if self.place + length > len(self.data):
            raise UserError(
                f"{self.path} is incomplete or damaged: its header continues after its last byte; "
                "get the file again"
            )
        self.place += length
        return self.data[self.place - length : self.place].tobytes()
