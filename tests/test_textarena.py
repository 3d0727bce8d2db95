"""The adapter to TextArena: seats, seeds, possible moves, refused games, training."""

import random
import subprocess
import sys

import numpy as np
import pytest

from mage.environments import textarena
from mage.environments._foreign import ForeignCalls
from mage.environments.base import check
from mage.environments.textarena import TextArena, TextArenaState, _vary
from mage.opponents.base import find
from mage.opponents.random_policy import RandomPolicy
from tests.adapter_runs import check_training, tiny_recipe


def moves_of(state: TextArenaState, seed: int) -> list[str]:
    """Random legal moves to the end of the game."""
    rng, made = random.Random(seed), []
    while state.turn() is not None:
        made.append(rng.choice(state.legal()))
        state.apply(made[-1])
    return made


@pytest.mark.e2e
def test_menu_and_recipes_need_no_package():
    """A recipe stores the number of players, so the page reads a run without the package."""
    program = (
        "import sys; sys.modules['textarena'] = None\n"
        "import mage; mage.list('opponents'); mage.list('environments')\n"
        "from mage.environments.textarena import TextArena\n"
        "assert not TextArena(game='GuessTheNumber-v0', players=1).multi_agent\n"
        "try: TextArena(game='GuessTheNumber-v0')\n"
        "except ValueError as error: assert '.[textarena]' in str(error)\n"
        "else: raise SystemExit('it was not refused')\n"
        "TextArena().check_data()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(
        "textarena is not installed: pip install '.[textarena]' in the checkout of MAGE"
    )


def test_examples_of_a_move_give_moves_with_other_numbers():
    assert list(_vary(["[col 4]"]))[:2] == ["[col 0]", "[col 1]"]
    assert len(list(_vary(["[0 3]"]))) == 64
    assert list(_vary([f"[{number}]" for number in range(9)])) == []
    assert list(_vary(["[bet]", "[1 2 3 4]"])) == []


@pytest.mark.parametrize(
    ("game", "seats"), [("KuhnPoker-v0", 2), ("TicTacToe-v0", 2), ("GuessTheNumber-v0", 1)]
)
def test_a_game_needs_its_name_only(game, seats):
    pytest.importorskip("textarena")
    world = TextArena(game=game)
    world.check_data()
    assert (world.seats, world.multi_agent) == (seats, seats == 2)
    assert check(world, games=3) == []


def test_legal_moves_are_those_that_the_game_accepts():
    pytest.importorskip("textarena")
    state = TextArena(game="TicTacToe-v0").start(0)
    assert sorted(state.legal()) == [f"[{cell}]" for cell in range(9)]
    state.apply("[4]")
    assert "[4]" not in state.legal()
    assert (state.read("4"), state.read("9"), state.read("0")) == (None, None, "[0]")
    assert state.turn() == 1, "a refused move does not change the game"
    guess = TextArena(game="GuessTheNumber-v0").start(0)
    assert len(guess.legal()) == 20


def test_the_seed_decides_the_game_whatever_happens_beside_it():
    pytest.importorskip("textarena")
    world = TextArena(game="KuhnPoker-v0")
    before = random.getstate()
    first, second = world.start(3), world.start(3)
    assert random.getstate() == before
    made = moves_of(first, 1)
    random.random()
    for move in made:
        second.legal()  # trials on copies use no random numbers of the game
        second.apply(move)
    assert [second.recap(seat) for seat in (0, 1)] == [first.recap(seat) for seat in (0, 1)]
    assert sum(first.scores()) == 0
    assert len({world.start(seed).anchor(0) for seed in range(20)}) > 1


def test_known_positions_are_not_tried_again(monkeypatch):
    pytest.importorskip("textarena")
    monkeypatch.setattr(textarena, "_TRIED", {})
    world = TextArena(game="TicTacToe-v0")
    first = world.start(0)
    first.apply("[4]")
    expected = first.legal()
    known = len(textarena._TRIED)
    second = world.start(9)  # the seed changes nothing on this board
    second.apply("[4]")
    assert second.legal() == expected
    assert len(textarena._TRIED) == known
    second.apply("[0]")
    assert "[0]" not in second.legal()
    assert len(textarena._TRIED) == known + 1


