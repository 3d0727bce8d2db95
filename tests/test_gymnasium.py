"""The adapter to Gymnasium's interface: own classes, the package's games, seeds and bad worlds."""

import random
import sys

import numpy as np
import pytest

from mage.config.errors import UserError
from mage.environments.base import check
from mage.environments.gymnasium import Gymnasium


def own(name: str, **options: object) -> Gymnasium:
    return Gymnasium.model_validate({"game": f"tests.foreign_worlds.{name}", **options})


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["Digits", "Masked"])
def test_an_own_class_needs_its_dotted_path_only(name):
    world = own(name)
    world.check_data()
    assert check(world, games=20) == []
    assert world.rules() == "Guess the digit. A guess says higher or lower." or name == "Masked"
    assert world.start(3).legal() == (("2", "4") if name == "Masked" else tuple("12345"))


def test_the_older_form_with_names_of_actions_is_played():
    world = own("Arms")
    world.check_data()
    assert check(world, games=20) == []
    for seed in range(4):
        state = world.start(seed)
        assert sorted(state.legal()) == ["blue", "red"]
        state.apply("red")
        assert (state.turn(), state.scores()) == (None, (1.0,))


def test_a_task_is_the_same_in_every_episode_and_scores_are_sums_of_rewards():
    world = own("Digits")
    seed = world.episode_seed(5, 0)
    assert seed == world.episode_seed(5, 2)
    ends = []
    for _ in range(2):
        state = world.start(seed)
        for guess in "12345":
            if state.turn() is not None:
                state.apply(guess)
        ends.append((state.scores(), state.recap(0), state.anchor(0)))
    assert ends[0] == ends[1]
    assert ends[0][0] == (1.0,)
    assert "You succeeded (score 1)." in ends[0][1]
    assert ends[0][2].startswith("Guess a number from 1 to 5. / 1 / 1 is ")


def test_global_random_numbers_are_neither_used_up_nor_seen():
    before = random.getstate(), np.random.get_state()[1].tolist()
    first, second = own("Digits").start(1), own("Digits").start(1)
    random.random()
    for guess in ("1", "2"):
        for state in (first, second):
            if state.turn() is not None:
                state.apply(guess)
    assert first.observe(0) == second.observe(0)
    random.setstate(before[0])
    own("Digits").start(2)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]


def test_words_texts_and_free_text():
    world = own("Digits", moves="one,two,three,four,five", formatter="tests.foreign_worlds.shout")
    state = world.start(0)
    assert state.read("Two") == "two"
    assert state.observe(0).startswith("GUESS A NUMBER FROM 1 TO 5. DIGITS\nMoves: one, two")
    text = own("Echo", moves=("hello",), max_turns=2, success=1.0)
    assert check(text, games=3) == []
    talk = text.start(0)
    assert talk.read("anything else") == "anything else"
    assert talk.read("") is None
    talk.apply("good day")
    assert talk.observe(0) == "You said good day."
    talk.apply("bye")
    assert (talk.turn(), talk.scores(), text.outcome(1.0)) == (None, (1.0,), "won")


def check_and_step(world: Gymnasium) -> None:
    world.check_data()
    world.start(0).apply("1")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("IgnoresSeed", {}, "ignores the seed: two resets with seed 11 show 'Round 1"),
        ("ReturnsThree", {}, r"step must return \(observation, reward, .*but it returned 3 values"),
        ("OldReset", {}, r"reset must return \(observation, info\), but it returned a int"),
        ("Raises", {}, r"step\(1\) failed: KeyError: 'no such room' \(.*foreign_worlds.py, line"),
        ("PaysNothingKnown", {}, "step gave the reward nan"),
        ("Echo", {}, "takes free text: name typical moves with environments.moves"),
        ("OfGem", {}, "takes free text: name typical moves with environments.moves"),
        ("Missing", {}, "tests.foreign_worlds has no 'Missing'"),
        ("Served", {"moves": ("hit", "stand")}, r"reset failed: TypeError: .* 'seed'"),
        ("Digits", {"moves": "up,down"}, r"has 5 actions, but .* names 2: up, down"),
    ],
)
def test_bad_environments_give_one_message(name, options, message):
    with pytest.raises(UserError, match=message) as caught:
        check_and_step(own(name, **options))
    assert "\n" not in str(caught.value)


def test_arguments_have_names():
    with pytest.raises(ValueError, match="is not an argument"):
        own("Digits", arguments="size")


def test_without_the_package_one_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match=r"pip install '\.\[gymnasium\]' in the checkout of MAGE$"):
        Gymnasium().check_data()


@pytest.mark.parametrize(
    "game", ["FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "Blackjack-v1", "Taxi-v4"]
)
def test_text_like_games_of_gymnasium_keep_the_contract(game):
    pytest.importorskip("gymnasium")
    world = Gymnasium(game=game)
    world.check_data()
    assert check(world, games=5) == []
    assert not world.example_action().isdigit()


def test_frozen_lake_is_a_map_and_can_be_crossed():
    pytest.importorskip("gymnasium")
    world = Gymnasium(arguments="is_slippery=false")
    state = world.start(0)
    assert state.observe(0).startswith("P F F F\nF H F H\nF F F H\nH F F G\nMoves: left, down")
    for move in ("down", "down", "right", "right", "down", "right"):
        state.apply(move)
    assert (state.turn(), state.scores()) == (None, (1.0,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("game", "message"),
    [
        ("Pendulum-v1", r"has the action space Box.*only discrete actions"),
        ("NoSuchGame-v0", "making it failed: NameNotFound"),
    ],
)
def test_continuous_actions_and_unknown_names_are_refused(game, message):
    pytest.importorskip("gymnasium")
    with pytest.raises(UserError, match=message):
        Gymnasium(game=game).check_data()
