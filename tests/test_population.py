"""Populations: reference learners, predictors, and the table of matches against all members."""

import json

import pytest
from typer.testing import CliRunner

from mage.api.contracts import check_opponent
from mage.cli.main import app
from mage.environments.base import check, golden
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissors
from mage.environments.rock_paper_scissors.predictors import Predictors
from mage.evaluation.exact.game_tree import moved
from mage.evaluation.population import make_matches, play_reference, summarise_matches
from mage.opponents.base import find, members

RPS = RockPaperScissors(throws=60)


def state_after(pairs: list[str], world: RockPaperScissors = RPS):
    """A game after these throws, written by first letters: `rp` is rock-paper."""
    words = {word[0]: word for word in THROWS}
    state = world.start(0)
    for pair in pairs:
        for letter in pair:
            state.apply(words[letter])
    return state


def test_the_learner_for_fixed_probabilities_beats_the_most_frequent_throw():
    """Seat 1 threw paper three times and rock once: counts 1.5, 3.5, .5. Scissors earn 2 / 5.5."""
    state = state_after(["rp", "rp", "rp", "pr"])
    assert find("bayes-fixed").policy(state, 0) == {"scissors": 1.0}
    # Seat 0: counts 3.5, 1.5, .5. Paper earns (3.5 - .5) / 5.5, scissors (1.5 - 3.5) / 5.5.
    assert find("bayes-fixed").policy(state, 1) == {"paper": 1.0}
    assert find("bayes-fixed").policy(state_after([]), 0) == pytest.approx(
        dict.fromkeys(THROWS, 1 / 3)
    )


def test_the_learner_for_pairs_counts_what_followed_the_last_throws():
    """After rock-paper the opponent threw scissors once, so rock is best."""
    state = state_after(["rp", "rs", "pp", "sp", "rp"])
    assert find("bayes-pairs").policy(state, 0) == {"rock": 1.0}
    assert find("bayes-fixed").policy(state, 0) == {"scissors": 1.0}


def test_predictors_have_the_digits_that_were_worked_by_hand():
    """Two throws of rock against paper.

    Opponent's counts after one throw: paper. So the predictor `always` guesses paper before the
    second throw, and scissors (shift 1) would have won it: record +1, weight 1 * .95 + 1 = 1.95,
    1 / sqrt(1.95) = .716 deviations, 1.5 * .716 = 1.07 -> digit 3 + 1 = 4. Paper ties: 3. Rock
    loses: 2. The guess for the third throw is paper again. The last two throws are a new context,
    and no other context was seen before the second throw: these digits stay 3, with one exception.
    """
    known = Predictors(only_first=True)
    for _ in range(2):
        known.add((0, 1))
    rock, paper, scissors = known.digits()
    assert (rock[0], paper[0], scissors[0]) == (2, 3, 4)
    assert rock[1:5] == paper[1:5] == scissors[1:5] == (3, 3, 3, 3)
    # The reader's own throws: the guess is rock. Against paper, rock loses and scissors win.
    assert (rock[5], paper[5], scissors[5]) == (2, 3, 4)


def test_a_constant_opponent_gets_the_highest_digit():
    known = Predictors(only_first=True)
    for _ in range(60):
        known.add((0, 2))
    assert known.digits()[0][:5] == (9, 9, 9, 9, 9)
    assert known.digits()[1][0] == 0


@pytest.mark.parametrize("throws", [50, 300])
def test_short_and_long_games_have_the_same_highest_word(throws):
    """Against scissors always. A digit above 6 would be new to an agent that learned in 50."""
    known = Predictors()
    for _ in range(throws):
        known.add((0, 2))
    assert set(known.words) == {(0, 6)}


def test_the_longest_earlier_passage_gives_the_guess():
    """The opponent threw r p s r p. Its last two throws r p were followed by s.

    The reader always threw rock, so its own passage r r r r is followed by the last rock. All
    throws of both: the passage is r-r, r-p, followed by r-s.
    """
    known = Predictors()
    for throw in (0, 1, 2, 0, 1):
        known.add((0, throw))
    words = known.words
    assert [word[0] for word in words[9:11] if word] == [0, 0]  # the best rule beats the guess s
    assert known.pairs[-1] == (0, 1)
    both, opponent, reader = known._passages.followed()  # type: ignore[union-attr]
    assert (both, opponent, reader) == (2, 2, 4)


