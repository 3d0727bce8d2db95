"""Evaluation of hand-made meta-episodes: every expected figure is worked by hand in the test."""

import json
import math
from io import StringIO

import pytest
from corridor import Corridor, CorridorState
from rich.console import Console

from mage.cli.terminal.results import evaluation_table
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.openspiel import OpenSpiel
from mage.environments.sokoban import Sokoban
from mage.environments.tic_tac_toe import TicTacToe
from mage.evaluation.compare import compare
from mage.evaluation.exact.ceilings import ceilings
from mage.evaluation.figures import Evaluation, Expert, summarise_rows
from mage.evaluation.rows import (
    TaskRow,
    read_tasks,
    row_from_json,
    row_to_json,
    task_row,
    write_tasks,
)
from mage.evaluation.statistics import wilson
from mage.opponents.base import Population
from mage.types import Completion, Episode, MetaEpisode, Task, Turn
from tests.toys import summarise

KUHN = KuhnPoker()
POPULATION = Population(train={"conservative": 0.5, "aggressive": 0.5}, ood={"cfr": 1})


def turn(legal=True, tokens=4):
    completion = Completion((1,) * tokens, (0.0,) * tokens, "", "stop", 0)
    return Turn("play", "", "", (), completion, "bet" if legal else None, (0, 0), legal, 0.0)


def episode(score, turns=()):
    outcome = "won" if score > 0 else "lost" if score < 0 else "drawn"
    turns = tuple(turns) or (turn(),)
    return Episode(turns, None, (), float(score), 5.0 * score, outcome, "finished", "")


def played(seed, seat, opponent, scores, member=0, environment="kuhn_poker", split="test"):
    episodes = tuple(one if isinstance(one, Episode) else episode(one) for one in scores)
    task = Task(environment, seed, seat, opponent, split)
    return MetaEpisode(task, 0, member, episodes, ("",) * len(episodes), 0)


FOUR = [
    played(1, 0, "conservative", [-1, 1, 2]),
    played(2, 0, "aggressive", [-2, -1, 2]),
    played(3, 1, "conservative", [1, 1, -1]),
    played(4, 1, "aggressive", [episode(-2, [turn(), turn(legal=False, tokens=10)]), 2, 2]),
]


@pytest.fixture(scope="module")
def evaluation():
    return summarise(FOUR, KUHN, POPULATION, "test")


def cell(cells, opponent=None, seat=None):
    return next(one for one in cells if (one.opponent, one.seat) == (opponent, seat))


def test_rates_scores_and_pass_at_k_are_those_worked_by_hand(evaluation):
    first, second, third = all_three = evaluation.overall.episodes
    assert [figures.success.value for figures in all_three] == [1 / 4, 3 / 4, 3 / 4]
    assert [figures.pass_at.value for figures in all_three] == [1 / 4, 3 / 4, 1]
    assert [figures.score.value for figures in all_three] == [-1, 3 / 4, 5 / 4]
    assert first.success == wilson(1, 4)
    assert (first.success_gain, first.score_gain) == (None, None)
    assert (third.success_gain.value, third.score_gain.value) == (1 / 2, 9 / 4)
    # Scores -1 -2 1 -2: s^2 = 2, error sqrt(2 / 4), t(3) = 3.1824.
    assert first.score.high == pytest.approx(-1 + 3.182446 * math.sqrt(0.5), abs=1e-5)
    assert first.draws.value == 0
    # Replies of episode 1: five, one illegal, 4 x 4 + 10 tokens.
    assert (first.illegal, first.tokens) == (pytest.approx(1 / 5), pytest.approx(26 / 5))
    assert (second.illegal, second.tokens, second.unfinished) == (0, 4, 0)


def test_every_opponent_and_seat_has_its_own_cell(evaluation):
    assert cell(evaluation.by_opponent, "aggressive").episodes[1].score.value == 1 / 2
    assert cell(evaluation.by_seat, seat=1).episodes[1].score.value == 3 / 2
    one = cell(evaluation.by_opponent_seat, "conservative", 1)
    assert (one.tasks, one.episodes[2].score.value, one.episodes[2].pass_at.value) == (1, -1, 1)
    assert len(evaluation.cells) == 1 + 2 + 2 + 4


def test_exploitation_runs_from_the_equilibrium_to_the_best_response(evaluation):
    """Aggressive, first seat: -1/18 to 1/3, so a score of 2 is (2 + 1/18) / (7/18) = 37/7."""
    one, overall = cell(evaluation.by_opponent_seat, "aggressive", 0), evaluation.overall
    assert (one.equilibrium, one.best_response) == pytest.approx((-1 / 18, 1 / 3), abs=1e-6)
    assert one.episodes[2].exploitation.value == pytest.approx(37 / 7, abs=1e-4)
    # Overall: equilibria -1/18 and 1/18 cancel. Best responses: 1/6, 1/3 in the first seat
    # (conservative, aggressive), 1/3, 1/3 in the second.
    assert (overall.equilibrium, overall.best_response) == pytest.approx((0, 7 / 24), abs=1e-6)
    exploitation = overall.episodes[2].exploitation.value
    assert exploitation == pytest.approx((5 / 4) / (7 / 24), abs=1e-4)


