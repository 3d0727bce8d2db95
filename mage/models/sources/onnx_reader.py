"""The weights inside an ONNX file, read without the onnx package: protobuf messages are lists of numbered fields.

Field numbers are those of onnx.proto: model.graph 7; graph.node 1, graph.initializer 5; node.input 1, node.name 3,
node.op_type 4; tensor.dims 1, .data_type 2, .float_data 4, .int32_data 5, .name 8, .raw_data 9.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mage.models.sources.quants import Array

Value = int | memoryview
_TYPES: "dict[int, np.dtype[Any]]" = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    3: np.dtype("i1"),
    7: np.dtype("<i8"),
    10: np.dtype("<f2"),
}


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of the graph and the names that go into it."""

    name: str
    operation: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    tensors: dict[str, Array]
    nodes: list[Node]


def read_onnx(path: Path) -> Graph:
    """Stored tensors by name, and the operations that use them."""
    try:
        (graph,) = _fields(memoryview(path.read_bytes()))[7]
        parts = _fields(_bytes(graph))
        return Graph(
            dict(_tensor(_bytes(part)) for part in parts[5]),
            [_node(_bytes(part)) for part in parts[1]],
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as an ONNX file: it is damaged or uses what this reader does not know ({error})"
        ) from None


def _node(message: memoryview) -> Node:
    fields = _fields(message)
    return Node(_text(fields[3][0]), _text(fields[4][0]), tuple(_text(one) for one in fields[1]))


def _tensor(message: memoryview) -> tuple[str, Array]:
    fields = _fields(message)
    shape = [number for value in fields[1] for number in _numbers(value)]
    kind = _TYPES[next(_numbers(fields[2][0]))]
    if fields[9]:
        array = np.frombuffer(_bytes(fields[9][0]), kind)
    elif fields[4]:
        array = np.frombuffer(b"".join(_bytes(value) for value in fields[4]), kind)
    else:
        array = np.array(
            [_signed(number) for value in fields[5] for number in _numbers(value)], kind
        )
    return _text(fields[8][0]), array.reshape(shape)


def _fields(message: memoryview) -> dict[int, list[Value]]:
    """A message's values by field number, in order."""
    found: dict[int, list[Value]] = defaultdict(list)
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == 0:
            number, place = _varint(message, place)
            found[key >> 3].append(number)
            continue
        length = {1: 8, 5: 4}.get(wire)
        if length is None:
            length, place = _varint(message, place)
        if place + length > len(message):
            raise ValueError("a field goes on past the end")
        found[key >> 3].append(message[place : place + length])
        place += length
    return found


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, lowest first, and the place after it."""
    number = shift = 0
    while True:
        byte = message[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place


def _numbers(value: Value) -> Iterator[int]:
    """A repeated number may come one by one or packed into bytes."""
    if isinstance(value, int):
        yield value
        return
    place = 0
    while place < len(value):
        number, place = _varint(value, place)
        yield number


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise TypeError("a number where bytes were expected")
    return value


def _text(value: Value) -> str:
    return bytes(_bytes(value)).decode()
