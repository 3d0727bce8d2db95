"""The report of a run: curves, transcripts, TensorBoard events, and the viewer's page in one file.

A report can be written whenever no process uses the run, also after a kill. It shows the
results that exist and leaves out the others.
"""

from pathlib import Path

from mage.report.loggers import write_events
from mage.report.run_results import read_run_results
from mage.report.transcripts import write_transcripts
from mage.run_folder import RunError, RunFolder, write_atomic
from mage.run_folder.files import reading
from mage.viewer.export import collect, write_file
from mage.viewer.library import Library

EPISODES = 24  # meta-episodes of each stored set in the page


def write_report(folder: RunFolder) -> list[Path]:
    """Rewrite RUN/report/ and RUN/tensorboard/; returns the files, the picture first."""
    from mage.report.curves import draw_curves  # it loads matplotlib

    with reading(folder.path):
        results = read_run_results(folder)
        transcripts = write_transcripts(results).encode(errors="replace")
        place = _make_folder(folder.path / "report")
        pictures = draw_curves(results)
        return [
            *(write_atomic(place / f"curves.{kind}", data) for kind, data in pictures.items()),
            write_atomic(place / "transcripts.md", transcripts),
            write_run_page(folder, place / "report.html"),
            write_events(folder),
        ]


def write_run_page(folder: RunFolder, target: Path) -> Path:
    """The viewer with one run as a single file that opens from disk."""
    library = Library([folder.path])
    data = collect(library, episodes=EPISODES, prompts=False)
    return write_file(target, data, start=f"run/{next(iter(library.runs))}")


def _make_folder(place: Path) -> Path:
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create {place}: {error.strerror or error}") from None
    return place
