"""The library: the runs and tables below the given folders, and the data paths that the page reads.

A data path is a list of names, never a path of the file system: the id of a run is looked up in a
table, and stored names are checked against the files of the run. So no request can leave a run.
"""

import itertools
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from mage.run_folder import Json, RunError, RunFolder, newest_stage, read_json
from mage.run_folder.files import reading
from mage.run_folder.links import refuse_links
from mage.viewer.comparison import compare_runs
from mage.viewer.credit import read_group_credit
from mage.viewer.runs import describe_run, list_run, panel_kinds, panel_tasks, read_text
from mage.viewer.transcripts import read_index, read_meta, read_prompts

DEPTH = 4  # levels of folders below a given folder in which runs are searched
_SKIPPED = {"checkpoints", "episodes", "evaluations", "tensorboard", "report", "start", "warm"}


class UnknownPath(LookupError):
    """A data path that the library does not have."""


class Library:
    """Answers data paths. Reads files only; call `refresh` to find new runs."""

    def __init__(self, places: Iterable[Path]) -> None:
        self.places = tuple(places)
        self.runs: dict[str, Path] = {}
        self.tables: dict[str, Path] = {}
        self._rows: dict[str, tuple[tuple[int, ...], Json]] = {}
        self._folders: dict[str, tuple[int, RunFolder]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Search the given folders again."""
        runs = [path for place in self.places for path in find_runs(place)]
        tables = [path for place in self.places for path in find_tables(place)]
        self.runs, self.tables = _name(runs), _name(tables)

    def get(self, path: str) -> Any:
        """The JSON value of a data path; raises UnknownPath."""
        with reading(path):
            return self._get(path)

    def _get(self, path: str) -> Any:
        match path.split("/"):
            case ["runs"]:
                self.refresh()
                return {
                    "runs": [self._row(id, path) for id, path in self.runs.items()],
                    "tables": [_table_row(id, path) for id, path in self.tables.items()],
                }
            case ["table", id]:
                return read_json(_look_up(self.tables, id))
            case ["compare", first, second]:
                return compare_runs(self.open(first), self.open(second))
            case ["run", id, *rest]:
                return self._get_run(self.open(id), rest)
        raise UnknownPath(path)

    def _row(self, id: str, path: Path) -> Json:
        """The row of a run; read again only if the run is active or its files have changed."""
        try:
            signature = _signature(newest_stage(path))
        except OSError:  # a private folder: `list_run` says so
            return list_run(id, path)
        if id in self._rows:
            known, row = self._rows[id]
            if known == signature and row["state"] != "running":
                return row
        row = list_run(id, path)
        self._rows[id] = (signature, row)
        return row

    def open(self, id: str) -> RunFolder:
        """The run folder; its recipe is read again only if the file has changed."""
        path = newest_stage(_look_up(self.runs, id))
        recipe = path / "recipe.toml"
        written = recipe.stat().st_mtime_ns if recipe.is_file() else 0
        if id not in self._folders or self._folders[id][0] != written:
            self._folders[id] = (written, RunFolder.open(path))
        refuse_links(path)
        return self._folders[id][1]

    def _get_run(self, folder: RunFolder, rest: list[str]) -> Any:
        match rest:
            case []:
                return describe_run(folder)
            case ["tasks", name]:
                return panel_tasks(folder, name)
            case ["text"]:
                return {"text": read_text(folder)}
            case ["kinds", name]:
                return panel_kinds(folder, name)
            case ["index", name]:
                return read_index(folder, name)
            case ["meta", name, number] if number.isdigit():
                return read_meta(folder, name, int(number))
            case ["prompts", name, number] if number.isdigit():
                return read_prompts(folder, name, int(number))
            case ["credit", name, group] if group.isdigit():
                return read_group_credit(folder, name, int(group))
        raise UnknownPath("/".join(rest))


def find_runs(place: Path) -> list[Path]:
    """The run folders at or below a place, in order of their names."""
    if not place.is_dir():
        raise RunError(f"there is no folder {place}: name a run folder or a folder of runs")
    if _is_run(place):
        return [place]
    found: list[Path] = []
    level, seen = [place], {place.resolve()}
    for _ in range(DEPTH):
        children = [child for folder in level for child in _folders(folder, seen)]
        found += [child for child in children if _is_run(child)]
        level = [child for child in children if not _is_run(child)]
    return sorted(found)


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "recipe.toml").is_file()
    except OSError:  # the folder of another user
        return False


def find_tables(place: Path) -> list[Path]:
    """The JSON files of `mage reproduce` at or directly below a place."""
    folders = [place, *_folders(place, {place.resolve()})]
    candidates = [path for folder in folders for path in folder.glob("*.json")]
    return sorted(path for path in candidates if _is_table(path))


def _is_table(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_file() or _is_run(path.parent):
            return False
        return _holds_table(path, path.stat().st_mtime)
    except OSError:
        return False


@lru_cache(maxsize=4096)
def _holds_table(path: Path, changed: float) -> bool:
    try:
        value = read_json(path)
    except RunError:
        return False
    return {"table", "results", "scale"} <= value.keys()


def _signature(path: Path) -> tuple[int, ...]:
    """Changes when the files of a run change."""
    names = ("recipe.toml", "metrics.jsonl", "evaluations", "summary.json")
    places = [path / name for name in names]
    return tuple(place.stat().st_mtime_ns if place.exists() else 0 for place in places)


def _folders(folder: Path, seen: set[Path]) -> list[Path]:
    """The folders below a folder, each once: links may lead to a folder that was `seen`."""
    try:
        found = {
            child.resolve(): child
            for child in sorted(folder.iterdir(), reverse=True)
            if child.is_dir() and child.name not in _SKIPPED and not child.name.startswith(".")
        }
    except OSError:
        return []
    new = [child for real, child in found.items() if real not in seen]
    seen |= found.keys()
    return new


def _name(paths: Iterable[Path]) -> dict[str, Path]:
    """Ids made of the folder names: letters, digits and a few signs, each id once."""
    found: dict[str, Path] = {}
    for path in dict.fromkeys(path.resolve() for path in paths):
        name = re.sub(r"[^A-Za-z0-9_.+-]", "_", path.stem if path.is_file() else path.name)
        parent = re.sub(r"[^A-Za-z0-9_.+-]", "_", path.parent.name)
        more = (f"{parent}.{name}.{k}" for k in itertools.count(2))
        choices = itertools.chain((name, f"{parent}.{name}"), more)
        found[next(one for one in choices if one not in found)] = path
    return found


def _look_up(entries: dict[str, Path], id: str) -> Path:
    if id not in entries:
        raise UnknownPath(id)
    return entries[id]


def _table_row(id: str, path: Path) -> dict[str, Any]:
    table, names = read_json(path), ("table", "scale", "model", "seeds", "worlds")
    return {"id": id, **{name: table.get(name) for name in names}}
