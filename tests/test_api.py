"""The Python interface: names, changes by objects, a training with callbacks, frames."""

from pathlib import Path
from typing import Any

import pytest

import mage
from mage.environments.tic_tac_toe import TicTacToe
from mage.opponents.base import population_of
from mage.opponents.scripted import Pattern

SMALL = {
    "run.updates": 2,
    "run.threads": 1,
    "play.groups": 2,
    "play.members": 2,
    "evaluate.size": 6,
    "evaluate.final_size": 6,
}
NAMES = {
    *("Callback", "Environment", "Evaluation", "Item", "Memory", "MetaEpisode", "Notebook"),
    *("Opponent", "Recipe", "Run", "State", "Stopped", "__version__"),
    *("as_gymnasium", "as_trl", "evaluate", "list", "load_recipe", "load_run", "play_one", "train"),
}


class OtherBoard(TicTacToe):
    """An environment that is defined in a user's file."""


def test_the_public_names_are_stable_and_documented() -> None:
    assert set(mage.__all__) == NAMES
    assert all(getattr(mage, name).__doc__ for name in NAMES - {"__version__"})
    stub = (Path(mage.__file__).parent / "__init__.pyi").read_text()
    assert all(f'    "{name}",' in stub for name in NAMES)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = mage.trian  # type: ignore[attr-defined]


def test_recipes_are_changed_by_values_classes_and_objects() -> None:
    recipe = mage.load_recipe(
        "tic_tac_toe",
        {
            "environments": OtherBoard(max_turns=6),
            "opponents.train": {Pattern(number=2): 0.5, "random": 0.5},
            "play.groups": 2,
        },
    )
    assert recipe.environment() == OtherBoard(max_turns=6)
    assert population_of(recipe).pool("train") == {
        "mage.opponents.scripted.Pattern-2": 0.5,
        "random": 0.5,
    }
    assert recipe.play.groups == 2
    with pytest.raises(ValueError, match="grops is unknown"):
        mage.load_recipe("tic_tac_toe", {"play.grops": 2})
    with pytest.raises(ValueError, match="is not an opponent"):
        mage.load_recipe("tic_tac_toe", {"opponents.train": {3: 1.0}})


def test_menus_are_listed_as_records() -> None:
    assert {"kuhn_poker", "sokoban"} <= {item.name for item in mage.list("environments")}
    assert {"environments", "opponents", "recipes", "options"} <= set(mage.list())


class Recorder(mage.Callback):
    def __init__(self) -> None:
        self.updates: list[int] = []

    def on_update(self, update: int, total: int, metrics: Any, timing: Any) -> None:
        self.updates.append(update)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[mage.Run, Recorder]:
    recorder = Recorder()
    recipe = mage.load_recipe("kuhn_poker", SMALL)
    run = mage.train(recipe, runs=tmp_path_factory.mktemp("runs"), callbacks=[recorder])
    return run, recorder


@pytest.mark.e2e
def test_a_run_is_trained_loaded_evaluated_and_played(trained: tuple[mage.Run, Recorder]) -> None:
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
def test_results_become_pandas_frames(trained: tuple[mage.Run, Recorder]) -> None:
    pytest.importorskip("pandas")
    run, _ = trained
    frame = run.to_pandas()
    assert list(frame["update"]) == [1, 2]
    cells = mage.evaluate("kuhn_poker", size=6).to_pandas()
    overall = cells[(cells.opponent == "all") & (cells.seat == "both")]
    assert list(overall.episode) == [1, 2, 3]
    assert {"score", "score_low", "score_high", "illegal"} <= set(cells.columns)
