"""The trainer on its real path: the embedded model plays Kuhn poker, learns, is killed, resumes."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mage.api.check_run import check_run
from mage.config.recipe import Recipe, build_recipe
from mage.credit.samples import make_samples
from mage.evaluation.figures import Evaluation
from mage.ranks.ranks import RankLost, RanksStopped
from mage.ranks.stop import Stopped
from mage.run_folder import DamagedError, RunFolder, RunLocked, lock_run
from mage.training.callbacks import Callback
from mage.training.evaluations import RunEvaluations
from mage.training.start import train
from mage.training.tasks import draw_tasks
from mage.training.trainer import Trainer
from mage.types import Completion, Credit, Return, Turn, TurnRef
from tests.marks import end_to_end

STYLES = {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}


def small_recipe(**changes: dict[str, Any]) -> Recipe:
    tables: dict[str, Any] = {
        "run": {
            "updates": 4,
            "save_every": 2,
            "evaluate_every": 2,
            "episodes_every": 2,
            "threads": 1,
        },
        "environments": {"name": "kuhn_poker"},
        "opponents": {"train": STYLES},
        "play": {"groups": 2, "members": 2},
        "agent": {"max_tokens": 8, "reflection_tokens": 12},
        "engines": {"name": "local", "slots": 64, "context": 512},
        "learn": {"lr": 1e-3, "minibatches": 2, "entropy": 0.1},
        "evaluate": {"size": 6, "final_size": 6, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
    }
    for section, values in changes.items():
        tables[section] = tables.get(section, {}) | values
    return build_recipe(tables)


def start(path: Path, **changes: dict[str, Any]) -> RunFolder:
    return RunFolder.create(path, small_recipe(**changes))


TINY: dict[str, dict[str, Any]] = {
    "run": {"updates": 2, "save_every": 1, "evaluate_every": 1, "threads": 1, "keep": 3},
    "play": {"episodes": 2, "groups": 2, "members": 2},
    "evaluate": {"size": 4, "final_size": 4, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
}


class Recorder(Callback):
    def __init__(self) -> None:
        self.updates: list[int] = []
        self.names: list[str] = []
        self.lines: list[str] = []

    def on_update(self, update: int, total: int, metrics: Any, timing: Any) -> None:
        self.updates.append(update)

    def on_evaluation(self, name: str, update: int, evaluation: Evaluation) -> None:
        self.names.append(name)

    def on_warning(self, line: str) -> None:
        self.lines.append(line)


def never() -> bool:
    return False


@pytest.fixture(scope="module")
@end_to_end
def whole(tmp_path_factory):
    """A finished run, what its callback was told, and its summary."""
    folder, callback = start(tmp_path_factory.mktemp("whole") / "run"), Recorder()
    return folder, callback, train(folder.path, callback, never)


Whole = tuple[RunFolder, Recorder, dict[str, Any]]


def test_a_run_writes_all_files_of_its_folder(whole):
    folder, callback, summary = whole
    assert callback.updates == [1, 2, 3, 4]
    assert callback.names == [
        *("select_000000", "before_test", "select_000002", "select_000004", "after_test"),
        "emptied_test",
    ]
    assert summary == folder.read_summary()
    assert set(summary) >= {"before", "after", "memory_emptied", "chosen_update"}
    assert [record["update"] for record in folder.metrics()] == [1, 2, 3, 4]
    assert folder.episode_steps() == [2, 4]
    (meta,) = [meta for meta in folder.read_episodes(2) if (meta.group, meta.member) == (0, 0)]
    assert len(meta.episodes) == 3
    assert meta.episodes[1].reflection is not None


@pytest.mark.e2e
def test_a_run_ends_when_its_minutes_are_over_also_after_a_break(tmp_path, monkeypatch):
    """Every update counts as 40 s, so the second one is the last of a run of one minute."""
    seconds = property(lambda timer: {"total": 40.0}, lambda timer, given: None)
    monkeypatch.setattr("mage.training.metrics.Timer.seconds", seconds, raising=False)
    changes = TINY | {"run": TINY["run"] | {"updates": 9, "minutes": 1.0, "evaluate_every": 0}}
    folder, callback = start(tmp_path / "run", **changes), Recorder()
    with pytest.raises(Stopped):
        train(folder.path, callback, lambda: callback.updates == [1])
    callback.updates.clear()
    summary = train(folder.path, callback, never)
    assert callback.updates == [2]
    assert callback.names[-3:] == ["select_000002", "after_test", "emptied_test"]
    assert summary["updates"] == 2
    assert any("run.minutes = 1 are over: update 2 of 9" in line for line in callback.lines)
    (folder.path / "summary.json").unlink()  # as if the process had been killed after update 2
    callback.updates.clear()
    assert train(folder.path, callback, never)["updates"] == 2
    assert callback.updates == []


@pytest.mark.e2e
def test_an_evaluation_that_a_stop_has_cut_short_is_played_after_it(tmp_path, monkeypatch):
    whole = start(tmp_path / "whole", **TINY)
    summary = train(whole.path, Callback(), never)
    stopped, select = start(tmp_path / "stopped", **TINY), RunEvaluations.select

    def stop_in_the_last(evaluations: RunEvaluations, update: int) -> Evaluation:
        if update == 2:
            raise RanksStopped
        return select(evaluations, update)

    monkeypatch.setattr(RunEvaluations, "select", stop_in_the_last)
    with pytest.raises(Stopped):
        train(stopped.path, Callback(), never)
    monkeypatch.undo()
    found = train(stopped.path, Callback(), never)
    for name in ("chosen_update", "after", "memory_emptied"):
        assert found[name] == summary[name]
    assert stopped.evaluation_names() == whole.evaluation_names()


@pytest.mark.e2e
def test_a_run_continues_after_a_rank_lost_between_learning_and_its_record(tmp_path, monkeypatch):
    folder, record = start(tmp_path / "run", **TINY), Trainer._record

    def lose(trainer: Trainer, *given: Any) -> None:
        if trainer.done == 2:
            raise RankLost("rank 1 has ended")
        record(trainer, *given)

    monkeypatch.setattr(Trainer, "_record", lose)
    with pytest.raises(RankLost):
        train(folder.path, Callback(), never)
    monkeypatch.undo()
    callback = Recorder()
    train(folder.path, callback, never)
    assert callback.updates == [2]


def test_sampler_and_learner_agree_on_the_logprobs_of_the_same_weights(whole):
    # Two ways to compute the same attention in float32: rounding gives 1e-5 per token,
    # a wrong position or mask would give 1e-1.
    assert all(record["mismatch"] < 1e-5 for record in whole[0].metrics())


def test_metrics_are_plain_json_without_wall_clock_times(whole):
    path = whole[0].path / "metrics.jsonl"
    record = json.loads(path.read_text().splitlines()[0])
    assert not {"seconds", "total", "play", "learn"} & set(record)
    assert {
        *("score_1", "score_2", "score_3", "success_1", "illegal_rate", "action_entropy"),
        *("mismatch", "gradient_norm"),
    } <= set(record)


@pytest.mark.e2e
@pytest.mark.parametrize("finished", [True, False])
def test_a_start_deletes_what_a_killed_prune_has_left(tmp_path, whole, finished):
    """Old versions left a checkpoint without its weights; a kill before a prune leaves a whole one.

    After the last save of a run no other save prunes.
    """
    shutil.copytree(whole[0].path, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    names = sorted(path.name for path in folder.checkpoints.iterdir())
    if not finished:
        (folder.path / "summary.json").unlink()
    (folder.checkpoints / "update_000001").mkdir()
    (folder.checkpoints / "update_000001" / "manifest.json").write_text("{}")
    (folder.checkpoints / ".update_000003.deleted").mkdir()
    assert train(folder.path, Callback(), never)["after"] == whole[2]["after"]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == names


def test_reflections_get_no_credit_before_reflect_from():
    where = TurnRef(0, 0, 0, -1, "random")
    turns = [
        Turn(kind, "", "", (1,), Completion((2,), (-0.5,), "x", "stop", 0), None, (), True, 0.0)
        for kind in ("play", "reflect")
    ]
    credits = [Credit(Return(turn, where, 1.0, 1.0, 1.0, 1.0), 2.5, ()) for turn in turns]
    assert [sample.advantage for sample in make_samples(credits)] == [2.5, 2.5]
    assert [sample.advantage for sample in make_samples(credits, reflections=False)] == [2.5, 0.0]


@pytest.mark.e2e
def test_a_broken_checkpoint_is_skipped_with_a_warning(tmp_path):
    longer = TINY | {"run": TINY["run"] | {"updates": 3, "evaluate_every": 0}}
    folder, callback = start(tmp_path / "run", **longer), Recorder()
    with pytest.raises(Stopped):
        train(folder.path, callback, lambda: len(callback.updates) == 2)
    weights = folder.checkpoints / "update_000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    train(folder.path, callback, never)
    assert callback.updates == [1, 2, 2, 3]
    assert any("model.safetensors" in line for line in callback.lines)


@pytest.mark.e2e
def test_a_run_that_has_lost_its_checkpoints_is_refused_and_not_changed(tmp_path, whole):
    run = shutil.copytree(whole[0].path, tmp_path / "run")
    (run / "summary.json").unlink()
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(DamagedError, match=r"has metrics of 4 updates, but .* no whole checkpoint"):
        train(run, Callback(), never)
    (note,) = check_run(RunFolder.open(run)).notes
    assert f"start a new run: mage train {run / 'recipe.toml'} --run.name=NAME" in note
    before.pop(run / ".lock", None)
    assert {path: path.read_bytes() for path in before} == before
    for name in ("metrics.jsonl", "metrics.sha256"):  # as the message says
        (run / name).rename(tmp_path / name)
    assert train(run, Callback(), never)["after"] == whole[2]["after"]


@pytest.mark.e2e
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path, monkeypatch):
    def die(trainer: Trainer) -> None:
        raise KeyboardInterrupt

    folder, callback = start(tmp_path / "run", **TINY), Recorder()
    monkeypatch.setattr(Trainer, "_save", die)
    with pytest.raises(KeyboardInterrupt):
        train(folder.path, callback, never)
    monkeypatch.undo()
    assert (folder.evaluation_names(), list(folder.checkpoints.iterdir())) == (
        ["select_000000"],
        [],
    )
    train(folder.path, callback, never)
    assert callback.updates == [1, 2]


@pytest.mark.e2e
def test_a_damaged_best_checkpoint_does_not_block_the_end_of_a_run(tmp_path):
    # This learning rate is too small to change a float32 weight, so update 0 stays the best one.
    folder, callback = start(tmp_path / "run", **TINY, learn={"lr": 1e-20}), Recorder()
    with pytest.raises(Stopped):
        train(folder.path, callback, lambda: len(callback.updates) == 1)
    (folder.checkpoints / "update_000000" / "model.safetensors").write_bytes(b"")
    assert train(folder.path, callback, never)["chosen_update"] == 2
    (line,) = callback.lines
    assert "update_000000 is broken: model.safetensors" in line
    assert "update_000002 is used instead" in line


def test_a_run_in_use_is_not_trained_by_a_second_process(tmp_path):
    folder = start(tmp_path / "run", **TINY)
    with lock_run(folder.path), pytest.raises(RunLocked, match="is in use by process"):
        train(folder.path, Callback(), never)
    assert folder.metrics() == []


def test_tasks_have_exact_shares_and_members_of_a_group_share_one_task():
    tasks_PG = draw_tasks(small_recipe(play={"groups": 20, "members": 4}), update=1)
    assert Counter((row[0].opponent, row[0].seat) for row in tasks_PG) == {
        (name, seat): share * 10 for name, share in STYLES.items() for seat in (0, 1)
    }
    assert all(len(set(row)) == 1 for row in tasks_PG)
    assert len({row[0].seed for row in tasks_PG}) == 20
    assert draw_tasks(small_recipe(play={"groups": 20, "members": 4}), update=2) != tasks_PG


def test_mixed_groups_have_several_opponents_and_one_seed():
    tasks_PG = draw_tasks(
        small_recipe(play={"groups": 4, "members": 8, "grouping": "mixed"}), update=1
    )
    assert any(len({task.opponent for task in row}) > 1 for row in tasks_PG)
    assert all(len({task.seed for task in row}) == 1 for row in tasks_PG), (
        "members share their deals"
    )
