"""Checks of model files before any memory is allocated. Loads no torch.

A model folder may come from a stranger. Only JSON and safetensors are read, never pickled data or
code. safetensors compares every size in a file with the size of the file itself.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mage.config.errors import UserError

Tensors = dict[str, tuple[str, tuple[int, ...]]]  # name -> number format and shape
LARGEST_JSON = 1 << 26  # bytes
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
    try:
        with safe_open(path, framework="np") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in parts.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: {error!s:.200}") from None


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
