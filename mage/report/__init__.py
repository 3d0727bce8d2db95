"""What people see of a run: curves, transcripts, one page that holds them all, and TensorBoard events.

A run may be reported at any time, also while it runs or after a kill: whatever is there is shown, what is missing is left out.
"""

from pathlib import Path

from mage.report.curves import DARK, LIGHT, draw_curves
from mage.report.page import make_page
from mage.report.run_results import read_run_results
from mage.report.tensorboard import write_events
from mage.report.transcripts import choose_sections, to_markdown
from mage.run_folder import RunError, RunFolder, write_atomic

__all__ = ["write_report"]


def write_report(folder: RunFolder) -> list[Path]:
    """Write RUN/report/ and RUN/tensorboard/ anew; returns the files, the picture first."""
    results = read_run_results(folder)
    sections = choose_sections(results)
    light, dark = draw_curves(results, LIGHT), draw_curves(results, DARK)
    place = _make(folder.path / "report")
    return [
        write_atomic(place / "curves.png", light),
        write_atomic(place / "transcripts.md", to_markdown(results, sections).encode()),
        write_atomic(place / "report.html", make_page(results, sections, light, dark).encode()),
        write_events(folder),
    ]


def _make(place: Path) -> Path:
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make {place}: {error.strerror or error}") from None
    return place
