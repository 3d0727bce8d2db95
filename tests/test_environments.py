"""Golden play-throughs of all environments; OpenSpiel games: contract, results of OpenSpiel."""

import random
from pathlib import Path
from typing import Any, ClassVar

import pyspiel
import pytest
from pydantic import ValidationError

from mage.config.menus import find_item
from mage.environments.base import State, check, golden
from mage.environments.kuhn_poker import DEALS, KuhnPoker
from mage.environments.openspiel import OpenSpiel
from mage.environments.tic_tac_toe import TicTacToe

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
    assert "same seed and moves differ" in faults
    assert "below forfeit_score" in faults


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
