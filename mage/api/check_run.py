"""Verify a whole run folder: `mage check RUN`. Nothing is changed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mage.config.errors import ConfigError, UserError
from mage.evaluation.rows import read_tasks
from mage.learn import checkpoint
from mage.run_folder import RunFolder, list_stages, run_of
from mage.run_folder.files import reading, verify_checksums
from mage.run_folder.links import refuse_links
from mage.run_folder.turn_files import read_credits, read_moves
from mage.training.league import FOLDER, check_copy, read_copies
from mage.training.resume import check_base, check_start, read_best


@dataclass(frozen=True, slots=True)
class RunCheck:
    """What is wrong with a run folder, and what else a user should know."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]


def check_run(folder: RunFolder) -> RunCheck:
    """Read every file of a run, or of all its stages, and verify its checksum."""
    if folder.recipe.stages:
        return _check_stages(folder)
    versions = list(_fault(folder.read_versions))
    if versions:  # without the format of the run nothing else can be judged
        return RunCheck(tuple(versions), ())
    faults = [
        *_faults(check_files, folder),
        *_fault(folder.timing),
        *_fault(verify_checksums, folder.warm),
        *_fault(verify_checksums, folder.start),
        *_faults(_check_episodes, folder),
        *_faults(_check_checkpoints, folder),
        *_faults(_check_summary, folder),
    ]
    return RunCheck(tuple(dict.fromkeys(faults)), tuple(_notes(folder)))


def check_path(path: Path) -> RunCheck:
    """`check_run` for a folder that may hold links, which no command opens."""
    links = list(_fault(refuse_links, path))
    return RunCheck(tuple(links), ()) if links else check_run(RunFolder.open_whole(path))


def _check_stages(run: RunFolder) -> RunCheck:
    """Every stage that has begun, and that each has the recipe that the run gives it."""
    folders = [RunFolder.open(path) for path in list_stages(run.path)]
    found = [check_run(folder) for folder in folders]
    planned = run.stage_folders()
    other = [folder.path for folder in folders if planned.get(folder.path) != folder.recipe]
    faults = [
        *(f"{path} has another recipe than its run gives it" for path in other),
        *(line for one in found for line in one.faults),
    ]
    notes = [line for one in found for line in one.notes]
    if not run.is_finished:
        begun = f"{len(found)} of {len(run.recipe.stages)} stages have begun"
        notes.append(f"{begun}: mage train --resume {run.path} continues")
    return RunCheck(tuple(faults), tuple(notes))


def check_files(folder: RunFolder) -> list[str]:
    """The faults of the small files: metrics and evaluations."""
    names = list(_fault(folder.evaluation_names)) or list(_fault(folder.check_evaluations))
    return [*_fault(folder.check_metrics), *names, *(() if names else _check_evaluations(folder))]


def _fault(read: Callable[..., Any], *arguments: Any) -> Iterator[str]:
    try:
        with reading(arguments[0] if arguments else "a file of the run"):
            read(*arguments)
    except (UserError, OSError) as error:
        yield str(error)


def _faults(check: Callable[[RunFolder], Iterable[str]], folder: RunFolder) -> Iterator[str]:
    """The lines of a check; values of wrong types end it with one line more."""
    try:
        with reading(folder.path):
            yield from check(folder)
    except (UserError, OSError) as error:
        yield str(error)


def _check_evaluations(folder: RunFolder) -> Iterator[str]:
    for name in folder.evaluation_names():
        found = list(_fault(folder.read_evaluation, name))
        yield from found
        if not found and folder.rows(name).is_file():
            yield from _fault(read_tasks, folder.rows(name))


def _check_episodes(folder: RunFolder) -> Iterator[str]:
    for path in sorted((folder.path / "episodes").glob("*.jsonl.gz")):
        name = path.name.removesuffix(".jsonl.gz")
        if name.endswith(".credit"):
            yield from _fault(read_credits, folder.path, name.removesuffix(".credit"))
        elif name.endswith(".moves"):
            yield from _fault(read_moves, folder.path, name.removesuffix(".moves"))
        else:
            yield from _fault(folder.read_episodes_of, name)


def _check_checkpoints(folder: RunFolder) -> Iterator[str]:
    """All checkpoints; of the newest also the best one and the copies of a league that it names.

    An older checkpoint may name a best one that was replaced and deleted since then.
    """
    for number, path in enumerate(checkpoint.newest_first(folder.checkpoints)):
        try:
            state = checkpoint.read_state(path)
        except ValueError as error:
            yield str(error)
            continue
        yield from _fault(
            folder.check_progress, checkpoint.update_of(path), state.get("evaluations", ())
        )
        if number == 0:
            yield from _check_named(folder, state)


def _check_named(folder: RunFolder, state: Mapping[str, Any]) -> Iterator[str]:
    best = read_best(state)
    if best and not (path := checkpoint.place(folder.checkpoints, best[1])).is_dir():
        yield f"{path} is missing: it is the best"
    yield from _fault(_check_base, folder, state)
    for one in read_copies(state.get("league", ())):
        yield from _fault(check_copy, folder.path / FOLDER, one)


def _check_base(folder: RunFolder, state: Mapping[str, Any]) -> None:
    with suppress(ConfigError):  # the base model is not on this machine
        check_base(state, folder.begun_recipe(), folder.path, download=False)


def _check_summary(folder: RunFolder) -> Iterator[str]:
    path = folder.path / "summary.json"
    if not path.is_file():
        return
    found = list(_fault(folder.read_summary))
    yield from found
    if not found:
        stored = folder.evaluation_names()
        for name in _expected_evaluations(folder.read_summary()):
            if name not in stored:
                yield f"{folder.path / 'evaluations' / name}.json is missing"


def _expected_evaluations(summary: dict[str, Any]) -> Iterator[str]:
    for stage, name in (("before", "before"), ("after", "after"), ("memory_emptied", "emptied")):
        yield from (f"{name}_{split}" for split in summary.get(stage, ()))


def _notes(folder: RunFolder) -> Iterator[str]:
    if not folder.is_checked:
        yield "an old version of MAGE wrote this run: metrics and evaluations have no checksums"
    if not (folder.path / "summary.json").is_file():
        newest = checkpoint.latest(folder.checkpoints).path
        where = "its start" if newest is None else f"update {checkpoint.update_of(newest)}"
        again = f"mage train --resume {run_of(folder.path)}"
        lost = () if newest else tuple(_fault(check_start, folder))
        yield from lost or (f"the run is not finished: {again} continues from {where}",)
    patterns = (".*.tmp", ".*.partial", ".*.deleted")
    found = (path for pattern in patterns for path in folder.path.rglob(pattern))
    for path in sorted(path for path in found if path.exists()):
        yield f"{path} is a temporary file of an interrupted process; it may be deleted"