def test_every_seat_has_its_ceilings_and_the_overall_cell_their_mean():
    more = [played(seed, 1, "aggressive", [1, 1, 1]) for seed in (5, 6)]
    evaluation = summarise([*FOUR, *more], KUHN, POPULATION, "test")
    seats = [[ceilings(KUHN, POPULATION.train, seat, n) for n in (1, 2, 3)] for seat in (0, 1)]
    for seat in (0, 1):
        one = cell(evaluation.by_seat, seat=seat)
        assert one.non_adapting == pytest.approx(seats[seat][0].non_adapting)
        bayes = [found.bayes_final for found in seats[seat]]
        assert [figures.ceiling for figures in one.episodes] == pytest.approx(bayes)
    expected = (2 * seats[0][2].bayes_final + 4 * seats[1][2].bayes_final) / 6
    assert evaluation.overall.episodes[2].ceiling == pytest.approx(expected)
    assert cell(evaluation.by_opponent, "aggressive").non_adapting is None


def test_a_replayed_deal_has_no_ceilings_and_no_exploitation():
    overall = summarise(FOUR, KuhnPoker(restart="same"), POPULATION, "test").overall
    first = overall.episodes[0]
    found = (overall.non_adapting, overall.best_response, first.exploitation, first.ceiling)
    assert found == (None,) * 4


def test_the_equilibrium_player_has_no_exploitation_figure():
    evaluation = summarise([played(1, 0, "cfr", [1, 1], split="ood")], KUHN, POPULATION, "ood")
    assert evaluation.overall.best_response == pytest.approx(-1 / 18, abs=1e-3)
    assert evaluation.overall.episodes[0].exploitation is None


def test_search_players_have_no_bounds_by_default():
    population = Population(train={"mcts-1000": 1, "pattern-0": 1})
    games = [
        played(1, 0, "mcts-1000", [0], environment="tic_tac_toe"),
        played(2, 0, "pattern-0", [1], environment="tic_tac_toe"),
    ]
    evaluation = summarise(games, TicTacToe(), population, "test")
    assert cell(evaluation.by_opponent, "mcts-1000").best_response is None
    assert evaluation.overall.best_response is None
    assert evaluation.overall.episodes[0].draws.value == 1 / 2
    one = cell(evaluation.by_opponent, "pattern-0")
    assert (one.equilibrium, one.best_response, one.episodes[0].exploitation.value) == (0, 1, 1)


def test_a_meta_episode_that_stopped_after_its_win_still_passes():
    """Success is 1 of 2 in episode 2 and 0 of 1 in episode 3; Pass@3 is 2 of 3."""
    results = [(0, [1]), (0, [-1, 1]), (1, [-1, -2, -1])]
    stopped = [played(seed, seat, "aggressive", won) for seed, (seat, won) in enumerate(results)]
    evaluation = summarise(stopped, KUHN, POPULATION, "test")
    _, second, third = evaluation.overall.episodes
    assert (second.success.value, second.success.count, second.score.value) == (1 / 2, 2, -1 / 2)
    assert (third.success.value, third.success.count, third.pass_at.count) == (0, 1, 3)
    assert third.pass_at.value == pytest.approx(2 / 3)
    nobody = cell(evaluation.by_seat, seat=0).episodes[2]
    found = (nobody.success, nobody.score, nobody.illegal, nobody.exploitation)
    assert (found, nobody.pass_at.value) == ((None,) * 4, 1)


def test_members_of_a_task_count_as_one_task():
    """Task 1 is won by one member of two: half a success of two tasks."""
    members = [(1, [1], 0), (1, [-1], 1), (2, [1], 0)]
    games = [played(seed, 0, "aggressive", scores, member) for seed, scores, member in members]
    overall = summarise(games, KUHN, POPULATION, "test").overall
    assert overall.tasks == 2
    assert overall.episodes[0].success == wilson(1.5, 2)
    assert (overall.episodes[0].score.value, overall.episodes[0].score.count) == (1 / 2, 2)


def test_stored_rows_give_the_same_figures(tmp_path, evaluation):
    rows, path = [task_row(one) for one in FOUR], tmp_path / "tasks.jsonl"
    write_tasks(path, rows)
    assert list(read_tasks(path)) == rows
    assert json.loads(path.read_text().splitlines()[0])["opponent"] == "conservative"
    assert summarise_rows(rows, KUHN, POPULATION, "test") == evaluation
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.jsonl"]


