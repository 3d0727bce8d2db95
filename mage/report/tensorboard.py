"""TensorBoard events, written with TensorBoard's own records and without torch or TensorFlow.

The event file is a copy of the run folder: a new writer rebuilds it, so a resumed run shows no
update twice. Every record is appended by a call of its own and no file stays open. So a killed run
loses no events, and a report may rebuild the file during a run.
"""

import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from mage.evaluation.figures import Cell, Evaluation
from mage.report.run_results import (
    DRAWS,
    PASS,
    REGRET,
    SCORE,
    SUCCESS,
    RunResults,
    read_run_results,
)
from mage.run_folder import RunError, RunFolder, write_atomic
from mage.training.callbacks import Callback, Metrics

_PATTERN = "events.out.tfevents.*"


def write_events(folder: RunFolder) -> Path:
    """Rebuild RUN/tensorboard/ from metrics, timing and evaluations; returns the event file."""
    writer = EventWriter(folder)
    writer.close()
    return writer.path


class TensorBoardCallback(Callback):
    """Writes the events of a run into RUN/tensorboard/ while it trains."""

    def __init__(self) -> None:
        self.writer: EventWriter | None = None

    def on_start(self, folder: RunFolder, update: int) -> None:
        self.writer = EventWriter(folder)

    def on_update(
        self, update: int, total: int, metrics: Metrics, timing: Mapping[str, float]
    ) -> None:
        assert self.writer is not None, "on_start comes first"
        self.writer.add(update, metrics)
        self.writer.add(update, timing, "time")

    def on_evaluation(self, name: str, update: int, evaluation: Evaluation) -> None:
        if self.writer is not None and name.startswith("select"):
            self.writer.add_evaluation(update, evaluation.overall)


class EventWriter:
    """Rebuilds the events from the run folder, then appends. Create it after `rewind`."""

    def __init__(self, folder: RunFolder) -> None:
        self.place = folder.path / "tensorboard"
        self._rebuild(folder)

    @property
    def path(self) -> Path:
        """The newest event file; a report may have rebuilt it, and a user may have removed it."""
        return max(self.place.glob(_PATTERN), default=self.place / _new_name())

    def add(self, update: int, figures: Mapping[str, Any], section: str = "train") -> None:
        """Append the numbers of one update as SECTION/NAME; other values are skipped."""
        self._append(_scalars(update, time.time(), section, figures))

    def add_evaluation(self, update: int, cell: Cell, section: str = "select") -> None:
        """Append the overall figures of an evaluation."""
        self.add(update, flatten(cell), section)

    def close(self) -> None:
        """Nothing to close: no file stays open between calls."""

    def _rebuild(self, folder: RunFolder) -> None:
        """Write a new file whose name sorts last, then delete the old ones: TensorBoard follows."""
        try:
            self.place.mkdir(exist_ok=True)
            write_atomic(self.place / _new_name(), b"".join(map(_record, _history(folder))))
            for old in sorted(self.place.glob(_PATTERN))[:-1]:
                old.unlink()
        except OSError as error:
            raise RunError(f"cannot write {self.place}: {error.strerror or error}") from None

    def _append(self, event: Event) -> None:
        try:
            self.place.mkdir(exist_ok=True)
            with open(self.path, "ab") as file:
                file.write(_record(event))
        except OSError as error:
            raise RunError(f"cannot write {self.place}: {error.strerror or error}") from None


def flatten(cell: Cell) -> dict[str, float | None]:
    """The figures of a cell by name and episode: score_1, score_1_low, ceiling_3, non_adapting."""
    found: dict[str, float | None] = {
        "non_adapting": cell.non_adapting,
        "knows_opponent": cell.knows_opponent,
    }
    for figures in cell.episodes:
        number = figures.episode
        for measure in (SCORE, SUCCESS, PASS, DRAWS, REGRET):
            estimate = measure.of(figures)
            if estimate is not None:
                parts = {"": estimate.value, "_low": estimate.low, "_high": estimate.high}
                found |= {f"{measure.metric}_{number}{end}": value for end, value in parts.items()}
        found |= {f"ceiling_{number}": figures.ceiling, f"illegal_{number}": figures.illegal}
    return found


def _history(folder: RunFolder) -> Iterator[Event]:
    """All events so far. The session log makes an active TensorBoard drop what it has read."""
    results, began = read_run_results(folder), (folder.path / "recipe.toml").stat().st_mtime
    yield Event(wall_time=began, file_version="brain.Event:2")
    yield Event(wall_time=began, step=0, session_log=SessionLog(status=SessionLog.START))
    clock = _clock(folder, began)
    for record in folder.timing():
        yield _scalars(record["update"], clock[record["update"]], "time", record)
    for record in results.metrics:
        yield _scalars(record["update"], clock.get(record["update"], began), "train", record)
    for update, section, cell in _measured(results):
        yield _scalars(update, clock.get(update, began), section, flatten(cell))


def _clock(folder: RunFolder, began: float) -> dict[int, float]:
    """The approximate end time of each update, from the stored durations."""
    clock: dict[int, float] = {}
    for record in folder.timing():
        began += record["total"]
        clock[record["update"]] = began
    return clock


def _measured(results: RunResults) -> Iterator[tuple[int, str, Cell]]:
    """Evaluations by update; before and after training are two points of one curve."""
    for update, cell in results.selections:
        yield update, "select", cell
    for (stage, split), evaluation in results.finals.items():
        section = f"final_{split}_emptied" if stage == "emptied" else f"final_{split}"
        yield 0 if stage == "before" else results.chosen_update or 0, section, evaluation.overall


def _scalars(update: int, when: float, section: str, figures: Mapping[str, Any]) -> Event:
    numbers = {
        name: value
        for name, value in figures.items()
        if isinstance(value, int | float) and name != "update"
    }
    values = [
        Summary.Value(tag=f"{section}/{name}", simple_value=float(value))
        for name, value in numbers.items()
    ]
    return Event(wall_time=when, step=update, summary=Summary(value=values))


def _new_name() -> str:
    """A file name that sorts by time; TensorBoard reads files with `tfevents` in their name."""
    seconds, fraction = divmod(time.time_ns(), 10**9)
    return f"events.out.tfevents.{seconds:010d}.{fraction:09d}.mage"


def _record(event: Event) -> bytes:
    buffer = BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()
