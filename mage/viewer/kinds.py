"""Results of a panel by kind of task: task types of ALFWorld, numbers of boxes of Sokoban.

Kinds are not stored: the environment of the recipe names the kind of every episode from its seed.
"""

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from mage.config.errors import ConfigError
from mage.environments.base import Environment
from mage.evaluation.rows import TaskRow, average, finite, rate, read_tasks, score_of, success_of
from mage.run_folder import Json, RunFolder
from mage.viewer.runs import panel_names, tasks_path


def panel_kinds(folder: RunFolder, name: str) -> Json:
    """Success and score of every kind and episode; no kinds if the environment has only one."""
    if name not in panel_names(folder):
        raise LookupError(name)
    path = tasks_path(folder, name)
    return {"name": name, "kinds": _read_kinds(folder.path, path, path.stat().st_mtime_ns)}


@lru_cache(maxsize=64)
def _read_kinds(run: Path, path: Path, changed: int) -> list[Json]:
    """Kept until the file changes, because worlds are generated to name their kinds."""
    rows = read_tasks(path)
    try:
        environment = RunFolder.open(run).recipe.environment().for_split(rows[0].task.split)
        kinds = [_kinds_of(environment, row) for row in rows]
    except (ConfigError, ValueError, OSError, IndexError):  # data of the environment is missing
        return []
    names = sorted({kind for one in kinds for kind in one})
    episodes = range(max(len(row.scores) for row in rows))
    if len(names) < 2:
        return []
    return [
        {"kind": kind, "episodes": [_figures(rows, kinds, kind, k) for k in episodes]}
        for kind in names
    ]


def _kinds_of(environment: Environment, row: TaskRow) -> list[str]:
    """The kind of every episode of a task."""
    variant = environment.variant(row.task.seed)
    seeds = [environment.episode_seed(row.task.seed, k) for k in range(len(row.scores))]
    found = {seed: environment.task_kind(seed) for seed in dict.fromkeys(seeds)}
    return [found[seed] or variant for seed in seeds]


def _figures(rows: tuple[TaskRow, ...], kinds: list[list[str]], kind: str, k: int) -> Json:
    pairs = zip(rows, kinds, strict=True)
    played = [row for row, own in pairs if k < len(own) and own[k] == kind]
    success, score = rate(played, success_of(k)), average(played, score_of(k))
    return {
        "episode": k + 1,
        "tasks": len(played),
        "success": None if success is None else finite(asdict(success)),
        "score": None if score is None else finite(asdict(score)),
    }
