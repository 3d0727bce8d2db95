"""Golden play-throughs of all environments; OpenSpiel games: contract, results of OpenSpiel."""

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pyspiel
import pytest
from pydantic import ValidationError

from mage.config.errors import UserError
from mage.config.menus import find_item
from mage.environments.base import State, Wording, check, golden
from mage.environments.kuhn_poker import DEALS, KuhnPoker
from mage.environments.openspiel import OpenSpiel
from mage.environments.tic_tac_toe import TicTacToe
from mage.play.outside import OutsidePlay
from tests.corridor import Corridor, CorridorState

GOLDEN = Path(__file__).parent / "golden"
OTHERS = ("connect_four", "leduc_poker", "nim", "hex(board_size=3)", "liars_dice")
GAMES = [TicTacToe(), KuhnPoker(), *(OpenSpiel(game=game) for game in OTHERS)]


@pytest.mark.parametrize("environment", GAMES, ids=lambda one: one.game)
def test_every_game_keeps_the_contract(environment):
    assert check(environment, games=30) == []


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_play_throughs_equal_the_golden_files(path):
    """A change of texts needs new files (`mage check NAME --golden tests/golden --write`)."""
    assert golden(find_item("environments", path.stem)()) == path.read_text("utf-8")


class Broken(State):
    """Three violations: an empty move, an observation that changes, scores below the forfeit."""

    def __init__(self) -> None:
        self.moves = 0
        self.luck = random.random()

    def turn(self) -> int | None:
        return None if self.moves else 0

    def legal(self) -> tuple[str, ...]:
        return ("", "a")

    def apply(self, action: str) -> None:
        self.moves += 1

    def observe(self, seat: int) -> str:
        return str(self.luck)

    def anchor(self, seat: int) -> str:
        return ""

    def scores(self) -> tuple[float, ...]:
        return (-5.0, 5.0)

    def recap(self, seat: int) -> str:
        return "over"


class BrokenGame(KuhnPoker):
    name: ClassVar[str] = "broken"

    def start(self, seed: int) -> Any:
        return Broken()


def test_the_check_finds_violations():
    faults = " ".join(check(BrokenGame(), games=2))
    assert "plain text" in faults
    assert "same seed and moves differ in observe()" in faults
    assert "below forfeit_score" in faults


class LuckyState(CorridorState):
    """One method draws random numbers of its own."""

    lucky = ""

    def turn(self) -> int | None:
        over = self.lucky == "turn" and self.steps == 2 and random.random() < 0.5
        return None if over else super().turn()

    def anchor(self, seat: int) -> str:
        return f"{super().anchor(seat)} {random.random() if self.lucky == 'anchor' else ''}"

    def scores(self) -> tuple[float, ...]:
        return (random.random(),) if self.lucky == "scores" else super().scores()

    def recap(self, seat: int) -> str:
        return f"{super().recap(seat)} {random.random() if self.lucky == 'recap' else ''}"


class LuckyWording(Wording):
    def task(self, seat: int) -> str:
        return f"Find the door. {random.random()}"


class Lucky(Corridor):
    name: ClassVar[str] = "lucky"
    lucky: str = ""

    def start(self, seed: int) -> LuckyState:
        state = LuckyState(self.length, seed)
        state.lucky = self.lucky
        return state

    def instance(self, seat: int) -> str:
        return f"The door is {random.random() if self.lucky == 'instance' else 'east'}."

    def wording(self) -> Wording:
        return LuckyWording(self) if self.lucky == "Wording.task" else Wording(self)


@pytest.mark.parametrize(
    "method", ["turn", "anchor", "scores", "recap", "instance", "Wording.task"]
)
def test_random_numbers_that_are_not_of_the_seed_are_found(method):
    assert f"differ in {method}()" in " ".join(check(Lucky(lucky=method), games=20))


def test_all_seeded_texts_are_no_fault():
    assert "differ" not in " ".join(check(Lucky(), games=20))


class OneText(CorridorState):
    def legal(self) -> Any:
        return "wait"


class OneTextGame(Corridor):
    name: ClassVar[str] = "one_text"

    def start(self, seed: int) -> OneText:
        return OneText(self.length, seed)


def test_one_text_as_the_legal_moves_is_refused():
    """Its letters would be the moves."""
    message = r"OneText.legal\(\) returned 'wait' \(str\), but must return a tuple of moves"
    with pytest.raises(UserError, match=message):
        check(OneTextGame(), games=1)
    with pytest.raises(UserError, match=message):
        OutsidePlay(OneTextGame(), "", 0, 1, seed=0).reply("wait")


LINES = ("pass pass", "pass bet pass", "pass bet bet", "bet pass", "bet bet")


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("stratum", range(6))
def test_kuhn_scores_equal_openspiel_and_only_a_showdown_shows_the_other_card(stratum, line):
    """All thirty histories."""
    state, theirs = KuhnPoker().start(stratum), pyspiel.load_game("kuhn_poker").new_initial_state()
    first, second = ("JQK"[card] for card in DEALS[stratum])
    assert state.observe(0).count(first) == 1
    assert second not in state.observe(0)
    for card in DEALS[stratum]:
        theirs.apply_action(card)
    for word in line.split():
        state.apply(word)
        theirs.apply_action(("pass", "bet").index(word))
    assert state.turn() is None
    assert state.scores() == tuple(theirs.returns())
    assert ("hidden" in state.recap(0)) == (line in ("bet pass", "pass bet pass"))


def test_the_board_shows_the_numbers_of_the_empty_cells():
    state = TicTacToe().start(0)
    state.apply("5")
    state.apply("1")
    assert state.observe(0).splitlines() == ["O 2 3", "4 X 6", "7 8 9", "Free: 2 3 4 6 7 8 9."]
    assert state.anchor(0) == "O...X...."


def test_games_that_do_not_fit_are_refused():
    for game, message in (
        ("no_such_game", "has no game"),
        ("pig(players=3)", "not a game for two"),
    ):
        with pytest.raises(ValidationError, match=message):
            OpenSpiel(game=game)


def test_fresh_restarts_deal_anew_and_same_restarts_do_not():
    assert len({KuhnPoker(restart="same").episode_seed(7, n) for n in range(5)}) == 1
    assert len({KuhnPoker(restart="fresh").episode_seed(7, n) for n in range(5)}) == 5


@pytest.mark.parametrize(
    ("world", "digest"), [("sokoban", "ff8e5c5a9dcd6ed5"), ("webshop", "90ba04defd00e038")]
)
def test_a_deleted_option_leaves_the_digest_as_it_was(world, digest):
    """Values of 17 November 2026, before options went: rows of older runs can be compared."""
    options = {"tagger": "bundled"} if world == "webshop" else {}
    assert find_item("environments", world)(**options).digest() == digest


class Half(State):
    """A class that leaves methods to its subclasses."""


class Whole(CorridorState):
    """Its scores are an array."""

    def scores(self) -> Any:
        return numpy.array([1.0])


def test_scores_may_be_an_array_and_unfinished_classes_may_have_other_bases():
    assert float(Whole(3, 0).scores()[0]) == 1.0
    with pytest.raises(UserError, match=r"the class Listed in .* has no methods anchor\(\), "):
        type("Listed", (Half, list), {"__module__": __name__})()
    finished = {name: CorridorState.__dict__.get(name) for name in Half.__abstractmethods__}
    listed: Any = type("Filled", (Half, list), {"__module__": __name__, **finished})
    assert listed([1, 2]) == [1, 2]
    bare: Any = type("Bare", (Half,), {"__module__": __name__, **finished})
    with pytest.raises(TypeError, match="takes no arguments"):
        bare(5)
