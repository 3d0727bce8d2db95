"""A run's folder: all that a run leaves behind, and all that it needs to go on.

    recipe.toml   the resolved options        metrics.jsonl  one object an update, reproducible
    versions.json what it ran with            timing.jsonl   wall-clock figures, which never are
    episodes/step_000040.jsonl.gz             checkpoints/   evaluations/NAME.json   summary.json   warm/ if it began with a warm-up

Whole files are replaced in one step, so a kill leaves the old or the new one; a line that a kill tore off is dropped.
"""

import gzip
import itertools
import json
import math
import os
import platform
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

import mage
from mage.config.loading import change_recipe, load_recipe, recipe_toml
from mage.config.recipe import Recipe
from mage.types import MetaEpisode

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pydantic",
    "open_spiel",
)
_META_EPISODE = TypeAdapter(MetaEpisode)
Json = dict[str, Any]


class RunError(ValueError):
    """A run folder that cannot be made, read or written: what happened, and what to do."""


class RunFolder:
    """The one place that knows which file of a run holds what."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self.checkpoints = path / "checkpoints"
        self.warm = path / "warm"

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe) -> Self:
        """A new folder; one that exists is never written over."""
        path = Path(path)
        try:
            path.mkdir(parents=True)
            for folder in ("episodes", "checkpoints", "evaluations"):
                (path / folder).mkdir()
        except FileExistsError:
            raise RunError(
                f"{path} exists already: go on with it (--resume {path}), give the run another name (--run.name=...) or remove it"
            ) from None
        except OSError as error:
            raise _cannot("make", path, error) from None
        write_json(path / "versions.json", versions())
        write_atomic(
            path / "recipe.toml", recipe_toml(recipe).encode()
        )  # last: its presence says that the folder is complete
        return cls(path, recipe)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """An existing run, with the recipe it was started with."""
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            raise RunError(f"{path} is not a run folder: it has no recipe.toml")
        return cls(path, load_recipe(path / "recipe.toml"))

    def begun_recipe(self) -> Recipe:
        """The recipe as training reads it: it starts from what the run's own warm-up made, where there was one."""
        return (
            change_recipe(self.recipe, [f"--model.path={self.warm}"])
            if self.warm.exists()
            else self.recipe
        )

    # -- figures of every update

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add the figures of one update; `record["update"]` is its number."""
        _append_line(self.path / "metrics.jsonl", record)

    def append_timing(self, record: Mapping[str, Any]) -> None:
        """Add the wall-clock figures of one update."""
        _append_line(self.path / "timing.jsonl", record)

    def metrics(self) -> list[Json]:
        return _read_lines(self.path / "metrics.jsonl")

    def timing(self) -> list[Json]:
        return _read_lines(self.path / "timing.jsonl")

    def rewind(self, update: int) -> None:
        """Forget what came after an update: a resumed run writes it again."""
        for name in ("metrics.jsonl", "timing.jsonl"):
            if (self.path / name).exists():
                kept = [
                    record for record in _read_lines(self.path / name) if record["update"] <= update
                ]
                write_atomic(self.path / name, b"".join(map(_line, kept)))
        for name in self.evaluation_names():
            if (found := re.fullmatch(r"select_(\d+)", name)) and int(found[1]) > update:
                (self.path / "evaluations" / f"{name}.json").unlink()
        for step in self.episode_steps():
            if step > update:
                (self.path / "episodes" / f"{self._episodes_name(step)}.jsonl.gz").unlink()

    # -- transcripts

    def write_episodes(self, update: int, metas: Iterable[MetaEpisode]) -> Path:
        """Store the meta-episodes of an update."""
        return self.write_episodes_of(self._episodes_name(update), metas)

    def write_episodes_of(self, name: str, metas: Iterable[MetaEpisode]) -> Path:
        """Store meta-episodes under a name of their own: those of an evaluation."""
        path = self.path / "episodes" / f"{name}.jsonl.gz"
        text = "".join(
            json.dumps(meta, default=_as_dict, separators=(",", ":")) + "\n" for meta in metas
        )
        write_atomic(path, gzip.compress(text.encode(), compresslevel=5, mtime=0))
        return path

    def read_episodes(self, update: int) -> list[MetaEpisode]:
        """The meta-episodes of an update, as the records they were."""
        if update not in self.episode_steps():
            raise RunError(
                f"{self.path} holds no episodes of update {update}; it has {', '.join(map(str, self.episode_steps())) or 'none'}"
            )
        return self.read_episodes_of(self._episodes_name(update))

    def read_episodes_of(self, name: str) -> list[MetaEpisode]:
        """The meta-episodes stored under a name."""
        path = self.path / "episodes" / f"{name}.jsonl.gz"
        if not path.is_file():
            raise RunError(f"there is no {path}")
        try:
            lines = gzip.decompress(path.read_bytes()).decode().splitlines()
            return [_META_EPISODE.validate_python(json.loads(line)) for line in lines]
        except (OSError, EOFError, zlib.error, ValidationError, ValueError) as error:
            raise RunError(
                f"{path} is damaged and cannot be read ({type(error).__name__})"
            ) from None

    def episode_steps(self) -> list[int]:
        """The updates whose episodes are stored."""
        names = [
            re.fullmatch(r"step_(\d+)\.jsonl\.gz", path.name)
            for path in (self.path / "episodes").glob("step_*")
        ]
        return sorted(int(match[1]) for match in names if match)

    def _episodes_name(self, update: int) -> str:
        return f"step_{update:06d}"

    # -- results

    def write_evaluation(self, name: str, result: Mapping[str, Any]) -> Path:
        return write_json(self.path / "evaluations" / f"{name}.json", result)

    def read_evaluation(self, name: str) -> Json:
        return read_json(self.path / "evaluations" / f"{name}.json")

    def evaluation_names(self) -> list[str]:
        return sorted(path.stem for path in (self.path / "evaluations").glob("*.json"))

    def shards(self, name: str) -> Path:
        """Where an evaluation stores what it has played so far."""
        return self.path / "evaluations" / f"{name}.shards.jsonl"

    def delete_shards(self) -> None:
        for path in (self.path / "evaluations").glob("*.shards.jsonl"):
            path.unlink()

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        return write_json(self.path / "summary.json", summary)

    def read_summary(self) -> Json:
        return read_json(self.path / "summary.json")


def choose_path(runs: str | Path, recipe: Recipe, title: str) -> Path:
    """Where a new run goes: under the name it was given, else under the recipe's title and the next free number."""
    if recipe.run.name:
        return Path(runs) / recipe.run.name
    return next(
        path
        for number in itertools.count(1)
        if not (path := Path(runs) / f"{title}-{number}").exists()
    )


