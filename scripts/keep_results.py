"""Copy a run into the repository: `python scripts/keep_results.py RUN results/NAME`.

The copy is a run folder without weights, times and stored meta-episodes: the recipe, the figures of
every update, the evaluations (of the select panels only the overall figures), curves and
transcripts. Write a README.md beside them: command, machine, figures, date.
"""

import argparse
import platform
import shutil
from pathlib import Path

from mage.api.report import write_report
from mage.run_folder import RunFolder
from mage.run_folder.files import read_sealed, write_sealed

_TRANSCRIPTS = 60_000  # characters: about ten of them
_PARTS = ("by_opponent", "by_seat", "by_opponent_seat")


def keep(run: Path, target: Path) -> None:
    """Copy the results of a run; an existing target folder is replaced."""
    folder = RunFolder.open(run)
    write_report(folder)
    shutil.rmtree(target, ignore_errors=True)
    for place in (target / "evaluations", target / "report"):
        place.mkdir(parents=True)
    for name in ("recipe.toml", "metrics.jsonl", "metrics.sha256", "report/curves.svg"):
        if (run / name).is_file():
            shutil.copy(run / name, target / name)
    text = (run / "report" / "transcripts.md").read_text()
    (target / "report" / "transcripts.md").write_text(_shorten(text))
    _rewrite(run, target, "versions.json", platform=platform.system())
    _rewrite(run, target, "summary.json", run=run.name)
    for name in folder.evaluation_names():
        select = dict.fromkeys(_PARTS, ()) if name.startswith("select_") else {}
        _rewrite(run, target, f"evaluations/{name}.json", **select)
        if folder.rows(name).is_file():
            shutil.copy(folder.rows(name), target / "evaluations")


def _rewrite(run: Path, target: Path, name: str, /, **changes: object) -> None:
    """Copy a sealed file with some values changed."""
    if (run / name).is_file():
        write_sealed(target / name, read_sealed(run / name, required=False) | changes)


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
