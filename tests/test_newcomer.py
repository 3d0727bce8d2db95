"""A newcomer's own environment: `mage new`, names as recipes, checks, errors, completion."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from test_my_lab import SHORT, mage_in
from typer._completion_classes import BashComplete
from typer.testing import CliRunner

import mage
from mage.cli.main import app
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe, title_of
from mage.config.options import make_item
from mage.environments.base import SingleAgentEnvironment, check
from mage.ranks.stop import Stopped
from mage.run_folder import RunFolder
from mage.run_folder.files import read_json, write_sealed
from mage.training.callbacks import Callback
from mage.training.start import train

CORRIDOR = """
from typing import ClassVar
from mage.environments.base import SingleAgentEnvironment, State


class WalkState(State):
    def __init__(self, walk):
        self.walk, self.place = walk, 0
    def turn(self):
        return None if self.place == 3 else 0
    def legal(self):
        return ("go", "sleep") if self.walk.lazy else ("go",)
    def apply(self, action):
        self.place += action == "go"
        if self.walk.breaks and self.place == 2:
            raise KeyError("no such room")
    def observe(self, seat):
        return f"Room {self.place}."
    def anchor(self, seat):
        return str(self.place)
    def scores(self):
        return (1.0,)
    def recap(self, seat):
        return "You arrived."


