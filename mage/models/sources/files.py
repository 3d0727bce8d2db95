"""The files of a transformers folder from its parts, one shard of weights in memory at a time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mage.models.base import Dtype, Say, copy_permissions
from mage.models.sources.quants import Array

Tables = dict[str, Any]
SHARD_NUMBERS = 2**29  # of one file: 2 GiB in float32


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Everything that such a folder holds. `weights` is gone through once."""

    config: Tables
    generation: Tables
    tokenizer: Tables
    tokenizer_config: Tables
    template: str
    weights: Iterator[tuple[str, Array]]


def write_files(parts: ModelFiles, folder: Path, dtype: Dtype, say: Say) -> None:
    """Write them; `dtype` is that of the weights on disk."""
    _write_json(folder / "config.json", parts.config | {"dtype": dtype})
    _write_json(folder / "generation_config.json", parts.generation)
    _write_json(folder / "tokenizer.json", parts.tokenizer)
    _write_json(folder / "tokenizer_config.json", parts.tokenizer_config)
    (folder / "chat_template.jinja").write_text(parts.template)
    say(f"writing the weights as {dtype}")
    write_weights(parts.weights, folder, dtype)


def write_weights(weights: Iterator[tuple[str, Array]], folder: Path, dtype: Dtype) -> None:
    """Safetensors, in one file or in numbered ones with an index."""
    import torch
    from safetensors.torch import save_file

    names: list[list[str]] = []
    total = 0
    for shard in _shards(weights):
        tensors = {
            name: torch.from_numpy(array).to(getattr(torch, dtype)).contiguous()
            for name, array in shard.items()
        }
        names.append(list(tensors))
        total += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, folder / f"shard-{len(names)}", metadata={"format": "pt"})
    files = _file_names(len(names))
    for number, file in enumerate(files, 1):
        copy_permissions(folder / f"shard-{number}", folder / "config.json")
        (folder / f"shard-{number}").rename(folder / file)
    if len(files) > 1:
        where = {name: file for file, group in zip(files, names, strict=True) for name in group}
        _write_json(
            folder / "model.safetensors.index.json",
            {"metadata": {"total_size": total}, "weight_map": where},
        )


def _shards(weights: Iterator[tuple[str, Array]]) -> Iterator[dict[str, Array]]:
    shard: dict[str, Array] = {}
    for name, array in weights:
        if shard and sum(one.size for one in shard.values()) + array.size > SHARD_NUMBERS:
            yield shard
            shard = {}
        shard[name] = array
    yield shard


def _file_names(count: int) -> list[str]:
    return (
        ["model.safetensors"]
        if count == 1
        else [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    )


def _write_json(path: Path, tables: Tables) -> None:
    path.write_text(json.dumps(tables, indent=2, ensure_ascii=False) + "\n")
