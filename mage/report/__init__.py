"""The report of a run: curves, transcripts, one page that holds both, and TensorBoard events.

A report can be written at any time, also while the run is active or after it was killed. It shows
the results that exist and leaves out the others.
"""

from pathlib import Path

from mage.report.curves import draw_curves
from mage.report.drawing import DARK, LIGHT
from mage.report.page import make_page
from mage.report.run_results import read_run_results
from mage.report.tensorboard import write_events
from mage.report.transcripts import choose_sections, to_markdown
from mage.run_folder import RunError, RunFolder, write_atomic

__all__ = ["write_report"]


def write_report(folder: RunFolder) -> list[Path]:
    """Rewrite RUN/report/ and RUN/tensorboard/; returns the files, the picture first."""
    results = read_run_results(folder)
    sections = choose_sections(results)
    light, dark = draw_curves(results, LIGHT), draw_curves(results, DARK)
    place = _make_folder(folder.path / "report")
    return [
        write_atomic(place / "curves.png", light),
        write_atomic(place / "transcripts.md", to_markdown(results, sections).encode()),
        write_atomic(place / "report.html", make_page(results, sections, light, dark).encode()),
        write_events(folder),
    ]


def _make_folder(place: Path) -> Path:
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create {place}: {error.strerror or error}") from None
    return place
