"""Kept results: a small copy of a run without weights, as in `results/` of the repository.

`scripts/keep_results.py` writes them. The final evaluations lie beside the recipe, the figures of
the select panels are in `select.json`, the task rows in `tasks.jsonl.xz` (`evaluation/kept_rows`).
"""

import re
from pathlib import Path

from mage.run_folder.files import Json, read_json, read_sealed

_FINAL = re.compile(r"(before|after|emptied)_[a-z]+")


def is_kept(run: Path) -> bool:
    """Whether a folder holds kept results; a run has its evaluations in a folder."""
    return not (run / "evaluations").exists()


def kept_names(run: Path) -> list[str]:
    """The names of the kept evaluations."""
    finals = [path.stem for path in run.glob("*.json") if _FINAL.fullmatch(path.stem)]
    return sorted([*finals, *_selected(run)])


def read_kept(run: Path, name: str, environment: str) -> Json:
    """A kept evaluation; of a select panel only the overall figures are known."""
    selected = _selected(run)
    if name not in selected:
        found = read_sealed(run / f"{name}.json", required=False)
        return {key: value for key, value in found.items() if key not in ("name", "rows_sha256")}
    parts: Json = {"by_opponent": [], "by_seat": [], "by_opponent_seat": []}
    return {"environment": environment, "split": "test", "overall": selected[name], **parts}


def _selected(run: Path) -> Json:
    path = run / "select.json"
    return read_json(path) if path.is_file() else {}
