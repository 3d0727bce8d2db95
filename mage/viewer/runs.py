"""Runs as JSON for the page: one row of the run list, one run with curves, panels and recipe."""

import math
import time
from dataclasses import asdict
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from mage.config.errors import ConfigError, UserError
from mage.evaluation.compare import compare
from mage.evaluation.figures import Evaluation
from mage.evaluation.kinds import figures_by_kind
from mage.evaluation.rows import TaskRow
from mage.opponents.base import population_of
from mage.report.run_results import (
    STAGES,
    RunResults,
    Stage,
    read_rows,
    read_run_results,
    title_of,
)
from mage.report.verdict import tell_verdict
from mage.run_folder import Json, RunFolder, list_stages, run_of
from mage.run_folder.files import finite, reading
from mage.training.warnings import choice_warnings, start_warnings
from mage.types import Split

QUIET = 180.0  # seconds without a changed file after which an unfinished run counts as stopped
MOST_WARNINGS = 200  # of a run, the newest
MOST_POINTS = 4_000  # of a curve: a page with a million of them would not open
TEXT = "report/transcripts.md"  # a copy of a run without its stored meta-episodes has this text


def list_run(id: str, path: Path) -> Json:
    """A row of the run list; a damaged run is a row with its error."""
    try:
        with reading(path):
            return {"id": id, **_row(read_run_results(RunFolder.open(path), brief=True))}
    except (UserError, OSError) as error:
        return {"id": id, "title": path.name, "state": "damaged", "error": str(error)}


def _row(results: RunResults) -> Json:
    folder = results.folder
    last = results.selections[-1][1] if results.selections else None
    final = results.finals.get(("after", "test"))
    cell = final.overall if final is not None else last
    before = _stages_before(folder)
    return {
        "title": run_of(folder.path).name,
        "environment": results.environment,
        "opponents": sorted(population_of(folder.recipe).pool("train")),
        "state": state_of(results),
        "updates": sum(one.count_updates() for one in before) + results.updates,
        "total": _total_updates(folder),
        "seed": folder.recipe.run.seed,
        "seconds": results.seconds,
        "started": None if folder.is_copy else (folder.path / "recipe.toml").stat().st_mtime,
        "measure": results.measure.metric,
        "percent": results.measure.percent,
        "score": None if cell is None else _estimate(results.measure.of(cell.episodes[-1])),
        "first": None if cell is None else _estimate(results.measure.of(cell.episodes[0])),
        "warnings": _warnings(results),
    }


def _stages_before(folder: RunFolder) -> list[RunFolder]:
    """The stages of the same run that come before this one."""
    stages = list_stages(run_of(folder.path))
    return [RunFolder.open(path) for path in stages[: (*stages, folder.path).index(folder.path)]]


def _total_updates(folder: RunFolder) -> int:
    if run_of(folder.path) == folder.path:
        return folder.recipe.run.updates
    stages = RunFolder.open_whole(run_of(folder.path)).stage_folders().values()
    return sum(recipe.run.updates for recipe in stages)


def _warnings(results: RunResults) -> list[str]:
    """The warnings of the run: of its updates, of its chosen checkpoint and of its recipe."""
    recipe = results.folder.recipe
    lines = [line for record in results.metrics for line in record.get("warnings") or ()]
    lines = lines[-MOST_WARNINGS:]
    if results.finished and results.chosen_update is not None:
        lines += choice_warnings(recipe, results.chosen_update)
    return [*lines, *start_warnings(recipe)]


def _estimate(found: Any) -> Any:
    return None if found is None else finite(asdict(found))


def state_of(results: RunResults) -> str:
    """finished, running or stopped: an unfinished run is running while its files change."""
    if results.finished and RunFolder.open_whole(run_of(results.folder.path)).is_finished:
        return "finished"
    if results.folder.is_copy:
        return "stopped"
    paths = [results.folder.path, *results.folder.path.glob("*.jsonl")]
    paths += [results.folder.path / "evaluations", *results.folder.path.glob("evaluations/*")]
    newest = max(path.stat().st_mtime for path in paths if path.exists())
    slowest = max((record["total"] for record in results.folder.timing()), default=0.0)
    return "running" if time.time() - newest < max(QUIET, 3 * slowest) else "stopped"


def describe_run(folder: RunFolder) -> Json:
    """All that the page of a run shows, transcripts aside. Curves join the stages of a run."""
    results = read_run_results(folder)
    stages = [*map(read_run_results, _stages_before(folder)), results]
    offsets = [0, *accumulate(one.updates for one in stages)]
    return {
        **_row(results),
        "path": str(folder.path),
        "chosen_update": results.chosen_update,
        "episodes": results.episodes,
        "played": results.played,
        "borders": [
            {"update": offset, "name": stage.folder.path.name.partition("_")[2]}
            for offset, stage in zip(offsets, stages, strict=False)
            if len(stages) > 1
        ],
        "metrics": _joined([(one.metrics, k) for one, k in zip(stages, offsets, strict=False)]),
        "timing": _joined(
            [(tuple(one.folder.timing()), k) for one, k in zip(stages, offsets, strict=False)]
        ),
        "select": [
            {"update": offset + update, **finite(asdict(cell))}
            for stage, offset in zip(stages, offsets, strict=False)
            for update, cell in stage.selections
        ],
        "panels": [_panel(results, split) for split in results.splits],
        "stored": stored_names(folder),
        "has_text": has_text(folder),
        "recipe": folder.recipe.tables(),
        "toml": folder.recipe.toml(),
        "versions": results.versions,
    }


