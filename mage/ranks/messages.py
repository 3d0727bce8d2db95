"""Objects as bytes, for messages between ranks.

A message is JSON. Reading one runs no code: it makes plain values, and dataclasses whose fields are
set one by one. So a process that gets into the group can send wrong values, but cannot
run a program here, which pickled data would allow.
"""

import base64
import json
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from mage.config.errors import UserError

_ATOMS = frozenset({type(None), bool, int, float, str})
_LONG = 16  # from this length on, an object that occurs twice is sent once
_SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "tuple": tuple}
_MAPPINGS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "counter": lambda pairs: Counter(dict(pairs)),
}


def encode(item: Any) -> bytes:
    """The message of an item."""
    return json.dumps(_Writer().write(item), separators=(",", ":")).encode("utf-8", "surrogatepass")


def decode(message: bytes) -> Any:
    """The item of a message."""
    return _Reader().read(json.loads(message.decode("utf-8", "surrogatepass")))


class _Writer:
    """Plain values stay as they are; everything else becomes a list that begins with its kind."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.kept: list[Any] = []  # keeps the objects alive, so that their ids stay unique

    def write(self, item: Any) -> Any:
        kind = type(item)
        if kind in _ATOMS and (kind is not str or len(item) < _LONG):
            return item
        if (number := self.known.get(id(item))) is not None:
            return ["again", number]
        written = item if kind is str else self._write(item, kind)
        if not (isinstance(item, str | list | tuple) and len(item) >= _LONG):
            return written
        self.known[id(item)] = len(self.kept)
        self.kept.append(item)
        return ["new", written]

    def _write(self, item: Any, kind: type) -> Any:
        if kind is list or kind is tuple:
            if len(item) >= _LONG and (packed := _pack_numbers(item)):
                return [kind.__name__, *packed]
            return [kind.__name__, [self.write(one) for one in item]]
        if kind is dict or kind is Counter:
            pairs = [[self.write(key), self.write(value)] for key, value in item.items()]
            return ["counter" if kind is Counter else "dict", pairs]
        if is_dataclass(item):
            values = [self.write(getattr(item, field.name)) for field in fields(item)]
            return ["record", kind.__module__, kind.__qualname__, values]
        if isinstance(item, Path):
            return ["path", str(item)]
        raise TypeError(f"ranks cannot send an object of the type {kind.__qualname__}")


class _Reader:
    """The inverse of `_Writer`."""

    def __init__(self) -> None:
        self.known: list[Any] = []

    def read(self, data: Any) -> Any:
        if not isinstance(data, list):
            return data
        kind, *parts = data
        if kind == "again":
            return self.known[parts[0]]
        if kind == "new":
            found = self.read(parts[0])
            self.known.append(found)
            return found
        return self._read(kind, parts)

    def _read(self, kind: str, parts: list[Any]) -> Any:
        if kind in _SEQUENCES:
            items = _unpack_numbers(*parts) if len(parts) > 1 else map(self.read, parts[0])
            return _SEQUENCES[kind](items)
        if kind in _MAPPINGS:
            return _MAPPINGS[kind]([(self.read(key), self.read(value)) for key, value in parts[0]])
        if kind == "record":
            return self._read_record(*parts)
        if kind == "path":
            return Path(parts[0])
        raise UserError(f"another rank has sent an object of the unknown kind {kind!r}")

    def _read_record(self, module: str, name: str, values: list[Any]) -> Any:
        kind = _find_record(module, name)
        made: Any = object.__new__(kind)
        for field, value in zip(fields(kind), values, strict=True):
            object.__setattr__(made, field.name, self.read(value))
        return made


def _pack_numbers(items: Any) -> list[str] | None:
    """Many integers (such as token ids) or many floats, as one text; None for anything else."""
    kinds = set(map(type, items))
    for code, kind in (("i", int), ("q", int), ("d", float)):
        if kinds == {kind}:
            with suppress(OverflowError):
                return [base64.b64encode(array(code, items)).decode(), code]
    return None


def _unpack_numbers(text: str, code: str) -> Iterable[int] | Iterable[float]:
    found: array[Any] = array(code)
    found.frombytes(base64.b64decode(text))
    return found


def _find_record(module: str, name: str) -> Any:
    """A dataclass that this process has loaded already: a message imports nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise UserError(
            f"another rank has sent a {module}.{name}, which this rank does not know: start all "
            "ranks with the same version of the code"
        )
    return found
