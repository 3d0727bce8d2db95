"""A run folder: everything that a run writes, and everything that it needs to resume.

recipe.toml    the resolved options       metrics.jsonl   one line per update, reproducible
versions.json  the software it ran with   metrics.sha256  checksums of these lines
episodes/NAME.jsonl.gz, NAME.index.json   timing.jsonl    wall-clock times of every update
evaluations/NAME.json                     checkpoints/    warm/ (if it began with a warm-up)
evaluations/NAME.tasks.jsonl              summary.json    .lock  the process that uses the run

A recipe with stages has a run folder of its own for each, `stages/1_NAME/`, with the weights of the
stage before in `start/`.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from mage.config.errors import did_you_mean
from mage.config.loading import read_stored
from mage.config.recipe import Recipe
from mage.run_folder.episode_files import write_meta_episodes
from mage.run_folder.files import (
    DamagedError,
    Json,
    RunError,
    append_line,
    file_digest,
    parse_lines,
    read_json,
    read_lines,
    read_packed,
    read_sealed,
    remove_partial,
    sync_folder,
    to_line,
    verify_checksums,
    write_atomic,
    write_json,
    write_lines,
    write_sealed,
)
from mage.run_folder.links import refuse_devices, refuse_links
from mage.run_folder.update_lines import UpdateLines
from mage.run_folder.versions import OWN_CODE, own_code, versions
from mage.types import MetaEpisode

_META_EPISODE = TypeAdapter(MetaEpisode)
_ROWS = "rows_sha256"  # in an evaluation: the checksum of its task rows
LAUNCH = ".launch.json"  # the launch (for example by torchrun) that created the run
_RECIPE = "recipe_sha256"  # in versions.json: the checksum of recipe.toml
_FORFEIT = (
    "forfeit_score"  # in versions.json: of the environment, so that readers need no code of it
)


class RunFolder:
    """Knows which file of a run holds what."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self.checkpoints = path / "checkpoints"
        self.warm = path / "warm"
        self.start = path / "start"  # of a later stage: the model that it begins with

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe, job: str = "") -> Self:
        """Create a new folder in one step; an existing folder is never overwritten.

        `job` names the launch that creates the run, so that a restart of it finds the run.
        """
        path = Path(path)
        if path.exists():
            raise _exists(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            remove_partial(path)
            cls._fill(temporary, recipe, job)
            temporary.rename(path)
            sync_folder(path.parent)
        except FileExistsError:
            raise _exists(path) from None
        except OSError as error:
            if path.is_dir() and any(path.iterdir()):  # another process was faster
                raise _exists(path) from None
            raise RunError(
                f"cannot create {path}: {error.strerror or error}. Choose another folder for runs, "
                "as in --runs FOLDER, or free some disk space"
            ) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return cls(path, recipe)

    @staticmethod
    def _fill(path: Path, recipe: Recipe, job: str) -> None:
        path.mkdir(parents=True)
        for folder in ("stages",) if recipe.stages else ("episodes", "checkpoints", "evaluations"):
            (path / folder).mkdir()
        text = recipe.toml().encode()
        digest = hashlib.sha256(text).hexdigest()
        facts = {_RECIPE: digest, _FORFEIT: float(recipe.environment().forfeit_score)}
        if code := own_code(recipe.toml()):
            facts[OWN_CODE] = code
        write_sealed(path / "versions.json", versions() | facts)
        if job:
            write_json(path / LAUNCH, {"job": job})
        write_atomic(path / "recipe.toml", text)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """An existing run, with the recipe it was started with. In stages: its newest stage."""
        return cls.open_whole(newest_stage(Path(path)))

    @classmethod
    def open_whole(cls, path: str | Path) -> Self:
        """The run folder itself, also of a run in stages."""
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            raise RunError(f"{path} is not a run folder: it has no recipe.toml.{_list_runs(path)}")
        refuse_devices(path)
        refuse_links(path)
        folder = cls(path, read_stored(path / "recipe.toml"))
        folder._check_recipe()
        return folder

    def _check_recipe(self) -> None:
        """Options that change during a run would give figures that no recipe explains."""
        path = self.path / "recipe.toml"
        if self.read_versions().get(_RECIPE, file_digest(path)) != file_digest(path):
            raise DamagedError(
                f"{path} was changed after the run began. Restore the file from a copy; to train "
                f"with changed options, start a new run: mage train {path} --run.name=NAME"
            )

    def read_versions(self) -> Json:
        """The software of the run; empty for a folder that is not a whole run."""
        path = self.path / "versions.json"
        if not path.is_file() and not path.is_symlink():
            if (self.path / "metrics.sha256").exists():
                raise DamagedError(f"{path} is missing")
            return {}
        old = read_json(path).get("run_format", 1) == 1  # written without a checksum
        return read_sealed(path, required=not old)

    def forfeit_score(self) -> float:
        """The score of an agent that gives no legal move."""
        known = self.read_versions().get(_FORFEIT)
        return float(self.recipe.environment().forfeit_score if known is None else known)

    @property
    def is_copy(self) -> bool:
        """Whether this is a copy without weights, as in `results/`: its file times say nothing."""
        return not self.checkpoints.exists()

    @property
    def is_checked(self) -> bool:
        """Whether the files carry checksums; those of old versions of MAGE do not."""
        return bool(self.read_versions().get("run_format", 1) != 1)

    def begun_recipe(self) -> Recipe:
        """The recipe that training uses: it starts from the run's own warm-up, if there is one."""
        return self._starting_from(self.warm) if self.warm.exists() else self.first_recipe()

    def first_recipe(self) -> Recipe:
        """The recipe that the warm-up uses: a later stage starts from the stage before."""
        return self._starting_from(self.start) if self.start.exists() else self.recipe

    def _starting_from(self, model: Path) -> Recipe:
        verify_checksums(model)
        return self.recipe.changed(model={"path": str(model)})

    def stage_folders(self) -> dict[Path, Recipe]:
        """The folder and the recipe of every stage, in order; the folders need not exist."""
        return {
            self.path / "stages" / f"{number}_{name}": recipe
            for number, (name, recipe) in enumerate(self.recipe.in_stages().items(), start=1)
        }

    # -- figures of every update

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add the metrics of one update; `record["update"]` is its number."""
        self._metrics().append(record)

    def append_timing(self, record: Mapping[str, Any]) -> None:
        """Add the wall-clock times of one update."""
        append_line(self.path / "timing.jsonl", to_line(record))

    def metrics(self) -> list[Json]:
        """The metrics of all updates, verified: updates 1, 2, 3, ... without a gap."""
        found = self._metrics().read()
        for expected, record in enumerate(found, start=1):
            if record.get("update") != expected:
                raise DamagedError(
                    f"{self.path / 'metrics.jsonl'} is damaged: line {expected} should hold "
                    f"update {expected}, it holds update {record.get('update')}"
                )
        return found

    def brief_metrics(self) -> list[Json]:
        """The metrics of the updates with warnings and of the last one.

        All lines are verified by their checksums; a list of runs does not wait for their content.
        """
        return self._metrics().read_marked(b'"warnings"')

    def count_updates(self) -> int:
        """The number of updates with metrics, verified by their checksums."""
        return self._metrics().count()

    def timing(self) -> list[Json]:
        path = self.path / "timing.jsonl"
        return parse_lines(path, read_lines(path))

    def check_metrics(self) -> None:
        """Verify all metrics; those of a finished run have no line too many."""
        self.metrics()
        if self.is_finished:
            self._metrics().check_end()

    def _metrics(self) -> UpdateLines:
        return UpdateLines(self.path / "metrics.jsonl", checked=self.is_checked)

    def rewind(self, update: int) -> None:
        """Delete what was written after an update: a resumed run writes it again."""
        self._metrics().keep_until(update)
        timing = self.path / "timing.jsonl"
        if timing.exists():
            kept = [record for record in self.timing() if record.get("update", 0) <= update]
            write_lines(timing, map(to_line, kept))
        for name in self.evaluation_names():
            if (found := re.fullmatch(r"select_(\d+)", name)) and int(found[1]) > update:
                self._evaluation(name).unlink()
        self._delete_episodes(step for step in self.episode_steps() if step > update)

    def delete_leftovers(self) -> None:
        """Delete what killed processes have left; the caller holds the lock."""
        for place in (self.path, self.path / "episodes", self.path / "evaluations"):
            for path in place.glob(".*.tmp"):
                if not path.is_dir():
                    path.unlink(missing_ok=True)
        if self.is_finished:  # killed after the summary was written
            self.delete_shards()
        for path in self.path.glob(f".{self.warm.name}-*"):
            shutil.rmtree(path, ignore_errors=True)

    def check_progress(self, update: int, evaluations: Iterable[str]) -> None:
        """Verify what a checkpoint of an update depends on: its metrics and evaluations."""
        if not self.is_checked:
            return
        if (found := len(self.metrics())) < update:
            raise DamagedError(
                f"{self.path / 'metrics.jsonl'} is damaged: it ends with update {found}, "
                f"but there is a checkpoint of update {update}. Updates {found + 1} to {update} "
                "are missing"
            )
        for name in sorted(evaluations):
            if not self._evaluation(name).is_file():
                raise DamagedError(f"{self._evaluation(name)} is missing")
        for name in self.evaluation_names():
            self.read_evaluation(name)

    # -- transcripts

    def write_episodes(self, update: int, metas: Iterable[MetaEpisode]) -> Path:
        """Store the meta-episodes of an update."""
        return self.write_episodes_of(self._episodes_name(update), metas)

    def write_episodes_of(self, name: str, metas: Iterable[MetaEpisode]) -> Path:
        """Store meta-episodes under a name, such as that of an evaluation."""
        path = self.path / "episodes" / f"{name}.jsonl.gz"
        write_meta_episodes(path, metas)
        return path

    def prune_episodes(self, keep: int) -> None:
        """Delete the transcripts of all but the newest `keep` stored updates; 0 keeps all."""
        self._delete_episodes(self.episode_steps()[:-keep] if keep else ())

    def _delete_episodes(self, steps: Iterable[int]) -> None:
        """Delete all files of these updates; the transcripts last, because they name the update.

        So a deletion that a kill has interrupted is repeated.
        """
        for step in steps:
            last = self.path / "episodes" / f"{self._episodes_name(step)}.jsonl.gz"
            others = set(last.parent.glob(f"{self._episodes_name(step)}.*")) - {last}
            for path in (*sorted(others), last):
                path.unlink(missing_ok=True)

    def read_episodes(self, update: int) -> list[MetaEpisode]:
        """The stored meta-episodes of an update."""
        if update not in self.episode_steps():
            stored = ", ".join(map(str, self.episode_steps())) or "none"
            raise RunError(f"{self.path} holds no episodes of update {update}; it has {stored}")
        return self.read_episodes_of(self._episodes_name(update))

    def read_episodes_of(self, name: str) -> list[MetaEpisode]:
        """The meta-episodes stored under a name."""
        path = self.path / "episodes" / f"{name}.jsonl.gz"
        if not path.is_file():
            raise RunError(f"there is no {path}")
        lines = read_packed(path)
        try:
            return [_META_EPISODE.validate_python(json.loads(line)) for line in lines]
        except (ValidationError, ValueError, RecursionError) as error:
            raise RunError(
                f"{path} is damaged and cannot be read ({type(error).__name__})"
            ) from None

    def stored_episodes(self, name: str) -> list[MetaEpisode]:
        """The meta-episodes stored under a name; none if there is no whole file."""
        try:
            return self.read_episodes_of(name)
        except RunError:
            return []

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
        """Store an evaluation with its checksum and that of its task rows, written before."""
        rows = self.rows(name)
        seal = {_ROWS: file_digest(rows)} if rows.is_file() else {}
        return write_sealed(self._evaluation(name), {**result, **seal})

    def read_evaluation(self, name: str) -> Json:
        """A stored evaluation; it and its task rows are verified."""
        result = read_sealed(self._evaluation(name), required=self.is_checked)
        digest, rows = result.pop(_ROWS, None), self.rows(name)
        if digest is not None and not rows.is_file():
            raise DamagedError(f"{rows} is missing")
        if digest is not None and file_digest(rows) != digest:
            raise DamagedError(
                f"{rows} does not match its checksum: it was changed after it was written"
            )
        return result

    def delete_evaluation(self, name: str) -> None:
        self._evaluation(name).unlink(missing_ok=True)

    def rows(self, name: str) -> Path:
        """The file of the task rows of an evaluation."""
        return self.path / "evaluations" / f"{name}.tasks.jsonl"

    def _evaluation(self, name: str) -> Path:
        return self.path / "evaluations" / f"{name}.json"

    def evaluation_names(self) -> list[str]:
        folder = self.path / "evaluations"
        if folder.exists() and not folder.is_dir():
            raise DamagedError(f"{folder} is damaged: it is not a folder")
        return sorted(path.stem for path in folder.glob("*.json"))

    def check_evaluations(self) -> None:
        """Raise DamagedError if an evaluation that this run has finished is missing."""
        stored = self.evaluation_names()
        for name in self._finished_evaluations():
            if name not in stored:
                raise DamagedError(f"{self._evaluation(name)} is missing")

    def _finished_evaluations(self) -> list[str]:
        """The names in the summary, or in the newest checkpoint of an unfinished run."""
        if self.is_finished:
            return list(self.read_summary().get("evaluations", ()))
        states = sorted(self.checkpoints.glob("update_*/state.json"))
        if not states or not self.is_checked:
            return []
        state = read_json(states[-1]).get("state")
        return list(state.get("evaluations", ())) if isinstance(state, dict) else []

    def shards(self, name: str) -> Path:
        """The file of the finished shards of an evaluation."""
        return self.path / "evaluations" / f"{name}.shards.jsonl"

    def delete_shards(self) -> None:
        for path in (self.path / "evaluations").glob("*.shards.jsonl"):
            path.unlink()

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        return write_sealed(self.path / "summary.json", summary)

    @property
    def is_finished(self) -> bool:
        last = [*self.stage_folders(), self.path][-2 if self.recipe.stages else -1]
        return (last / "summary.json").is_file()

    def read_summary(self) -> Json:
        return read_sealed(self.path / "summary.json", required=self.is_checked)


def list_stages(path: Path) -> list[Path]:
    """The stages of a run that have begun, in order; none for a run without stages."""
    found = [one.parent for one in path.glob("stages/[1-9]*_*/recipe.toml")]
    numbered = [one for one in found if re.match(r"[1-9][0-9]{0,8}_", one.name)]
    return sorted(numbered, key=lambda one: int(one.name.partition("_")[0]))


def run_of(path: Path) -> Path:
    """The run that a stage belongs to; the path itself if it is no stage."""
    whole = path.parent.parent
    return whole if path in list_stages(whole) else path


def newest_stage(path: Path) -> Path:
    """The newest stage of a run; the path itself if it has none."""
    return [path, *list_stages(path)][-1]


def _list_runs(path: Path) -> str:
    """The run folders beside a wrong path, with the most similar one as a suggestion."""
    beside = sorted(str(one.parent) for one in path.parent.glob("[!.]*/recipe.toml"))
    if not beside:
        return ""
    shown = ", ".join(beside[:20]) + (", ..." if len(beside) > 20 else "")
    return f"{did_you_mean(str(path), beside)} Run folders: {shown}."


def _exists(path: Path) -> RunError:
    resume = f"resume it (--resume {path})"
    if not (path / "recipe.toml").is_file():
        resume = "it is not a run (it has no recipe.toml)"
    return RunError(
        f"{path} exists already: {resume}, "
        "give the new run another name (--run.name=...), or delete the folder"
    )


def choose_path(runs: str | Path, recipe: Recipe, title: str) -> Path:
    """The folder of a new run: its given name, or the recipe's title and the next free number."""
    if recipe.run.name:
        return Path(runs) / recipe.run.name
    return next(
        path
        for number in itertools.count(1)
        if not (path := Path(runs) / f"{title}-{number}").exists()
    )