def test_the_comparison_is_paired_over_the_tasks(evaluation):
    """Episode 1: first -1 -2 1 -2, second 1 -2 1 1. Differences 2 0 0 3: mean 5/4, s^2 = 9/4."""
    better = [
        played(4, 1, "aggressive", [1, 2]),
        *(played(s, seat, o, [v, 2]) for s, seat, o, v in SECOND),
    ]
    found = compare(evaluation, summarise(better, KUHN, POPULATION, "test"))
    assert (found.tasks, len(found.episodes)) == (4, 2)
    first, second = found.episodes
    difference = first.score.difference
    assert (difference.value, difference.count) == (5 / 4, 4)
    assert difference.high == pytest.approx(5 / 4 + 3.182446 * math.sqrt(9 / 16), abs=1e-5)
    # Won by the second only: tasks 1 and 4; by the first only: none; two-sided 2 x 1/4.
    assert (first.success.difference.value, first.success.p_value) == (1 / 2, 1 / 2)
    assert second.pass_at.difference.value == 1 / 4
    one = compare([task_row(FOUR[-1])], [task_row(better[0])])  # task 4, without an interval
    assert (one.tasks, one.episodes[0].score.difference.value) == (1, 3)
    assert json.dumps(one.to_json(), allow_nan=False)


SECOND = [(3, 1, "conservative", 1), (2, 0, "aggressive", -2), (1, 0, "conservative", 1)]


def test_different_panels_or_environments_are_not_compared():
    message = "not played on the same panel: 1 of 4 tasks are in the first only, 0 of 3 in the sec"
    with pytest.raises(ValueError, match=message):
        compare([task_row(game) for game in FOUR], [task_row(game) for game in FOUR[:3]])
    kuhn, leduc = (OpenSpiel(game=name).digest() for name in ("kuhn_poker", "leduc_poker"))
    rows = {world: [task_row(game, world) for game in FOUR] for world in (kuhn, leduc, "")}
    with pytest.raises(ValueError, match="played in different environments"):
        compare(rows[kuhn], rows[leduc])
    assert compare(rows[kuhn], rows[kuhn]).tasks == compare(rows[""], rows[kuhn]).tasks
    assert [row_from_json(row_to_json(row)) for row in rows[kuhn]] == rows[kuhn]
    # The digest leaves out what is only shown or paid.
    assert Sokoban().digest() == Sokoban(view="words", reward_scale=3.0).digest()
    assert Sokoban().digest() != Sokoban(boxes=(1,)).digest()


def test_an_evaluation_is_plain_json_and_a_table_with_rows_by_opponent_and_seat_on_request(
    evaluation,
):
    plain = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    assert "rows" not in plain
    assert plain["overall"]["episodes"][2]["score"]["value"] == 5 / 4
    one_task = plain["by_opponent_seat"][0]["episodes"][0]["score"]
    assert one_task["low"] is None, "one task gives no interval"
    rows = shown_rows(evaluation)
    assert len(rows) == 1 + 3
    assert rows[3][:4] == ["3", "4", "75", "%"]
    assert len(shown_rows(evaluation, "seat")) == 1 + 3 * (1 + len(evaluation.by_seat))
    assert len(shown_rows(evaluation, "opponent", "seat")) == 1 + 3 * len(evaluation.cells)


def shown_rows(evaluation: Evaluation, *by: str) -> list[list[str]]:
    """The header and the rows that the terminal shows, as words."""
    shown = StringIO()
    Console(file=shown, width=200).print(evaluation_table(evaluation, "a title", 200, by)[0])
    lines = [line for line in shown.getvalue().splitlines()[1:] if line.strip(" ─━")]
    return [line.split() for line in lines]


@pytest.mark.parametrize(
    ("games", "message"),
    [
        ([], "nothing to evaluate"),
        ([played(1, 0, "random", [1], 0, "tic_tac_toe")], "played in tic_tac_toe, not in kuhn_pok"),
        ([played(1, 0, "cfr", [1], split="ood")], "belong to split ood, not to test"),
        ([played(1, 0, "random", [1])], "opponents random are not in the population's test pool"),
    ],
)
def test_wrong_arguments_give_a_clear_message(games, message):
    with pytest.raises(ValueError, match=message):
        summarise(games, KUHN, POPULATION, "test")


@pytest.mark.parametrize(
    ("turns", "move", "expected"),
    [(5, "go east", Expert(1.0, 1.0)), (1, "go east", Expert(0.0, 0.0)), (4, None, None)],
)
def test_a_world_without_other_agents_is_measured_against_its_expert(
    turns, move, expected, monkeypatch
):
    """The door is two steps to the east."""
    monkeypatch.setattr(CorridorState, "expert", lambda state: move)
    tasks = [Task("corridor", seed, 0, "", "test") for seed in range(3)]
    rows = [
        TaskRow(task, 0, (0.0,), ("lost",), ("turn_limit",), (1,), (0,), (5,)) for task in tasks
    ]
    found = summarise_rows(rows, Corridor(max_turns=turns), Population(), "test")
    assert found.overall.expert == expected
