"""Loggers: copies of the figures of a run for other tools, chosen by `run.loggers`.

The run folder stays the source of all figures. A logger that fails is reported once and then
switched off; it never stops a run. Weights & Biases, Trackio and MLflow are imported only if they
are chosen, and their own settings (project, offline mode, server, account) apply.
"""

import csv
import hashlib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mage.evaluation.figures import Cell, Evaluation
from mage.report.run_results import DRAWS, PASS, REGRET, SCORE, SUCCESS, read_run_results
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback, Forwarder, Metrics

if TYPE_CHECKING:  # loads torch
    from torch.utils.tensorboard import SummaryWriter

PROJECT = "mage"
Figures = dict[str, float]


def make_loggers(names: Iterable[str], warn: Callable[[str], None]) -> list[Callback]:
    """The chosen loggers; `warn` receives one line for a logger that fails."""
    return [SafeCallback(name, _KINDS[name], warn) for name in dict.fromkeys(names)]


class SafeCallback(Forwarder):
    """Passes events on until the inner callback fails; then reports it and passes nothing on."""

    def __init__(
        self, name: str, make: Callable[[], Callback], warn: Callable[[str], None]
    ) -> None:
        self.name, self.warn = name, warn
        self.inner: Callback | None = None
        self._call(lambda: setattr(self, "inner", make()))

    def forward(self, event: str, *about: Any) -> None:
        if self.inner is not None:
            self._call(lambda: getattr(self.inner, event)(*about))

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a logger is a foreign program: any failure is possible
            self.inner = None
            line = str(error).strip().splitlines()
            self.warn(
                f"logger {self.name} failed and is off: {type(error).__name__}"
                f"{': ' + line[0] if line else ''}. The run continues; its folder has all figures."
            )


class FiguresCallback(Callback):
    """A logger that takes named numbers at an update; subclasses say where they go."""

    def on_update(
        self, update: int, total: int, metrics: Metrics, timing: Mapping[str, float]
    ) -> None:
        self.log(update, {**numbers("train", metrics), **numbers("time", timing)})

    def on_evaluation(self, name: str, update: int, evaluation: Evaluation) -> None:
        self.log(update, _numbers_of(name, evaluation.overall))

    def log(self, update: int, figures: Figures) -> None:
        """Take the figures of an update."""
        raise NotImplementedError


def numbers(section: str, figures: Mapping[str, Any]) -> Figures:
    """The numbers among figures as SECTION/NAME.

    >>> numbers("train", {"update": 3, "score_1": 0.5, "kl": None})
    {'train/score_1': 0.5}
    """
    return {
        f"{section}/{name}": float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and name != "update"
    }


def _numbers_of(name: str, cell: Cell) -> Figures:
    """The overall figures of an evaluation; all select panels share the names of one curve."""
    return numbers("select" if name.startswith("select") else name, flatten(cell))


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


def _history(folder: RunFolder) -> Iterator[tuple[int, Figures]]:
    """All figures of a run so far, as the events of training gave them."""
    results = read_run_results(folder)
    for record in folder.timing():
        yield record["update"], numbers("time", record)
    for record in results.metrics:
        yield record["update"], numbers("train", record)
    for update, cell in results.selections:
        yield update, _numbers_of("select", cell)
    for (stage, split), found in results.finals.items():
        update = 0 if stage == "before" else results.chosen_update or 0
        yield update, _numbers_of(f"{stage}_{split}", found.overall)


