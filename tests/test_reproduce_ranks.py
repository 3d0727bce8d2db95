"""`mage reproduce --ranks`: the ranks of torchrun give the figures of one process."""

from pathlib import Path
from typing import Any

import pytest
from processes import Forked
from typer.testing import CliRunner

from mage.cli.main import app
from mage.models.base import SHIPPED
from mage.models.sources import hub as hub_source
from mage.reproduce.plan import make_plan, pin_models
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train

SMALL = (
    *("--run.updates=1", "--play.groups=2", "--play.members=2", "--evaluate.size=2"),
    *("--evaluate.final_size=2", "--evaluate.ceilings=false", "--run.evaluate_every=0"),
    *("--run.loggers=[]", "--run.device=cpu"),
)
WHAT = ("--environment", "kuhn_poker", "--only", "mage", "--seeds", "1")


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


@pytest.mark.e2e
def test_two_ranks_give_the_figures_of_one_process(tmp_path, monkeypatch):
    """Gradients are summed in another order, so metrics agree to about 1e-5 (docs/scaling.md)."""
    monkeypatch.setattr("mage.cli.verbs.reproduce._write", lambda plan, out: None)
    monkeypatch.setattr("mage.reproduce.executors.subprocess", Forked)
    done = call("table1", *WHAT, "--ranks", "2", "--out", tmp_path, *SMALL)
    assert done.exit_code == 0, done.stderr
    (job,) = make_plan("table1", worlds=["kuhn_poker"], only=["mage"], overrides=SMALL).jobs
    several = RunFolder.open(tmp_path / "runs" / job.name)
    assert (several.path / "logs" / "rank_1.log").is_file(), "a second rank has worked"
    one = RunFolder.create(tmp_path / "one", job.recipe)
    train(one.path, Callback(), lambda: False)
    for mine, other in zip(one.metrics(), several.metrics(), strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            is_float = isinstance(value, float)
            expected = pytest.approx(value, rel=1e-4, abs=1e-6) if is_float else value
            assert other[name] == expected, name
    figures = [folder.read_summary() for folder in (several, one)]
    for stage in ("before", "after"):
        assert figures[0][stage] == figures[1][stage]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "0"), "--ranks 0 is not valid"),
        (("--ranks", "-2"), "--ranks -2 is not valid"),
        (("--ranks", "9999", "--play.groups=9999"), "is more than the "),
        (("--ranks", "5", "--play.groups=2", "--play.members=2"), "4 meta-episodes of an update"),
        (("--ranks", "2", "--run.workers=2"), "--ranks 2 and run.workers = 2 both start"),
        (("--ranks", "2", "--run.deal=groups"), 'needs run.deal = "members"'),
        (("--ranks", "2", "--per-gpu", "2"), "Leave out --per-gpu"),
        (("--ranks", "2", "--executor", "ray"), "--ranks needs --executor local"),
    ],
)
def test_wrong_ranks_are_one_message(words, message, tmp_path):
    done = call("table1", *WHAT, "--out", tmp_path / "out", "--run.device=cpu", *words)
    assert done.exit_code == 2
    assert done.stderr.startswith("mage: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_all_runs_of_a_table_have_one_commit_of_the_model(tmp_path, monkeypatch):
    commits = ["a" * 40, "b" * 40]
    monkeypatch.setenv("MAGE_MODELS", str(tmp_path / "models"))

    def fetch(model: hub_source.HubId) -> Path:
        return SHIPPED / "embedded" / commits[0]

    monkeypatch.setattr("mage.models.base.fetch_snapshot", fetch)
    plan = make_plan("table1", model="lab/tiny", worlds=["kuhn_poker"], only=["mage", "react"])
    pinned = pin_models(plan, tmp_path / "runs")
    assert {job.recipe.model.path for job in pinned.jobs} == {f"lab/tiny@{commits[0]}"}
    RunFolder.create(tmp_path / "runs" / plan.jobs[0].name, pinned.jobs[0].recipe)
    commits.reverse()
    later = pin_models(plan, tmp_path / "runs")
    assert {job.recipe.model.path for job in later.jobs} == {f"lab/tiny@{commits[1]}"}
