"""Results of a panel by kind of task, from the stored rows of its tasks."""

from functools import lru_cache
from pathlib import Path

from mage.config.errors import ConfigError
from mage.evaluation.kinds import figures_by_kind
from mage.run_folder import Json, RunFolder
from mage.viewer.runs import panel_names, panel_rows


def panel_kinds(folder: RunFolder, name: str) -> Json:
    """Success and score of every kind and episode; no kinds if the environment has only one."""
    if name not in panel_names(folder):
        raise LookupError(name)
    path = folder.rows(name)
    return {"name": name, "kinds": _read_kinds(folder.path, name, path.stat().st_mtime_ns)}


@lru_cache(maxsize=64)
def _read_kinds(run: Path, name: str, changed: int) -> list[Json]:
    """Kept until the file changes, because worlds are generated to name their kinds."""
    folder = RunFolder.open(run)
    rows = panel_rows(folder, name)
    try:
        environment = folder.recipe.environment().for_split(rows[0].task.split)
        return [kind.to_json() for kind in figures_by_kind(environment, rows)]
    except (ConfigError, ValueError, OSError, IndexError):  # data of the environment is missing
        return []