class TensorBoardCallback(FiguresCallback):
    """RUN/tensorboard/. A resumed run rebuilds it from the run folder, so no update shows twice."""

    def __init__(self) -> None:
        self.writer: SummaryWriter | None = None

    def on_start(self, folder: RunFolder, update: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place, began = folder.path / "tensorboard", (folder.path / "recipe.toml").stat().st_mtime
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        # Step 0 makes a TensorBoard that shows this run drop what it has read.
        self.writer = SummaryWriter(str(place), purge_step=0)
        clock = {0: began}  # the approximate end of every update
        for record in folder.timing():
            clock[record["update"]] = began = began + record["total"]
        for number, figures in _history(folder):
            self._add(number, figures, clock.get(number, began))
        self.writer.flush()

    def log(self, update: int, figures: Figures) -> None:
        assert self.writer is not None, "on_start comes first"
        self._add(update, figures)
        self.writer.flush()  # a killed run loses no events

    def _add(self, update: int, figures: Figures, when: float | None = None) -> None:
        assert self.writer is not None, "on_start comes first"
        for name, value in figures.items():
            self.writer.add_scalar(_tag(name), value, update, walltime=when)


def _tag(name: str) -> str:
    """Before and after training are two points of one curve.

    >>> _tag("after_test/score_1"), _tag("emptied_test/score_1"), _tag("train/score_1")
    ('final_test/score_1', 'final_test_emptied/score_1', 'train/score_1')
    """
    section, _, figure = name.partition("/")
    stage, _, split = section.partition("_")
    if stage == "emptied":
        return f"final_{split}_emptied/{figure}"
    return f"final_{split}/{figure}" if stage in ("before", "after") else name


def write_events(folder: RunFolder) -> Path:
    """Rebuild RUN/tensorboard/ from the run folder; returns the event file."""
    logger = TensorBoardCallback()
    logger.on_start(folder, 0)
    assert logger.writer is not None, "on_start has made it"
    logger.writer.close()
    return max((folder.path / "tensorboard").glob("events.out.tfevents.*"))


class CsvCallback(FiguresCallback):
    """RUN/metrics.csv with the columns update, name, value; a resumed run rewrites it."""

    def __init__(self) -> None:
        self.path: Path | None = None

    def on_start(self, folder: RunFolder, update: int) -> None:
        self.path = folder.path / "metrics.csv"
        with open(self.path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(("update", "name", "value"))
        for number, figures in _history(folder):
            self.log(number, figures)

    def log(self, update: int, figures: Figures) -> None:
        assert self.path is not None, "on_start comes first"
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows((update, name, value) for name, value in figures.items())


class WandbCallback(FiguresCallback):
    """Weights & Biases, and Trackio, which has the same functions."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def on_start(self, folder: RunFolder, update: int) -> None:
        if self.module.__name__ == "wandb":
            options = {
                "name": folder.path.name,
                "id": _identity(folder),
                "dir": str(folder.path),
                "reinit": "finish_previous",  # a second run of this process has its own figures
            }
        else:  # Trackio finds the run to continue by its name only
            mark = hashlib.sha256(_identity(folder).encode()).hexdigest()[:6]
            options = {"name": f"{folder.path.name}-{mark}"}
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        config = folder.recipe.tables()
        self.module.init(project=project, config=config, resume="allow", **options)

    def on_evaluation(self, name: str, update: int, evaluation: Evaluation) -> None:
        if self.module.__name__ == "wandb" and not name.startswith("select"):
            # The chosen update lies before the last one, and wandb refuses an earlier step.
            self.module.run.summary.update(_numbers_of(name, evaluation.overall))
        else:
            super().on_evaluation(name, update, evaluation)

    def log(self, update: int, figures: Figures) -> None:
        self.module.log(figures, step=update)


def _identity(folder: RunFolder) -> str:
    """The same for a run and its continuation."""
    started = (folder.path / "recipe.toml").stat().st_mtime_ns
    return f"{folder.path.name}-{started:x}"[-64:]


class MlflowCallback(FiguresCallback):
    """MLflow: the recipe as parameters, the figures as metrics. A resumed run continues its own."""

    def __init__(self) -> None:
        self.module = importlib.import_module("mlflow")

    def on_start(self, folder: RunFolder, update: int) -> None:
        identity = _identity(folder)
        self.module.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        self.module.end_run()  # an earlier run of this process, if one is open
        earlier = self.module.search_runs(
            filter_string=f"tags.`mage.run` = '{identity}'", output_format="list"
        )
        if earlier:
            self.module.start_run(run_id=earlier[0].info.run_id)
        else:
            self.module.start_run(run_name=folder.path.name, tags={"mage.run": identity})
        options = folder.recipe.flat().items()
        self.module.log_params({key: str(value)[:500] for key, value in options})

    def log(self, update: int, figures: Figures) -> None:
        # MLflow allows letters, digits, and the signs _-./ and space in the name of a metric.
        self.module.log_metrics(figures, step=update)


_KINDS: dict[str, Callable[[], Callback]] = {
    "tensorboard": TensorBoardCallback,
    "csv": CsvCallback,
    "wandb": lambda: WandbCallback(importlib.import_module("wandb")),
    "trackio": lambda: WandbCallback(importlib.import_module("trackio")),
    "mlflow": MlflowCallback,
}
