"""Loggers get the figures of a run, and a logger that fails never stops the run."""

import csv
import json
import struct
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mage.api.report import write_report
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.config.recipe import build_recipe
from mage.environments.kuhn_poker import KuhnPoker
from mage.opponents.base import Population
from mage.report.loggers import make_loggers
from mage.report.run_results import read_run_results
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback, CallbackList
from mage.training.start import train
from tests.report_runs import make_run
from tests.toys import summarise
from tests.view_runs import STYLES, play

TINY = (
    *("--run.updates=2", "--run.workers=1", "--play.groups=1", "--play.members=2"),
    *("--evaluate.size=1", "--evaluate.final_size=1", "--run.evaluate_every=0"),
)
TABLES = {"environments": {"name": "kuhn_poker"}, "opponents": {"train": STYLES}}


class FakeTracker(ModuleType):
    """Takes the calls of Weights & Biases, Trackio and MLflow; `broken` names a call that fails."""

    def __init__(self, name: str, broken: str = "") -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # other packages ask whether it is installed
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for call in ("init", "log", "set_experiment", "start_run", "log_params", "log_metrics"):
            setattr(self, call, self._make(call, broken))
        self.run = SimpleNamespace(summary={})
        self.end_run = lambda: None
        self.search_runs = lambda **options: []

    def _make(self, call: str, broken: str) -> Any:
        def take(*args: Any, **options: Any) -> None:
            if call == broken:
                raise ConnectionError("no server")
            self.calls.append((call, args, options))

        return take


def run_events(callback: Callback, folder: RunFolder) -> None:
    """The events of one update and two evaluations, in the order of the trainer."""
    callback.on_start(folder, 0)
    metrics = {"update": 1, "score_1": 0.5, "kl": None}
    callback.on_update(1, 2, metrics, {"total": 1.5})
    evaluation = summarise(play("test", 6), KuhnPoker(), Population(train=STYLES), "test")
    callback.on_evaluation("select_000001", 1, evaluation)
    callback.on_evaluation("after_test", 0, evaluation)


def new_folder(path: Path) -> RunFolder:
    return RunFolder.create(path, build_recipe(TABLES))


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_trackers_get_config_and_figures(name, tmp_path, monkeypatch):
    tracker, warnings = FakeTracker(name), list[str]()
    monkeypatch.setitem(sys.modules, name, tracker)
    monkeypatch.setenv("WANDB_PROJECT", "poker")
    run_events(CallbackList(make_loggers([name], warnings.append)), new_folder(tmp_path / "run"))
    assert warnings == []
    if name == "mlflow":
        calls = [call for call, _, _ in tracker.calls]
        assert calls == ["set_experiment", "start_run", "log_params", *3 * ["log_metrics"]]
        return
    init, update, evaluation, *finals = tracker.calls
    assert (init[2]["project"], init[2]["resume"]) == ("poker", "allow")
    assert init[2]["name"].startswith("run")
    assert init[2]["config"]["environments"]["name"] == "kuhn_poker"
    assert update[1:] == (({"train/score_1": 0.5, "time/total": 1.5},), {"step": 1})
    assert "select/score_3" in evaluation[1][0]
    # wandb refuses the step of a final panel, which lies before the last update
    final = tracker.run.summary if name == "wandb" else finals.pop()[1][0]
    assert "after_test/score_3" in final
    assert not finals


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_the_real_packages_log_offline_and_keep_the_runs_of_a_process_apart(
    name, tmp_path, monkeypatch
):
    """Figures, options and the user's own settings are read back from the files of the package."""
    monkeypatch.chdir(tmp_path)
    for variable, value in {
        **{"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_PROJECT": "poker"},
        **{"WANDB_ENTITY": "lab", "WANDB_RUN_GROUP": "seeds"},
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "MLFLOW_EXPERIMENT_NAME": "poker",
    }.items():
        monkeypatch.setenv(variable, value)
    pytest.importorskip(name)
    warnings: list[str] = []
    folders = [new_folder(tmp_path / run) for run in ("one", "two")]
    for folder in (*folders, folders[0]):  # the first run is continued
        run_events(CallbackList(make_loggers([name], warnings.append)), folder)
    assert warnings == []
    read = {"wandb": read_wandb, "trackio": read_trackio, "mlflow": read_mlflow}[name]
    found = read(tmp_path)
    assert sorted(found) == ["one", "two"]
    for options, figures in found.values():
        assert options == "kuhn_poker"
        assert figures["train/score_1"] == 0.5
        assert {"select/score_3", "after_test/score_3"} <= set(figures)


Found = dict[str, tuple[str, dict[str, float]]]  # by run: the environment, and all figures