def test_trials_that_draw_random_numbers_are_not_kept():
    call = ForeignCalls("a game", 5)
    drawn = [call.aside(draw)[0] for draw in (random.random, np.random.random) for _ in range(2)]
    assert (drawn[0], drawn[2]) == (drawn[1], drawn[3]), "the numbers are put back"
    assert [call.aside(draw)[1] for draw in (random.random, np.random.random, int)] == [
        True,
        True,
        False,
    ]
    assert call("a step", random.random) == drawn[0]


def test_texts_do_not_grow_from_episode_to_episode():
    pytest.importorskip("textarena")
    world = TextArena(game="TicTacToe-v0")
    openings = {world.start(4).observe(0) for _ in range(3)}
    assert len(openings) == 1
    state = world.start(4)
    moves_of(state, 0)
    assert max(len(state.observe(seat)) for seat in (0, 1)) < 2 * len(openings.pop())


def test_a_random_player_takes_the_other_seat():
    pytest.importorskip("textarena")
    world, rng = TextArena(game="ConnectFour-v0"), random.Random(0)
    state = world.start(0)
    for _ in range(4):
        seat = state.turn()
        assert seat is not None
        state.apply(find("random").act(state, seat, rng))
    assert [seat for seat, _ in state.moves] == [0, 1, 0, 1]


def test_a_drawn_player_is_consistent():
    """The same seed and texts give the same probabilities; players differ."""
    pytest.importorskip("textarena")
    world = TextArena(
        game="IteratedRockPaperScissors-v0", moves=("[rock]", "[paper]", "[scissors]")
    )
    chances = []
    for task in (1, 2):
        state = world.start(task)
        state.apply("[rock]")  # simultaneous: the other seat is not told
        chances.append(find("random_policy-0.1-7").policy(state, 1))
    assert chances[0] == chances[1]
    assert sum(chances[0].values()) == pytest.approx(1)
    assert chances[0] != find("random_policy-0.1-8").policy(state, 1)
    assert not RandomPolicy.plays(TextArena(game="GuessTheNumber-v0")), "it has one seat"


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ("Bandit-v0", "is refused: it pays the regret"),
        ("Wordle-v0", "is refused: it downloads word lists"),
        ("TwentyQuestions-v0", "is refused: it asks a model on the network"),
        ("TicTacToe", "has no game 'TicTacToe' .did you mean 'TicTacToe-v0'"),
        ("Taboo-v0", "is no game for one or two players"),
    ],
)
def test_games_that_cannot_be_trained_on_are_refused_with_the_reason(game, message):
    pytest.importorskip("textarena")
    with pytest.raises(ValueError, match=message):
        TextArena(game=game)


SHORT = {"name": "textarena", "game": "IteratedRockPaperScissors-v0", "max_turns": 2}


@pytest.mark.e2e
def test_copies_and_another_model_take_the_other_seat_and_a_killed_training_resumes(tmp_path):
    """`league-1`: copies of the agent, the first one before training."""
    pytest.importorskip("textarena")
    other = "model-embedded-rps"
    opponents = {"train": {"league-1": 0.5, other: 0.5}, "test": {other: 1.0}}
    run = check_training(tiny_recipe(SHORT, opponents=opponents), tmp_path)
    for update, copies in ((1, {"0"}), (2, {"0", "1"})):
        met = {meta.task.opponent for meta in run.read_episodes(update)}
        assert other in met
        (copy,) = met - {other}
        assert copy.split("-")[0] == "league"
        assert copy.split("-")[-1] in copies
    tested = {meta.task.opponent for meta in run.read_episodes_of("after_test")}
    assert tested == {other}
    assert all(0 <= line["opponent_illegal_rate"] <= 1 for line in run.metrics())
