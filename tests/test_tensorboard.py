"""TensorBoard events equal the files of the run, also during a run and after a resume."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mage.api.report import write_report
from mage.config.recipe import build_recipe
from mage.environments.kuhn_poker import KuhnPoker
from mage.evaluation.figures import summarise
from mage.opponents.base import Population
from mage.report.run_results import read_run_results
from mage.report.tensorboard import EventWriter, write_events
from mage.run_folder import RunFolder
from tests.report_runs import STYLES, make_run, play


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunFolder:
    tables = {"environments": {"name": "kuhn_poker"}, "opponents": {"train": STYLES}}
    folder = make_run(tmp_path_factory.mktemp("runs") / "demo-1", tables)
    write_report(folder)
    return folder


def read_events(folder: RunFolder) -> EventAccumulator:
    found = EventAccumulator(str(folder.path / "tensorboard"))
    found.Reload()
    return found


@pytest.mark.e2e
def test_events_equal_the_metrics_and_the_evaluations(finished):
    found, metrics = read_events(finished), finished.metrics()
    for name in ("score_3", "action_entropy", "episodes"):
        events = found.Scalars(f"train/{name}")
        assert [event.step for event in events] == list(range(1, 41))
        assert [event.value for event in events] == pytest.approx(
            [record[name] for record in metrics], rel=1e-6
        )
    assert "train/kl" not in found.Tags()["scalars"], "None is not a number"
    assert [(event.step, event.value) for event in found.Scalars("time/total")][:1] == [(1, 2.5)]
    selections = read_run_results(finished).selections
    assert (
        [event.step for event in found.Scalars("select/score_3")]
        == [update for update, _ in selections]
        == [0, 10, 20, 30, 40]
    )
    assert found.Scalars("select/ceiling_3")[0].value == pytest.approx(0.238, abs=5e-4)
    assert [event.step for event in found.Scalars("final_test/score_3")] == [0, 30]


def test_a_writer_appends_during_the_run_and_a_resumed_run_shows_no_update_twice(
    tmp_path, kuhn_tables
):
    folder = RunFolder.create(tmp_path / "run", build_recipe(kuhn_tables))
    writer = EventWriter(folder)
    for update in (1, 2, 3):
        folder.append_metrics({"update": update, "score_1": update / 10, "kl": None})
        writer.add(update, folder.metrics()[-1])
        assert [event.step for event in read_events(folder).Scalars("train/score_1")] == list(
            range(1, update + 1)
        )
    folder.rewind(2)
    writer = EventWriter(folder)
    writer.add(3, {"score_1": 0.7})
    writer.close()
    assert [
        (event.step, round(event.value, 6))
        for event in read_events(folder).Scalars("train/score_1")
    ] == [(1, 0.1), (2, 0.2), (3, 0.7)]


def test_a_report_during_a_run_does_not_disturb_the_event_writer(tmp_path, kuhn_tables):
    folder = RunFolder.create(tmp_path / "run", build_recipe(kuhn_tables))
    writer = EventWriter(folder)
    folder.append_metrics({"update": 1, "score_1": 0.1})
    writer.add(1, {"score_1": 0.1})
    write_events(folder)
    writer.add(2, {"score_1": 0.2})
    assert [event.step for event in read_events(folder).Scalars("train/score_1")] == [1, 2]
    assert len(list((folder.path / "tensorboard").iterdir())) == 1


def test_figures_of_an_evaluation_are_written_at_once(tmp_path, kuhn_tables):
    folder = RunFolder.create(tmp_path / "run", build_recipe(kuhn_tables))
    cell = summarise(play("", "test", 6), KuhnPoker(), Population(train=STYLES), "test").overall
    writer = EventWriter(folder)
    writer.add_evaluation(10, cell)
    events = read_events(folder).Scalars("select/success_2")
    assert [(event.step, event.value) for event in events] == [
        (10, pytest.approx(cell.episodes[1].success.value))
    ]
