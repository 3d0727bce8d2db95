"""Checks of model files before any memory is allocated. Loads no torch.

A model folder may come from a stranger. Only JSON and safetensors are read, never pickled data or
code. safetensors compares every size in a file with the size of the file itself.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mage.config.errors import UserError

Tensors = dict[str, tuple[str, tuple[int, ...]]]  # name -> number format and shape
LARGEST_JSON = 1 << 26  # bytes
_SIZES = ("hidden_size", "vocab_size", "intermediate_size", "num_attention_heads", "n_positions")
_MOST = 4_096  # layers and experts; the largest public models have 126 and 512
_COUNTS = re.compile(r"(n|num)_(\w+_)?(layers?|experts)|(en|de)coder_layers")
_MOST_LABELS = 100_000


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
    try:
        with safe_open(path, framework="np") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in parts.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: {error!s:.200}") from None


_WHOLE, _BLOCK = 64 << 20, 4096  # bytes of a file that is read whole; bytes read of each tensor


def weights_digest(folder: Path) -> str:
    """A SHA-256 that tells the weights of a model folder from others, within a second.

    Small files are read whole. Of a large file the size, the header and the middle of each tensor
    are read: other weights of the same shapes differ there, and 8 GB are not read at every start.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{size}\n".encode())
        with path.open("rb") as file:
            if size <= _WHOLE:
                digest.update(file.read())
                continue
            header = file.read(int.from_bytes(file.read(8), "little"))
            digest.update(header)
            for start, end in _places(path, header):
                file.seek(8 + len(header) + (start + end) // 2)
                digest.update(file.read(min(_BLOCK, end - (start + end) // 2)))
    return digest.hexdigest()


def _places(path: Path, header: bytes) -> list[tuple[int, int]]:
    """First and last byte of each tensor of a safetensors file, after its header."""
    read_tensors(path)  # the library checks the header
    entries = json.loads(header).items()
    return [tuple(one["data_offsets"]) for name, one in entries if name != "__metadata__"]


def check_folder(folder: Path) -> None:
    """Compare the sizes in config.json with the tensors of a model folder.

    transformers builds the model from the config first: a config with a billion layers would
    allocate memory before anything is compared.
    """
    config, tensors = read_object(folder / "config.json"), Tensors()
    _check_counts(folder, config)
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
    if config.get("vocab_size", 1) * config.get("hidden_size", 1) > total:
        raise UserError(
            f"{folder} needs more parameters for its embedding (vocab_size x hidden_size) than "
            f"its files hold ({total:,}): the files do not belong together"
        )


def _check_counts(folder: Path, config: Mapping[str, Any]) -> None:
    """transformers makes a list of all layers and labels before it compares anything."""
    left = [config]
    while left:
        for name, value in left.pop().items():
            if isinstance(value, dict):
                left.append(value)
            count = len(value) if isinstance(value, list | dict) else value
            most = _most_of(name)
            if most and isinstance(count, int | float) and not count <= most:
                raise UserError(
                    f"{folder} has {name} = {count!s:.40} in config.json: at most {most:,} are "
                    "allowed"
                )


def _most_of(name: str) -> int | None:
    """The largest number of things that a key of a config may count; None for other keys."""
    if name in ("num_labels", "id2label", "label2id"):
        return _MOST_LABELS
    return _MOST if _COUNTS.fullmatch(name) or name == "layer_types" else None


def _is_size(value: Any, most: int) -> bool:
    return type(value) is int and 0 < value <= most