class Walk(SingleAgentEnvironment):
    name: ClassVar[str] = "walk"
    lazy: bool = False
    breaks: bool = False
    def start(self, seed):
        return WalkState(self)
    def rules(self):
        return "Go through three rooms."
    def instance(self, seat):
        return "All games are equal."
    def example_action(self):
        return "go"
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder with an environment of the user, which is the current folder."""
    (tmp_path / "walk_lab").mkdir()
    (tmp_path / "walk_lab" / "__init__.py").touch()
    (tmp_path / "walk_lab" / "walk.py").write_text(CORRIDOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("walk_lab")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_an_environment_is_a_recipe(lab):
    recipe = load_recipe("walk_lab.walk", ["--environments.lazy=true", "--run.updates=3"])
    assert (recipe.environment().lazy, recipe.run.updates) == (True, 3)
    assert (recipe.warmup.first, recipe.model.path) == (True, "embedded")
    real = load_recipe("walk_lab.walk", ["--model.path=smollm2"])
    assert (real.warmup.first, real.model.path) == (False, "smollm2")
    assert real.learn.lora_rank > 0
    assert load_recipe("mastermind+lamer").returns.kind == "cumulative"
    assert load_recipe("walk_lab.walk") == mage.recipe("walk_lab.walk")
    assert [title_of(name) for name in ("a.nim", "a/nim.toml", "demo+lamer", "a.nim+lamer")] == [
        *("nim", "nim", "demo+lamer", "nim+lamer")
    ]
    with pytest.raises(ConfigError, match=r"walk_lab\.run cannot be imported"):
        load_recipe("walk_lab.run")


def test_opponents_are_given_as_words():
    recipe = load_recipe("tic_tac_toe", ["--opponents.train=random,mcts-100=.5"])
    assert recipe.opponents.train == {"random": 1.0, "mcts-100": 0.5}
    recipe = load_recipe("tic_tac_toe", ["--opponents.train=random"])
    assert recipe.opponents.train == {"random": 1.0}
    with pytest.raises(ConfigError, match="randm"):
        load_recipe("tic_tac_toe", ["--opponents.train=randm"])


def test_a_single_agent_wins_or_loses(lab):
    world = load_recipe("walk_lab.walk").environment()
    assert isinstance(world, SingleAgentEnvironment)
    assert [world.outcome(score) for score in (1.0, 0.1, 0.0, -1.0)] == [
        *("won", "won", "lost", "lost")
    ]
    assert world.forfeit_score == 0


def test_moves_that_do_nothing_are_found(lab):
    code, told = call("check", "walk_lab.walk", "--environments.lazy=true")
    assert code == 1
    assert "the legal move 'sleep' did nothing in all" in told
    assert call("check", "walk_lab.walk")[0] == 0
    remarks: list[str] = []
    assert check(load_recipe("kuhn_poker").environment(), 20, remarks=remarks) == []
    assert remarks == []


def test_an_error_in_user_code_is_one_line_with_file_line_and_state(lab):
    broken = ("check", "walk_lab.walk", "--environments.breaks=true")
    code, told = call(*broken)
    assert code == 2
    line = 1 + CORRIDOR[: CORRIDOR.index("raise KeyError")].count("\n")
    assert told == (
        f"mage: walk_lab/walk.py, line {line}, in apply: KeyError: 'no such room', in the state "
        "'Room 2.' (--traceback shows all frames)\n"
    )
    done = CliRunner().invoke(app, [*broken, "--traceback"])
    assert isinstance(done.exception, KeyError)
    (lab / "walk_lab" / "bad.py").write_text("def f(:\n")
    code, told = call("check", "walk_lab.bad")
    assert (code, "walk_lab.bad is not valid Python" in told) == (2, True)
    assert "line 1" in told


TURN = "return None if self.place == 3 else 0"
TOOLS = "def tools(self):\n        return {}\n\n    def start(self"
WRONG = {
    "turn": (TURN, "return 'me'", "WalkState.turn() returned 'me' (str), but must return the seat"),
    "bool": (TURN, "return True", "WalkState.turn() returned True (bool)"),
    "seat": (TURN, "return 1", "WalkState.turn() returned 1, but walk has one seat, 0"),
    "scores": ("(1.0,)", "1.0", "WalkState.scores() returned 1.0 (float), but must return a tuple"),
    "empty": ("(1.0,)", "()", "WalkState.scores() returned () (tuple)"),
    "observe": ('f"Room {self.place}."', "3", "WalkState.observe() returned 3 (int), but must"),
    "anchor": ("str(self.place)", "None", "WalkState.anchor() returned None (NoneType), but must"),
    "recap": ('return "You arrived."', "pass", "WalkState.recap() returned None (NoneType)"),
    "start": ("return WalkState(self)", "WalkState(self)", "Walk.start() returned None (NoneType)"),
    "rules": ('return "Go through three rooms."', "pass", "Walk.rules() returned None (NoneType)"),
    "none": ("def start(self", TOOLS.format("None"), "Walk.tools() returned None (NoneType)"),
    "texts": ("def start(self", TOOLS.format("['roll']"), "must return a tuple or list of func"),
    "property": (
        "def start(self",
        "def forfeit_score(self):\n        return 0.0\n    def start(self",
        "Walk.forfeit_score must be a property: write @property above it",
    ),
    "missing": (
        'def recap(self, seat):\n        return "You arrived."\n',
        "",
        "the class WalkState in walk_lab/walk.py has no method recap(): write it",
    ),
}


@pytest.mark.parametrize("method", WRONG)
def test_a_wrong_return_type_and_a_missing_method_are_one_line(lab, method):
    old, new, message = WRONG[method]
    assert old in CORRIDOR
    (lab / "walk_lab" / "walk.py").write_text(CORRIDOR.replace(old, new))
    code, told = call("play" if method == "seat" else "check", "walk_lab.walk")
    assert code == (1 if "tools" in new else 2)  # `mage check` counts the faults of tools
    line = next(line for line in told.splitlines() if message in line)
    assert "walk_lab/walk.py" in line or method == "seat"


def test_an_option_that_the_code_no_longer_has_is_one_line(lab):
    with pytest.raises(ConfigError, match=r"has no such option \(did you mean 'lazy'\?\): restart"):
        make_item("environments", "walk_lab.walk", {"lazzy": True})
    with pytest.raises(ConfigError, match=r"environments.lazy = 7: .*correct the class Walk in "):
        make_item("environments", "walk_lab.walk", {"lazy": 7})


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_a_broken_environment_ends_a_training_with_one_line(lab):
    code, told = mage_in(lab, "train", "walk_lab.walk", "--environments.breaks=true", *SHORT)
    assert code == 2
    assert "walk_lab/walk.py, line" in told
    assert "Traceback" not in told


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_changed_code_gives_one_warning_on_resume(lab):
    """Also of a module that only the item imports; a run of an old version gives no warning."""
    (lab / "walk_lab" / "rooms.py").write_text("ROOMS = 3\n")
    code = f"from walk_lab.rooms import ROOMS\n{CORRIDOR}"
    (lab / "walk_lab" / "walk.py").write_text(code)
    small = ("--run.updates=2", "--run.save_every=1", *SHORT[1:])
    run = RunFolder.create(lab / "run", load_recipe("walk_lab.walk", small))
    lines: list[str] = []

    class Told(Callback):
        def on_warning(self, line: str) -> None:
            lines.append(line)

    with pytest.raises(Stopped):
        train(run.path, Told(), lambda: True)
    old = shutil.copytree(run.path, lab / "old")
    changed = "code of walk_lab.rooms has changed since this run began"
    assert changed not in " ".join(lines)
    (lab / "walk_lab" / "rooms.py").write_text("ROOMS = 4\n")
    train(run.path, Told(), lambda: False)
    assert " ".join(lines).count(changed) == 1
    lines.clear()
    versions = read_json(old / "versions.json")
    del versions["sha256"], versions["code_sha256"]
    write_sealed(old / "versions.json", versions)
    train(old, Told(), lambda: False)
    assert "has changed" not in " ".join(lines)


@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_new_environments_are_trained_by_the_printed_command(tmp_path):
    for kind in ("environment", "single_agent"):
        code, told = mage_in(tmp_path, "new", kind, f"own_{kind}")
        assert code == 0, told
        (command,) = [line.split() for line in told.splitlines() if "mage train" in line]
        code, told = mage_in(tmp_path, *command[1:], *SHORT)
        assert code == 0, told
        assert "legal moves" in told  # before and after the warm-up
        assert (tmp_path / "runs" / f"own_{kind}-1" / "summary.json").is_file()
    assert mage_in(tmp_path, "check", "my_lab.own_single_agent", "--games", "5")[0] == 0


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_the_engine_of_the_page_trains(lab):
    page = Path(mage.__file__).parents[1] / "docs" / "tutorials" / "engine.md"
    found = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert found is not None
    (lab / "walk_lab" / "plain.py").write_text(found[1])
    recipe = mage.recipe(
        "walk_lab.walk",
        engines="walk_lab.plain",
        run={"updates": 2, "evaluate_every": 0, "move_probabilities": False},
        play={"groups": 1, "members": 2, "episodes": 1},
        agent={"max_tokens": 6},
        warmup={"steps": 1, "turns": 2},
        evaluate={"size": 1, "final_size": 1, "before": False},
    )
    run = mage.train(recipe, runs=lab, progress=False)
    assert [line["update"] for line in run.metrics] == [1, 2]
    assert all(abs(line["mismatch"]) < 1e-4 for line in run.metrics)
    assert run.recipe.engines.name == "walk_lab.plain"


def complete(line: str) -> list[str]:
    """What a shell would offer at the end of a line."""
    *words, last = line.split(" ")[1:]
    shell = BashComplete(typer.main.get_command(app), {}, "mage", "_MAGE_COMPLETE")
    return [item.value for item in shell.get_completions(words, last)]


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_the_shell_completes_recipes_parts_options_opponents_and_runs(lab):
    (lab / "runs" / "demo-1").mkdir(parents=True)
    (lab / "runs" / "demo-1" / "recipe.toml").touch()
    (lab / "walk_lab" / "own.toml").touch()
    assert "kuhn_poker" in complete("mage train kuhn")
    assert complete("mage train demo+lam") == ["demo+lamer"]
    assert "--play.groups=" in complete("mage train demo --play.")
    assert "--opponents.train.random=" in complete("mage train demo --opponents.train.r")
    assert complete("mage evaluate runs/d") == ["runs/demo-1"]
    assert complete("mage play kuhn_poker --against cons") == ["conservative"]
    assert complete("mage check sokoban --environments.box") == ["--environments.boxes="]
    assert complete("mage train walk_lab/o") == ["walk_lab/own.toml"]
    done = subprocess.run(
        [sys.executable, "-m", "mage"],
        env=os.environ
        | {"_MAGE_COMPLETE": "complete_bash", "COMP_WORDS": "mage train kuhn_d", "COMP_CWORD": "2"}
        | {"PYTHONPATH": str(Path(mage.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.split() == ["kuhn_demo"]