def test_an_observation_with_a_summary_is_complete_and_independent_of_the_length():
    """Two throws of rock against paper; digits as in the test above, but 0 is even.

    `always` guesses paper before the second throw, and scissors would have won: scissors1. The
    other guesses for the third throw are new, so their rule is to copy them: paper0. Contexts of
    two and three throws are new: a dash. The reader's own throws have the guess rock.
    """
    world = RockPaperScissors(throws=60, summary="predictors")
    state = state_after(["rp", "rp"], world)
    assert state.observe(0) == (
        "rock-paper. Predictors: scissors1 paper0 paper0 paper0 - - - - - paper0 paper0 paper0 "
        "scissors1 rock0 rock0 rock0 - - - - - rock0 rock0 rock0"
    )
    assert world.instance(0) == RockPaperScissors(throws=1000, summary="predictors").instance(0)
    assert state_after(["rp"] * 60, world).recap(1) == "Score +60."
    assert check(world, games=3) == []
    assert "24 simple predictors" in golden(world, games=1)


def test_copies_of_a_game_keep_their_own_rounds():
    """The game tree continues one position in several ways."""
    start = state_after(["rp"])
    first = moved(moved(start, "rock"), "rock")
    second = moved(moved(start, "paper"), "scissors")
    assert list(first.rounds(0)) == [("rock", "paper"), ("rock", "rock")]
    assert list(second.rounds(1)) == [("paper", "rock"), ("scissors", "paper")]


@pytest.mark.parametrize(
    "name", ["bayes-fixed", "bayes-pairs", "predictors-best", "predictors-all"]
)
def test_learners_keep_the_opponent_contract(name):
    assert check_opponent(find(name), RPS, games=4) == []


def test_the_rules_on_predictors_differ():
    """Against rock always, all rules throw paper in the end."""
    state = state_after(["sr"] * 20)
    for rule in ("best", "vote", "all"):
        assert find(f"predictors-{rule}").policy(state, 0) == {"paper": 1.0}


def test_the_population_of_all_programs_has_43_members():
    assert len(members("roshambo")) == 43
    assert members("roshambo-rockbot,random") == ("roshambo-rockbot", "random")
    with pytest.raises(ValueError, match="family"):
        members("dirichlet-0.5")


def test_figures_of_matches_are_those_worked_by_hand():
    """Two members, two matches of two episodes with ten throws."""
    matches = {"a": [(0.5, 0.5), (0.3, 0.1)], "b": [(-0.2, 0.0), (0.0, -0.4)]}
    found = summarise_matches("me", matches, 10)
    assert [one.mean_return.value for one in found.against] == pytest.approx([7, -3])
    assert found.population_return.value == pytest.approx(2)
    assert found.beaten == 1
    assert found.surely_beaten == 0
    assert found.worst.member == "b"
    assert [one.value for one in found.by_episode] == pytest.approx([0.15, 0.05])


def test_a_reference_beats_a_constant_program_almost_always():
    """`rockbot` throws rock always: the learner ties or loses the first throw at most."""
    tasks = make_matches(RPS, "roshambo-rockbot", 2)
    assert [task.seat for task in tasks] == [0, 1]
    found = play_reference("bayes-fixed", RPS, tasks, 2)["roshambo-rockbot"]
    assert len(found) == 2
    assert all(score >= 58 / 60 for scores in found for score in scores)


def test_a_program_that_plays_itself_is_independent_of_its_twin():
    """Two copies of `randbot` with the same random numbers would always tie."""
    tasks = make_matches(RPS, "roshambo-randbot", 2)
    found = play_reference("roshambo-randbot", RPS, tasks, 1)["roshambo-randbot"]
    assert any(score != 0 for scores in found for score in scores)


@pytest.mark.e2e
def test_one_command_writes_the_table(tmp_path):
    page = tmp_path / "table.md"
    words = ["evaluate", "roshambo", "--population", "roshambo-rockbot,roshambo-copybot"]
    words += ["--throws", "4", "--episodes", "2", "--page", str(page), "--json"]
    words += ["--references", "bayes-fixed,members", "--engines.slots=8", "--run.workers=1"]
    words += ["--environments.max_turns=100"]  # a run folder stores the limit of its own throws
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    names = [player["player"] for player in found["players"]]
    assert names[1:] == ["bayes-fixed", "roshambo-rockbot", "roshambo-copybot"]
    assert (found["members"], found["throws"], found["episodes"]) == (2, 4, 2)
    rock = next(one for one in found["players"] if one["player"] == "roshambo-rockbot")
    itself = next(one for one in rock["against"] if one["member"] == "roshambo-rockbot")
    assert itself["mean_return"]["value"] == 0
    assert "| roshambo-copybot |" in page.read_text()
