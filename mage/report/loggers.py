"""Loggers: copies of the figures of a run for other tools, chosen by `run.loggers`.

The run folder stays the source of all figures. A logger that fails is reported once and then
switched off; it never stops a run. Weights & Biases, Trackio and MLflow are imported only if they
are chosen, and their own settings (offline mode, server, account) apply.
"""

import csv
import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from mage.evaluation.figures import Evaluation
from mage.report.run_results import read_run_results
from mage.report.tensorboard import TensorBoardCallback, flatten
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback, Metrics

PROJECT = "mage"
Figures = dict[str, float]


def make_loggers(names: Iterable[str], warn: Callable[[str], None]) -> list[Callback]:
    """The chosen loggers; `warn` receives one line for a logger that fails."""
    return [SafeCallback(name, _KINDS[name], warn) for name in dict.fromkeys(names)]


class SafeCallback(Callback):
    """Passes events on until the inner callback fails; then reports it and passes nothing on."""

    def __init__(
        self, name: str, make: Callable[[], Callback], warn: Callable[[str], None]
    ) -> None:
        self.name, self.warn = name, warn
        self.inner: Callback | None = None
        self._call(lambda: setattr(self, "inner", make()))

    def on_start(self, folder: RunFolder, update: int) -> None:
        self._pass(lambda inner: inner.on_start(folder, update))

    def on_update(
        self, update: int, total: int, metrics: Metrics, timing: Mapping[str, float]
    ) -> None:
        self._pass(lambda inner: inner.on_update(update, total, metrics, timing))

    def on_evaluation(self, name: str, update: int, evaluation: Evaluation) -> None:
        self._pass(lambda inner: inner.on_evaluation(name, update, evaluation))

    def _pass(self, event: Callable[[Callback], None]) -> None:
        inner = self.inner
        if inner is not None:
            self._call(lambda: event(inner))

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
        section = "select" if name.startswith("select") else name
        self.log(update, numbers(section, flatten(evaluation.overall)))

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


def _history(folder: RunFolder) -> Iterator[tuple[int, Figures]]:
    for record in folder.metrics():
        yield record["update"], numbers("train", record)
    for record in folder.timing():
        yield record["update"], numbers("time", record)
    for update, cell in read_run_results(folder).selections:
        yield update, numbers("select", flatten(cell))


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
        self.module.init(project=PROJECT, config=folder.recipe.tables(), resume="allow", **options)

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
        self.module.set_experiment(PROJECT)
        self.module.end_run()  # an earlier run of this process, if one is open
        earlier = self.module.search_runs(
            filter_string=f"tags.`mage.run` = '{identity}'", output_format="list"
        )
        if earlier:
            self.module.start_run(run_id=earlier[0].info.run_id)
        else:
            self.module.start_run(run_name=folder.path.name, tags={"mage.run": identity})
        tables = folder.recipe.tables().items()
        flat = {
            f"{section}.{key}": value for section, table in tables for key, value in table.items()
        }
        self.module.log_params({key: str(value)[:500] for key, value in flat.items()})

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
