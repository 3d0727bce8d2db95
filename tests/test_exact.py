"""Exact scores agree with sampled play; games that do not fit are refused."""

import json

import pytest
from typer.testing import CliRunner

from mage.api.agents import Candidate, play_panel
from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.evaluation.exact.scores import exact_scores
from mage.memory.notes import Notes
from mage.opponents.base import population_of
from mage.training.build import build_components

SHARES = {"conservative": 0.4, "aggressive": 0.6}
SMALL = ["--run.workers=1", "--engines.slots=256", "--play.episodes=2", "--returns.weights=[0.5,1]"]


def score(parts, shares=SHARES, **play):
    setup = parts.begin_play(evaluating=True, **play)
    return exact_scores(setup, parts.weights(), shares, parts.recipe.learn)


@pytest.fixture(scope="module")
def parts():
    shares = "--opponents.train={conservative = 0.4, aggressive = 0.6}"
    return build_components(load_recipe("kuhn_demo", [*SMALL, shares]))


@pytest.fixture(scope="module")
def exact(parts):
    return score(parts)


@pytest.mark.e2e
def test_a_panel_scatters_around_the_exact_scores(parts, exact):
    played = play_panel(Candidate("kuhn_demo", 0, parts), "test", "final", 160, None)
    assert exact.left_out < 1e-6
    assert exact.unread < 0.01
    for score, figures in zip(exact.overall.scores, played.overall.episodes, strict=True):
        assert figures.score is not None
        error = (figures.score.high - figures.score.low) / 3.92
        assert abs(score - figures.score.value) < 4 * error
    seats = [cell for cell in exact.cells if cell.opponent is None and cell.seat is not None]
    assert exact.overall.scores[1] == pytest.approx(sum(cell.scores[1] for cell in seats) / 2)


@pytest.mark.e2e
def test_without_memory_there_are_as_many_situations_as_the_game_has(parts, exact):
    """Kuhn poker has six situations a seat; prompts of two numbered episodes differ."""
    found = score(parts, memory=Notes(keep="none"))
    assert found.situations == 2 * 12
    assert found.overall.scores[0] == pytest.approx(exact.overall.scores[0])


def test_games_without_numbers_are_prompted_as_in_play():
    """Without numbers and memory both games have equal prompts."""
    parts = build_components(load_recipe("kuhn_demo", [*SMALL, "--play.numbered=false"]))
    first, second = score(parts, memory=Notes(keep="none")).overall.scores
    assert first == pytest.approx(second)


def test_cells_are_all_opponents_and_seats_and_their_means(parts):
    found = score(parts, {"random": 1.0, "cfr": 1.0}, memory=Notes(keep="none"))
    assert len(found.cells) == 1 + 2 + 2 + 4
    assert all(-2 <= score <= 2 for cell in found.cells for score in cell.scores)


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (
            "kuhn_demo",
            ["--memory.keep=reflections", "--agent.reflection_tokens=16"],
            "depends on the moves only",
        ),
        ("kuhn_demo", ["--evaluate.top_k=5"], "top_k = 0"),
        ("kuhn_demo", ["--environments.restart=same"], "restart = fresh"),
        ("tic_tac_toe", ["--environments.restart=fresh"], "lines of play"),
        ("sokoban", ["--model.path=embedded"], "OpenSpiel game"),
    ],
)
def test_settings_without_exact_scores_are_refused(recipe, changes, message):
    parts = build_components(load_recipe(recipe, changes))
    with pytest.raises(ValueError, match=message):
        score(parts, population_of(parts.recipe).pool("test") or {"": 1.0})


@pytest.mark.e2e
def test_a_family_is_represented_by_unseen_players_and_the_policy_is_exploitable():
    """The untrained model moves almost at random; uniform play: .4583 (OpenSpiel).

    Shares of the players are equal, so their mean is the overall score.
    """
    words = ["evaluate", "kuhn_demo", "--exact", "--players", "3", "--memory", "none", "--json"]
    words += ['--opponents.train={"random_policy-0.2" = 1.0}', "--run.workers=1"]
    done = CliRunner().invoke(app, [*words, "--engines.slots=16"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["exploitability"] == pytest.approx(0.4583, abs=0.06)
    names = {cell["opponent"] for cell in found["cells"]} - {None}
    assert len(names) == 3
    episodes = found["over_players"]["episodes"]
    assert [one["count"] for one in episodes] == [3, 3, 3]
    overall = found["cells"][0]["scores"]
    assert [one["value"] for one in episodes] == pytest.approx(overall)
    gain = found["over_players"]["gain"]
    assert gain["value"] == pytest.approx(overall[2] - overall[0])
    assert gain["low"] < gain["value"] < gain["high"]