def versions() -> Json:
    """What this run runs on, for whoever wants to repeat it."""
    return {
        "mage": mage.__version__,
        "commit": _commit(Path(mage.__file__).parent.parent / ".git"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit(git: Path) -> str | None:
    """The commit that is checked out, read from git's own files; None outside of a clone."""
    if not (git / "HEAD").is_file():
        return None
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    loose, packed = git / head[5:], git / "packed-refs"
    if loose.is_file():
        return loose.read_text().strip()
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {head[5:]}")), None)


# -- files


def write_atomic(path: Path, data: bytes) -> Path:
    """Replace a file in one step: after a kill or on a full disk the old one is still whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        _remove(temporary)
        raise _cannot("write", path, error) from None
    return path


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    return write_atomic(path, (json.dumps(_finite(value), indent=2) + "\n").encode())


def read_json(path: Path) -> Json:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise RunError(f"there is no {path}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, not only a kill."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except (
        OSError
    ):  # the disk that refused the write may refuse this too; the first error is the one to tell
        return


def _append_line(path: Path, record: Mapping[str, Any]) -> None:
    try:
        with open(path, "ab+") as file:
            size = file.tell()
            if (whole := _whole_lines(file, size)) < size:
                file.truncate(whole)
            file.write(_line(record))
            file.flush()
    except OSError as error:
        raise _cannot("write", path, error) from None


def _whole_lines(file: Any, size: int) -> int:
    """How many bytes of a file are whole lines: a kill may have left half a line at its end."""
    if not size:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    return int(file.read().rfind(b"\n") + 1)


def _read_lines(path: Path) -> list[Json]:
    if not path.is_file():
        return []
    whole, _, _torn = path.read_bytes().rpartition(b"\n")
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(_finite(record)) + "\n").encode()


def _finite(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null, so that any program can read the file."""
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_dict(record: Any) -> Json:
    assert is_dataclass(record), (
        f"only records and plain values are stored, not {type(record).__name__}"
    )
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _cannot(verb: str, path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot {verb} {path}: {error.strerror or error}. What was saved before is untouched; make room or choose another place, then --resume"
    )
