"""Checks of model files before any memory is allocated. Loads no torch.

A model folder may come from a stranger. Only JSON and safetensors are read, never pickled data or
code. Every size in a file is compared with the size of the file itself.
"""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mage.config.errors import UserError

Tensors = dict[str, tuple[str, tuple[int, ...]]]  # name -> number format and shape
LARGEST_JSON = 1 << 26  # bytes
_LARGEST_HEAD = 100_000_000  # bytes, as in the package safetensors
_MOST_AXES = 8
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "U16": 16, "I16": 16, "F16": 16,
    "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
_SIZES = ("hidden_size", "vocab_size", "intermediate_size", "num_attention_heads")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError with the reason if the file holds anything else."""
    size = path.stat().st_size
    if size > LARGEST_JSON:
        raise UserError(f"{path} has {size:,} bytes: at most {LARGEST_JSON:,} are allowed")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"{path} is not valid JSON: {reason}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(found).__name__}")
    return found


def read_tensors(path: Path) -> Tensors:
    """Number formats and shapes of a safetensors file, from its header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(size - 8, _LARGEST_HEAD):
            raise UserError(f"{path} is damaged: its header is longer than the file")
        head = _parse_head(path, file.read(length))
    room = size - 8 - length
    return {
        name: _read_entry(path, name, entry, room)
        for name, entry in head.items()
        if name != "__metadata__"
    }


def _parse_head(path: Path, data: bytes) -> dict[str, Any]:
    try:
        head = json.loads(data)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict):
        raise UserError(f"{path} is damaged: its header is not a JSON object")
    return head


def _read_entry(path: Path, name: str, entry: Any, room: int) -> tuple[str, tuple[int, ...]]:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    kind: Any
    shape: Any
    span: Any
    kind, shape, span = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if (
        not isinstance(kind, str)
        or kind not in _BITS
        or not _are_counts(shape, _MOST_AXES)
        or not _are_counts(span, 2)
        or len(span) != 2
        or not span[0] <= span[1] <= room
        or 8 * (span[1] - span[0]) != _BITS[kind] * math.prod(shape)
    ):
        raise UserError(f"{path} is damaged: tensor {name[:80]!r} does not lie inside the file")
    return kind, tuple(shape)


def _are_counts(values: Any, most: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= most
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


def check_folder(folder: Path) -> None:
    """Compare the sizes in config.json with the tensors of a model folder.

    transformers builds the model from the config first: a config with a billion layers would
    allocate memory before anything is compared.
    """
    config, tensors = read_object(folder / "config.json"), Tensors()
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_tensors(path)
    total = sum(math.prod(shape) for _, shape in tensors.values())
    layers = config.get("num_hidden_layers", 1)
    if not _is_size(layers, len(tensors)):
        raise UserError(
            f"{folder} has num_hidden_layers = {layers!s:.40} in config.json, "
            f"but {len(tensors)} tensors: the files do not belong together"
        )
    for name in _SIZES:
        if not _is_size(config.get(name, 1), total):
            raise UserError(
                f"{folder} has {name} = {config[name]!s:.40} in config.json, "
                f"but {total:,} parameters: the files do not belong together"
            )
    if not _fits(config, total):
        raise UserError(
            f"{folder} needs more parameters for its embedding (vocab_size x hidden_size) than "
            f"its files hold ({total:,}): the files do not belong together"
        )


def _is_size(value: Any, most: int) -> bool:
    return type(value) is int and 0 < value <= most


def _fits(config: Mapping[str, Any], total: int) -> bool:
    return bool(config.get("vocab_size", 1) * config.get("hidden_size", 1) <= total)
