"""The Python interface: names, changes by objects, a training with callbacks, frames."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mage
from mage.environments.tic_tac_toe import TicTacToe
from mage.opponents.base import population_of
from mage.opponents.scripted import Pattern
from tests.marks import end_to_end

SMALL = {
    **{"run.updates": 2, "run.threads": 1, "play.groups": 2, "play.members": 2},
    **{"evaluate.size": 6, "evaluate.final_size": 6},
}
NAMES = {
    *("Callback", "Environment", "Evaluation", "Item", "Memory", "MetaEpisode", "Notebook"),
    *("Opponent", "Recipe", "Run", "Seen", "State", "Stopped", "__version__", "as_gymnasium"),
    *("as_trl", "evaluate", "list", "load_recipe", "load_run", "play_one", "recipe", "train"),
}


class OtherBoard(TicTacToe):
    """An environment that is defined in a user's file."""


class AlwaysBet(mage.Opponent):
    name = "always_bet"

    def policy(self, state: Any, seat: int) -> dict[str, float]:
        return {"bet": 1.0}


def test_the_public_names_are_stable_and_documented():
    """`mypy` checks the stub, which editors show; here it must name the same objects."""
    others, package = NAMES - {"__version__"}, Path(mage.__file__).parent
    assert set(mage.__all__) == NAMES
    assert all(getattr(mage, name).__doc__ for name in others)
    assert all(inspect.isfunction(getattr(mage, name)) for name in others if name.islower())
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = mage.trian  # type: ignore[attr-defined]
    stub = (package / "__init__.pyi").read_text()
    assert all(f'    "{name}",' in stub for name in NAMES)
    lines = re.findall(r"^from (\S+) import (\w+) as (\w+)$", stub, re.MULTILINE)
    assert {name for _, _, name in lines} == others
    for place, inside, name in lines:
        assert getattr(import_module(place), inside) is getattr(mage, name)
    assert (package / "py.typed").is_file()
    assert "editable_mode=compat" in (package.parent / "Makefile").read_text()


def test_recipes_are_changed_by_values_classes_and_objects():
    board, shares = OtherBoard(max_turns=6), {Pattern(number=2): 0.5, "random": 0.5}
    changes = {"environments": board, "opponents.train": shares, "play.groups": 2}
    recipe = mage.load_recipe("tic_tac_toe", changes)
    assert recipe.environment() == board
    expected = {"mage.opponents.scripted.Pattern-2": 0.5, "random": 0.5}
    assert population_of(recipe).pool("train") == expected
    assert recipe.play.groups == 2
    with pytest.raises(ValueError, match="grops is unknown"):
        mage.load_recipe("tic_tac_toe", {"play.grops": 2})
    with pytest.raises(ValueError, match="is not an opponent"):
        mage.load_recipe("tic_tac_toe", {"opponents.train": {3: 1.0}})


def test_menus_are_listed_as_records():
    assert {"kuhn_poker", "sokoban"} <= {item.name for item in mage.list("environments")}
    assert {"environments", "opponents", "recipes", "options"} <= set(mage.list())


class Recorder(mage.Callback):
    def __init__(self) -> None:
        self.updates: list[int] = []

    def on_update(self, update: int, total: int, metrics: Any, timing: Any) -> None:
        self.updates.append(update)


@pytest.fixture(scope="module")
def without_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mage.report.curves.draw_curves", lambda results: {"png": b"", "svg": b""})
        yield


@pytest.fixture(scope="module")
@end_to_end
def trained(tmp_path_factory, without_pictures):
    recorder = Recorder()
    recipe = mage.load_recipe("kuhn_poker", SMALL)
    run = mage.train(recipe, runs=tmp_path_factory.mktemp("runs"), callbacks=[recorder])
    return run, recorder


@pytest.mark.e2e
def test_a_run_is_trained_loaded_evaluated_and_played(trained):
    run, recorder = trained
    assert recorder.updates == [1, 2]
    assert run.finished
    loaded = mage.load_run(run.path)
    assert [line["update"] for line in loaded.metrics] == [1, 2]
    assert mage.train(loaded) == run, "a finished run is not trained again"
    evaluation = mage.evaluate(run)
    assert evaluation.overall.episodes[-1].score is not None
    stored = run.folder.read_evaluation("after_test")["overall"]["episodes"][-1]["score"]["value"]
    assert evaluation.overall.episodes[-1].score.value == pytest.approx(stored)
    assert len(mage.evaluate(run, size=6, memory="none", episodes=2).overall.episodes) == 2
    played = mage.play_one(run, "conservative", seed=3, episodes=2)
    assert len(played.episodes) == 2
    assert all(meta.task.environment == "kuhn_poker" for meta in run.transcripts())
    assert run.transcripts()
    with pytest.raises(ValueError, match="not a run folder"):
        mage.load_run(run.path / "nowhere")