def read_wandb(place: Path) -> Found:
    """The records of the files that `wandb sync` sends, by wandb's own classes."""
    sys.modules["wandb"].finish()
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found: Found = {}
    for path in sorted(place.rglob("*.wandb")):
        options, figures, run = "", dict[str, float](), ""
        for line in log_records(path.read_bytes()):
            record = records.Record.FromString(line)
            if record.HasField("run"):
                one = record.run
                assert (one.entity, one.project, one.run_group) == ("lab", "poker", "seeds")
                run = one.display_name
                options = next(
                    json.loads(item.value_json)["name"]
                    for item in one.config.update
                    if item.key == "environments"
                )
            for item in (*record.history.item, *record.summary.update):
                name, value = item.key or "/".join(item.nested_key), json.loads(item.value_json)
                figures |= {name: value} if isinstance(value, float) else {}
        found[run] = (options, found.get(run, ("", {}))[1] | figures)
    return found


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log: pieces in blocks of 32 KiB with checksum, length and kind."""
    at, whole = 7, b""  # the file begins with 7 bytes of wandb's own
    while at + 7 <= len(data):
        at += -at % 32768 if -at % 32768 < 7 else 0  # the end of a block is too short for a piece
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield whole
            whole = b""


def read_trackio(place: Path) -> Found:
    trackio = sys.modules["trackio"]
    trackio.finish()
    store = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    return {
        run.name[:3]: (
            run.config["environments"]["name"],
            {k: v for line in store.get_logs("poker", run.name) for k, v in line.items()},
        )
        for run in trackio.Api().runs("poker")
    }


def read_mlflow(place: Path) -> Found:
    mlflow = sys.modules["mlflow"]
    runs = mlflow.search_runs(experiment_names=["poker"], output_format="list")
    mlflow.end_run()  # at its exit the process would use another database
    return {
        run.info.run_name: (run.data.params["environments.name"], run.data.metrics) for run in runs
    }


@pytest.mark.e2e
def test_a_failing_logger_is_reported_once_and_the_run_continues(tmp_path, monkeypatch):
    """One fails at its start, one at an update, and one cannot be imported."""
    monkeypatch.setitem(sys.modules, "wandb", FakeTracker("wandb", "init"))
    monkeypatch.setitem(sys.modules, "trackio", FakeTracker("trackio", "log"))
    monkeypatch.setitem(sys.modules, "mlflow", None)
    folder, warnings = (
        RunFolder.create(tmp_path / "run", load_recipe("kuhn_poker", TINY)),
        list[str](),
    )
    loggers = make_loggers(["wandb", "trackio", "mlflow"], warnings.append)
    assert train(folder.path, CallbackList(loggers), lambda: False)["updates"] == 2
    failed = sorted(line.partition(" failed and is off: ")[0] for line in warnings)
    assert failed == ["logger mlflow", "logger trackio", "logger wandb"]


@pytest.mark.parametrize("name", ["csv", "tensorboard"])
def test_a_file_equals_the_metrics_during_a_run_and_after_a_resume(name, tmp_path):
    read = read_csv if name == "csv" else read_events
    folder = new_folder(tmp_path / "run")
    (logger,) = make_loggers([name], pytest.fail)
    logger.on_start(folder, 0)
    for update in (1, 2, 3):
        folder.append_metrics({"update": update, "score_1": update / 10, "kl": None})
        logger.on_update(update, 3, folder.metrics()[-1], {"total": 1.0})
        assert read(folder, "train/score_1")[-1] == (update, update / 10)
    folder.rewind(2)
    logger.on_start(folder, 2)
    logger.on_update(3, 3, {"update": 3, "score_1": 0.7}, {"total": 1.0})
    assert read(folder, "train/score_1") == [(1, 0.1), (2, 0.2), (3, 0.7)]
    assert read(folder, "time/total")[-1] == (3, 1.0)
    assert read(folder, "train/kl") == [], "None is not a number"


def read_csv(folder: RunFolder, name: str) -> list[tuple[int, float]]:
    with open(folder.path / "metrics.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["update", "name", "value"]
    return [(int(update), float(value)) for update, own, value in rows if own == name]


def read_events(folder: RunFolder, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder.path / "tensorboard"))
    found.Reload()
    known = name in found.Tags()["scalars"]
    return [(one.step, round(one.value, 6)) for one in found.Scalars(name)] if known else []


@pytest.mark.e2e
def test_events_of_a_report_equal_the_metrics_and_the_evaluations(tmp_path, no_pictures):
    folder = make_run(tmp_path / "demo-1", TABLES)
    write_report(folder)
    for name in ("score_3", "action_entropy", "episodes"):
        assert read_events(folder, f"train/{name}") == [
            (record["update"], pytest.approx(record[name], rel=1e-5, abs=1e-6))
            for record in folder.metrics()
        ]
    assert read_events(folder, "time/total")[0] == (1, 2.5)
    steps = [update for update, _ in read_events(folder, "select/score_3")]
    assert steps == [update for update, _ in read_run_results(folder).selections]
    assert read_events(folder, "select/ceiling_3")[0][1] == pytest.approx(0.238, abs=5e-4)
    assert [step for step, _ in read_events(folder, "final_test/score_3")] == [0, 30]


def test_loggers_and_splits_are_words_with_commas_and_an_unknown_one_is_refused():
    chosen = load_recipe("kuhn_poker", ["--run.loggers=wandb,csv", "--evaluate.splits=test, ood"])
    assert (chosen.run.loggers, chosen.evaluate.splits) == (("wandb", "csv"), ("test", "ood"))
    with pytest.raises(ConfigError, match=r"evaluate\.splits"):
        load_recipe("kuhn_poker", ["--evaluate.splits=test,best"])
    with pytest.raises(ConfigError, match=r"run\.loggers"):
        load_recipe("kuhn_poker", ["--run.loggers=['paper']"])
