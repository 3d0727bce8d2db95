"""Copy the results of a run into the repository: `python scripts/keep_results.py RUN results/NAME`.

Small files only: the recipe, the figures of every update, the evaluations, the outcomes of all
tasks of the final panels (compressed), curves and transcripts; no weights, no checkpoints.
"""

import argparse
import json
import platform
import shutil
from pathlib import Path

from mage.evaluation.kept_rows import write_kept_rows
from mage.evaluation.rows import read_tasks
from mage.run_folder import RunFolder, read_json
from mage.run_folder.files import write_sealed
from mage.viewer.report import write_report

_TRANSCRIPTS = 60_000  # characters: about ten of them


def keep(run: Path, target: Path) -> None:
    """Copy the results of a run; an existing target folder is replaced."""
    folder = RunFolder.open(run)
    write_report(folder)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    figures = ("metrics.jsonl", "metrics.sha256", "timing.jsonl")
    for name in ("recipe.toml", *figures, "report/curves.png"):
        if (run / name).is_file():
            shutil.copy(run / name, target / Path(name).name)
    for name, change in (
        ("summary.json", {"run": run.name}),
        ("versions.json", {"platform": platform.system()}),
    ):
        if (run / name).is_file():
            content = read_json(run / name) | change
            for key in ("sha256", "evaluations"):  # its checksum before the change; not kept
                content.pop(key, None)
            write_sealed(target / name, content)
    finals = [name for name in folder.evaluation_names() if not name.startswith("select_")]
    for name in finals:
        shutil.copy(run / "evaluations" / f"{name}.json", target / f"{name}.json")
    panels = {name: run / "evaluations" / f"{name}.tasks.jsonl" for name in finals}
    rows = {name: read_tasks(path) for name, path in panels.items() if path.is_file()}
    if rows:
        write_kept_rows(target, rows)
    selected = {
        name: _overall(run / "evaluations" / f"{name}.json")
        for name in folder.evaluation_names()
        if name not in finals
    }
    (target / "select.json").write_text(json.dumps(selected, indent=1) + "\n")
    transcripts = run / "report" / "transcripts.md"
    if transcripts.is_file():
        (target / "transcripts.md").write_text(_shorten(transcripts.read_text()))


def _overall(path: Path) -> object:
    return json.loads(path.read_text())["overall"]


def _shorten(text: str) -> str:
    """Whole transcripts up to the limit."""
    if len(text) <= _TRANSCRIPTS:
        return text
    return text[: text.rfind("\n### ", 0, _TRANSCRIPTS)] + "\n\n(the report of the run has more)\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    keep(given.run, given.target)