@pytest.mark.e2e
def test_results_become_pandas_frames(trained):
    pytest.importorskip("pandas")
    run, _ = trained
    frame = run.to_pandas()
    assert list(frame["update"]) == [1, 2]
    cells = mage.evaluate("kuhn_poker", size=6).to_pandas()
    overall = cells[(cells.opponent == "all") & (cells.seat == "both")]
    assert list(overall.episode) == [1, 2, 3]
    assert {"score", "score_low", "score_high", "illegal"} <= set(cells.columns)


# --- Recipes, policies and engines without files --------------------------------------------------


def test_a_recipe_needs_no_base():
    recipe = mage.recipe(
        OtherBoard(max_turns=6),
        opponents=[Pattern(number=2), "random"],
        model="smollm2",
        play={"groups": 4},
        memory="notes",
    )
    assert recipe.environment() == OtherBoard(max_turns=6)
    assert recipe.opponents.train == {"mage.opponents.scripted.Pattern-2": 1.0, "random": 1.0}
    assert (recipe.play.groups, recipe.model.path, recipe.warmup.first) == (4, "smollm2", False)
    assert recipe.play.members == mage.recipe("tic_tac_toe").play.members, "sections are merged"
    assert mage.recipe("mastermind", play={"groups": 4}).play.groups == 4
    by_name = mage.recipe("tic_tac_toe", opponents={"random": 0.5, "mcts-100": 0.5})
    assert by_name.opponents.train == {"random": 0.5, "mcts-100": 0.5}
    with pytest.raises(ValueError, match="has no effect in an environment without opponents"):
        mage.recipe("mastermind", opponents="random")
    with pytest.raises(ValueError, match="grops is unknown"):
        mage.recipe("mastermind", play={"grops": 3})


def test_an_item_that_a_stopped_run_could_not_find_is_refused(monkeypatch):
    class Inside(TicTacToe):
        pass

    with pytest.raises(ValueError, match="defined inside a function"):
        mage.recipe(Inside)
    monkeypatch.setattr(OtherBoard, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "OtherBoard", OtherBoard, raising=False)
    with pytest.warns(UserWarning, match="defined in this script or notebook"):
        assert mage.recipe(OtherBoard).environments.name == "__main__.OtherBoard"
    monkeypatch.delattr(sys.modules["__main__"], "OtherBoard")
    with pytest.raises(ValueError, match="OtherBoard was defined in a script or notebook"):
        mage.recipe("__main__.OtherBoard")


@pytest.mark.e2e
def test_a_function_is_evaluated_as_a_policy():
    met: set[int] = set()

    def always_bet(seen: mage.Seen) -> str:
        assert seen.messages[0]["role"] == "system"
        assert seen.observation in seen.messages[-1]["content"]
        assert seen.legal == ("pass", "bet")
        seen.notes.setdefault("first", seen.episode)
        assert seen.notes["first"] == 1, "notes are kept for all episodes of a task"
        assert bool(seen.memory) == (seen.episode > 1)
        met.add(seen.episode)
        return "bet"

    found = mage.evaluate(policy=always_bet, environment="kuhn_poker", opponents=AlwaysBet)
    assert met == {1, 2, 3}
    assert [one.illegal for one in found.overall.episodes] == [0.0] * 3
    score = found.overall.episodes[0].score
    assert score is not None
    assert score.low <= 0 <= score.high, "two players who always bet win as often as they lose"
    assert score.count == mage.recipe("kuhn_poker").evaluate.final_size


def test_wrong_policies_are_data_or_one_message():
    found = mage.evaluate("kuhn_poker", policy=lambda seen: "raise", size=6, episodes=1)
    assert found.overall.episodes[0].illegal == 1.0
    with pytest.raises(ValueError, match="must return a move as text"):
        mage.evaluate("kuhn_poker", policy=lambda seen: 3, size=6)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="writes moves only"):
        mage.evaluate("kuhn_poker", policy=lambda seen: "bet", size=6, memory="reflections")
    with pytest.raises(ValueError, match="one of them, not both"):
        mage.evaluate("kuhn_poker", environment="kuhn_poker", policy=lambda seen: "bet")


@pytest.mark.e2e
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("without_pictures")
def test_training_in_python_shows_the_progress_of_the_command(tmp_path, capfd):
    few = {"run.updates": 1, "evaluate.size": 1, "evaluate.final_size": 1, "run.workers": 1}
    recipe = mage.load_recipe("kuhn_poker", SMALL | few)
    run = mage.train(recipe, runs=tmp_path)
    told = capfd.readouterr()
    assert told.out == ""
    lines = ("model embedded", f"run folder {run.path}", "update 1 of 1", "after (final test)")
    assert all(line in told.err for line in lines)
    mage.train(recipe.changed(run={"updates": 0}), runs=tmp_path, progress=False)
    assert capfd.readouterr() == ("", "")
