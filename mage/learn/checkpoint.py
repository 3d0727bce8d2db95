"""Checkpoints: folders of safetensors and JSON files.

A checkpoint is written to a temporary folder, which is then renamed. `manifest.json` holds the size
and the SHA-256 of every file and is written last, so a truncated or changed checkpoint is detected
before anything is loaded. Nothing is pickled: reading a checkpoint runs no code.
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mage.config.errors import UserError
from mage.models.sources.base import copy_permissions
from mage.run_folder.files import file_digest, sync_folder

MODEL, ADAPTER, OPTIMIZER = "model.safetensors", "adapter.safetensors", "optimizer.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
FORMAT = 1

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What a run needs to resume: weights or adapters, AdamW's moments, the trainer's state."""

    update: int
    weights: Tensors
    adapter: bool
    optimizer: Tensors
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest whole checkpoint, if any, and one line for each newer one that is broken."""

    path: Path | None
    broken: tuple[str, ...]


def place(folder: Path, update: int) -> Path:
    """The folder of the checkpoint of an update."""
    return folder / f"update_{update:06d}"


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into `folder` and return its path.

    Earlier checkpoints stay whole in all cases.
    """
    target = place(folder, checkpoint.update)
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(partial, checkpoint)
        _move(partial, target)
    except (OSError, SafetensorError) as error:
        raise RuntimeError(
            f"checkpoint {target} could not be saved ({error}); earlier checkpoints are unchanged"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write(partial: Path, checkpoint: Checkpoint) -> None:
    tensors = {
        ADAPTER if checkpoint.adapter else MODEL: checkpoint.weights,
        OPTIMIZER: checkpoint.optimizer,
    }
    _write_json(partial / STATE, {"update": checkpoint.update, "state": checkpoint.state})
    for name, named in tensors.items():
        save_file(
            {key: tensor.detach().contiguous() for key, tensor in named.items()}, partial / name
        )
        copy_permissions(partial / name, partial / STATE)
        sync_folder(partial / name)
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        for path in sorted(partial.iterdir())
    }
    _write_json(partial / MANIFEST, {"format": FORMAT, "files": files})
    sync_folder(partial)


def _move(partial: Path, target: Path) -> None:
    if target.exists():
        # A folder cannot be renamed onto a non-empty one, so the old one is renamed first.
        aside = target.with_name(f".{target.name}.replaced")
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
        partial.rename(target)
        shutil.rmtree(aside)
    else:
        partial.rename(target)
    sync_folder(target.parent)


def load(path: Path, weights_only: bool = False) -> Checkpoint:
    """Verify and read a checkpoint; a UserError names the broken file.

    `weights_only` is enough to play: the state of the optimizer may be absent.
    """
    names = verify(path, weights_only)
    state = json.loads((path / STATE).read_text())
    weights = ADAPTER if ADAPTER in names else MODEL
    return Checkpoint(
        update=state["update"],
        weights=load_file(path / weights),
        adapter=weights == ADAPTER,
        optimizer={} if weights_only else load_file(path / OPTIMIZER),
        state=state["state"],
    )


def read_state(path: Path) -> dict[str, Any]:
    """Verify a checkpoint and read the trainer's state in it, without its tensors."""
    verify(path)
    return dict(json.loads((path / STATE).read_text())["state"])


def verify(path: Path, weights_only: bool = False) -> frozenset[str]:
    """Check size and SHA-256 of every file; returns the names of the files.

    With `weights_only` the file of the optimizer is neither checked nor needed.
    """
    files = _manifest(path)
    for name, entry in files.items():
        if weights_only and name == OPTIMIZER:
            continue
        file = path / name
        if not file.is_file():
            raise UserError(f"checkpoint {path} is broken: {name} is missing")
        if (size := file.stat().st_size) != entry["bytes"]:
            raise UserError(
                f"checkpoint {path} is broken: {name} has {size} bytes, "
                f"{entry['bytes']} were written"
            )
        if file_digest(file) != entry["sha256"]:
            raise UserError(
                f"checkpoint {path} is broken: {name} does not have the SHA-256 of its manifest"
            )
    _check_update(path)
    return frozenset(files)


def _check_update(path: Path) -> None:
    """A checkpoint that was moved to the place of another one is found by its update."""
    update = json.loads((path / STATE).read_text())["update"]
    if path.name.startswith("update_") and update_of(path) != update:
        raise UserError(f"checkpoint {path} is broken: it is the checkpoint of update {update}")


def _manifest(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_dir():
        raise UserError(f"there is no checkpoint at {path}")
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"checkpoint {path} is broken: {MANIFEST} cannot be read ({error})"
        ) from error
    files: dict[str, dict[str, Any]] | None = (
        manifest.get("files") if isinstance(manifest, dict) else None
    )
    if not isinstance(files, dict) or not _lists_a_checkpoint(files):
        raise UserError(
            f"checkpoint {path} is broken: {MANIFEST} does not list the files of a checkpoint"
        )
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"checkpoint {path} has format {manifest.get('format')}; "
            f"this version reads format {FORMAT}"
        )
    return files


def _lists_a_checkpoint(files: dict[str, Any]) -> bool:
    described = all(
        isinstance(entry, dict) and set(entry) == {"bytes", "sha256"} for entry in files.values()
    )
    return described and {OPTIMIZER, STATE} < set(files) and bool({MODEL, ADAPTER} & set(files))


def latest(folder: Path, weights_only: bool = False) -> Latest:
    """The newest whole checkpoint of a folder; newer broken ones are skipped and reported."""
    broken = []
    for path in newest_first(folder):
        try:
            verify(path, weights_only)
        except ValueError as error:
            broken.append(str(error))
        else:
            return Latest(path, tuple(broken))
    return Latest(None, tuple(broken))


def best_whole(folder: Path, update: int, weights_only: bool = False) -> Latest:
    """The checkpoint of an update; if it is broken, the newest whole one and a warning."""
    path = place(folder, update)
    try:
        verify(path, weights_only)
    except ValueError as error:
        newest = latest(folder, weights_only).path
        used = "there is no whole checkpoint" if newest is None else f"{newest.name} is used"
        return Latest(newest, (f"{error}; {used} instead of the best one",))
    return Latest(path, ())


def recover(folder: Path) -> None:
    """Finish what a killed process left: a replacement, a deletion, and temporary folders."""
    if not folder.is_dir():
        return
    for aside in folder.glob(".update_*.replaced"):
        target = folder / aside.name.removeprefix(".").removesuffix(".replaced")
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(target)
    for left in (*folder.glob(".update_*.partial"), *folder.glob(".update_*.deleted")):
        shutil.rmtree(left, ignore_errors=True)


def prune(folder: Path, *, keep: int, also: Collection[int] = ()) -> None:
    """Delete all but the newest `keep` checkpoints and those of the updates in `also`.

    A folder is renamed first: a kill leaves a hidden folder, never a checkpoint without a file.
    """
    for path in newest_first(folder)[keep:]:
        if update_of(path) not in also:
            hidden = path.with_name(f".{path.name}.deleted")
            shutil.rmtree(hidden, ignore_errors=True)
            shutil.rmtree(path.rename(hidden))


def newest_first(folder: Path) -> list[Path]:
    """All checkpoints of a folder, whole or broken."""
    if not folder.is_dir():
        return []
    found = [
        path
        for path in folder.iterdir()
        if path.is_dir() and re.fullmatch(r"update_\d+", path.name)
    ]
    return sorted(found, key=update_of, reverse=True)


def update_of(path: Path) -> int:
    return int(path.name.removeprefix("update_"))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
