"""A training in stages: ordinary run folders one after another, resumed wherever it was stopped."""

import json
import os
import shutil
from pathlib import Path

import pytest
from processes import start, wait
from typer.testing import CliRunner

import mage
from mage.cli.main import app
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.ranks.ranks import Ranks
from mage.run_folder import RunFolder, list_stages
from mage.training.callbacks import Callback
from mage.training.stages import begin_stages
from mage.viewer.library import Library

RECIPE = """
base = "kuhn_demo"
[run]
updates = 2
save_every = 1
evaluate_every = 1
episodes_every = 0
workers = 1
threads = 1
loggers = []
[play]
episodes = 2
groups = 2
members = 2
[returns]
weights = [0.5, 1.0]
[agent]
max_tokens = 8
[evaluate]
size = 2
final_size = 2
ceilings = false
[[stages]]
name = "start"
[stages.run]
updates = 0
[stages.warmup]
first = true
steps = 1
batch = 2
turns = 2
[[stages]]
name = "gigpo"
parts = ["gigpo"]
[stages.evaluate]
before = false
[[stages]]
name = "mage"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


class KillAt(Callback):
    """Ends the process as a kill does, in one stage: after its warm-up or its first update."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.here = ""

    def on_start(self, folder: RunFolder, update: int) -> None:
        self.here = folder.path.name
        if not folder.recipe.run.updates:
            self.reached()

    def on_update(self, *figures: object) -> None:
        self.reached()

    def reached(self) -> None:
        if self.here == self.stage:
            os._exit(9)


def train_until(source: Path, runs: Path, stage: str) -> None:
    mage.train(source, runs=runs, callbacks=[KillAt(stage)])


def figures_of(run: Path) -> dict[str, object]:
    """All reproducible figures of all stages."""
    return {
        str(path.relative_to(run)): path.read_text()
        for path in sorted(run.rglob("*"))
        if path.name in ("metrics.jsonl", "recipe.toml")
        or (path.parent.name == "evaluations" and path.suffix == ".json")
    }


@pytest.mark.e2e
def test_a_training_killed_in_each_stage_ends_with_the_same_figures(recipe, tmp_path):
    whole = mage.train(recipe, runs=tmp_path / "whole", progress=False)
    assert whole.finished
    assert [path.name for path in list_stages(whole.path)] == ["1_start", "2_gigpo", "3_mage"]
    source = recipe
    for stage in ("1_start", "2_gigpo", "3_mage"):
        assert wait(start(train_until, source, tmp_path / "killed", stage)) == 9
        source = tmp_path / "killed" / "tiny-1"
        assert list_stages(source)[-1].name == stage
        assert not mage.load_run(source).finished
    mage.train(source)
    assert figures_of(source) == figures_of(whole.path)
    _the_commands_use_the_last_stage(whole.path)
    _the_viewer_shows_one_run(whole.path)


@pytest.mark.e2e
def test_a_run_also_continues_from_the_folder_of_a_stage(recipe, tmp_path):
    assert wait(start(train_until, recipe, tmp_path, "2_gigpo")) == 9
    run = tmp_path / "tiny-1"
    stage = run / "stages" / "2_gigpo"
    noted = CliRunner().invoke(app, ["report", str(stage)])
    assert f"--resume {run}" in noted.output.replace("\n", "")
    assert f"--resume {stage}" not in noted.output.replace("\n", "")
    assert mage.train(stage, progress=False).path == run
    assert mage.load_run(run).finished