def _joined(stages: list[tuple[tuple[Json, ...], int]]) -> dict[str, list[Any]]:
    """The columns of all stages, as plots need them; a missing value is None.

    Each stage counts its updates from its offset.
    """
    records = [
        {**record, "update": record["update"] + offset} if offset else record
        for stage, offset in stages
        for record in stage
    ]
    step = math.ceil(len(records) / MOST_POINTS)
    shown = records[::step] if step > 1 else records
    shown = [*shown, *(records[-1:] if shown[-1:] != records[-1:] else ())]
    names = sorted({name for record in shown for name in record})
    return {name: [record.get(name) for record in shown] for name in names}


def _panel(results: RunResults, split: Split) -> Json:
    overall, names = results.overall(split), panel_names(results.folder)
    stages: dict[Stage, Evaluation] = {
        stage: results.finals[stage, split] for stage in STAGES if (stage, split) in results.finals
    }
    return {
        "split": split,
        "measure": results.measure_of(split).metric,
        "verdict": list(tell_verdict(overall, results.measure_of(split))),
        "stages": [
            {
                "stage": stage,
                "title": title_of(stage, overall),
                "overall": finite(asdict(found.overall)),
                "by_opponent": finite([asdict(cell) for cell in found.by_opponent]),
                "by_seat": finite([asdict(cell) for cell in found.by_seat]),
                "has_tasks": f"{stage}_{split}" in names,
            }
            for stage, found in stages.items()
        ],
        "pairs": _pairs(results, split),
        **_worlds(results, split),
    }


def _worlds(results: RunResults, split: Split) -> Json:
    """The panels of the worlds of a mix; nothing for other environments."""
    found = [{"world": one.world, **_panel(one, split)} for one in results.by_world()]
    return {"worlds": found} if found else {}


def _pairs(results: RunResults, split: Split) -> list[Json]:
    """After training against before and against the empty memory, task by task."""
    after = results.rows("after", split)
    found: list[Json] = []
    controls: tuple[Stage, ...] = ("before", "emptied")
    for stage in controls:
        other = results.rows(stage, split)
        if after and other and {row.task for row in after} == {row.task for row in other}:
            found.append({"against": stage, **compare(other, after).to_json()})
    return found


def has_text(folder: RunFolder) -> bool:
    """Whether the transcripts of the report are all that there is."""
    return not stored_names(folder) and (folder.path / TEXT).is_file()


def read_text(folder: RunFolder) -> str:
    """The transcripts in the report, for a run that stores no others; empty without a report."""
    path = folder.path / TEXT
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def panel_names(folder: RunFolder) -> list[str]:
    """The evaluations whose task rows are stored."""
    paths = (folder.path / "evaluations").glob("*.tasks.jsonl")
    return sorted(path.name.removesuffix(".tasks.jsonl") for path in paths)


def panel_rows(folder: RunFolder, name: str) -> tuple[TaskRow, ...]:
    """The task rows of an evaluation of `panel_names`."""
    rows = read_rows(folder, name)
    if rows is None:
        raise LookupError(name)
    return rows


def panel_tasks(folder: RunFolder, name: str) -> Json:
    """The plays of a final panel with the score and outcome of every episode."""
    tasks = []
    for row in panel_rows(folder, name):
        outcomes = [one[0] for one in row.outcomes]
        tasks.append([row.task.opponent, row.task.seat, row.scores, outcomes, row.member])
    return {"name": name, "tasks": tasks}


def panel_kinds(folder: RunFolder, name: str) -> Json:
    """Success and score of every kind and episode; no kinds if the environment has only one."""
    if name not in panel_names(folder):
        raise LookupError(name)
    changed = folder.rows(name).stat().st_mtime_ns
    return {"name": name, "kinds": _read_kinds(folder.path, name, changed)}


@lru_cache(maxsize=64)
def _read_kinds(run: Path, name: str, changed: int) -> list[Json]:
    """Kept until the file changes, because worlds are generated to name their kinds."""
    folder = RunFolder.open(run)
    try:
        kinds = figures_by_kind(folder.recipe.environment(), panel_rows(folder, name))
        return [kind.to_json() for kind in kinds]
    except (ConfigError, ValueError, OSError, IndexError):  # data of the environment is missing
        return []


def stored_names(folder: RunFolder) -> list[str]:
    """The names of stored meta-episodes: final panels first, then training from the newest."""
    names = {path.name for path in (folder.path / "episodes").glob("*.jsonl.gz")}
    plain = {name.removesuffix(".jsonl.gz") for name in names if name.count(".") == 2}
    steps = sorted((name for name in plain if name.startswith("step_")), reverse=True)
    return [*sorted(plain - set(steps), key=_panel_order), *steps]


def _panel_order(name: str) -> tuple[int, int, str]:
    stage, _, split = name.partition("_")
    stages, splits = {"after": 0, "emptied": 1, "before": 2}, {"test": 0, "ood": 1}
    return stages.get(stage, 3), splits.get(split, 2), name