def _the_commands_use_the_last_stage(run: Path) -> None:
    call = CliRunner().invoke
    evaluated = call(app, ["evaluate", str(run), "--size", "2", "--json"])
    assert evaluated.exit_code == 0, evaluated.output
    stored = json.loads((run / "stages/3_mage/evaluations/after_test.json").read_text())
    assert json.loads(evaluated.stdout)["evaluation"]["overall"] == stored["overall"]
    checked = call(app, ["check", str(run)])
    assert checked.exit_code == 0, checked.output
    copy = run.with_name("copy")
    shutil.copytree(run, copy)
    weights = next((copy / "stages/2_gigpo/start").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    damaged = call(app, ["check", str(copy)])
    assert damaged.exit_code == 1
    assert "2_gigpo/start" in damaged.output.replace("\n", "")


def _the_viewer_shows_one_run(run: Path) -> None:
    library = Library([run.parent])
    row = next(row for row in library.get("runs")["runs"] if row["title"] == run.name)
    assert (row["state"], row["updates"], row["total"]) == ("finished", 4, 4)
    shown = library.get(f"run/{row['id']}")
    assert shown["metrics"]["update"] == [1, 2, 3, 4]
    assert [one["update"] for one in shown["select"]] == [0, 1, 2, 2, 3, 4]
    assert shown["borders"] == [
        {"update": 0, "name": "start"},
        {"update": 0, "name": "gigpo"},
        {"update": 2, "name": "mage"},
    ]


def test_a_stage_begins_with_the_best_checkpoint_before_it_and_runs_once(
    recipe, tmp_path, monkeypatch
):
    loaded, finished = [], set()
    monkeypatch.setattr(
        "mage.training.stages.load_weights",
        lambda source, recipe, checkpoint, say: loaded.append((source.path.name, checkpoint)),
    )
    monkeypatch.setattr(
        "mage.training.stages.save_weights", lambda weights, recipe, path: (path / "w").touch()
    )
    monkeypatch.setattr(RunFolder, "is_finished", property(lambda run: run.path.name in finished))
    run = RunFolder.create(tmp_path / "run", load_recipe(recipe))
    for name, folder in zip(
        ["1_start", "2_gigpo"], begin_stages(run, Ranks(), print), strict=False
    ):
        assert folder.path.name == name
        finished.add(name)
    assert loaded == [("1_start", "best")]
    assert [one.path.name for one in begin_stages(run, Ranks(), print)] == ["3_mage"]
    assert loaded == [("1_start", "best"), ("2_gigpo", "best")]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("stages = []\n" + RECIPE.partition("[[stages]]")[0], "stages is empty"),
        (RECIPE + '[[stages]]\nname = "start"\n', "two stages are called 'start'"),
        (RECIPE + "[stages.play]\ngrups = 3\n", "stage 'mage': play.grups is unknown"),
        (RECIPE + "[stages.plays]\ngroups = 3\n", "stage 'mage': [plays] is unknown"),
        (RECIPE + '[[stages]]\nname = "a/b"\n', 'stages.name = "a/b": is not allowed here'),
        (RECIPE + '[[stages]]\nname = "x"\nparts = ["gipgo"]\n', "there is no part 'gipgo'"),
        (RECIPE + "[stages.learn]\nentropy_final = 0.1\nentropy = 0.0\n", "has no effect"),
    ],
)
def test_a_wrong_stage_gives_one_message(tmp_path, stages, message):
    (tmp_path / "wrong.toml").write_text(stages)
    done = CliRunner().invoke(app, ["train", str(tmp_path / "wrong.toml"), "--runs", str(tmp_path)])
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "wrong.toml"]


def test_the_command_line_changes_all_stages_or_one(recipe):
    chosen = load_recipe(recipe, ["--run.seed=7", "--stages.gigpo.run.updates=9"])
    stages = chosen.in_stages()
    assert [one.run.seed for one in stages.values()] == [7, 7, 7]
    assert [one.run.updates for one in stages.values()] == [0, 9, 2]
    assert chosen.run.updates == 2
    with pytest.raises(ConfigError, match=r"there is no stage 'gipgo' \(did you mean 'gigpo'"):
        load_recipe(recipe, ["--stages.gipgo.run.updates=9"])


def test_a_recipe_with_stages_is_written_and_read_again(recipe, tmp_path):
    chosen = load_recipe(recipe)
    (tmp_path / "again.toml").write_text(chosen.toml())
    assert load_recipe(tmp_path / "again.toml").in_stages() == chosen.in_stages()
