"""Opponents behave as docs/opponents.md says: styles, patterns, search, equilibrium."""

import asyncio
import random
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mage.config.errors import UserError
from mage.environments.base import State
from mage.environments.kuhn_poker import DEALS, KuhnPoker
from mage.environments.tic_tac_toe import TicTacToe
from mage.opponents.base import Opponent, Population, allocate, find, known
from mage.play.episode import apply_move
from tests.corridor import CorridorState

NAMES = ["random", "pattern-0", "pattern-5", "biased-centre-2", "biased-corner-0.5", "mcts-10"]


def kuhn_state(card: str, moves: tuple[str, ...]) -> State:
    """A state in which the seat to move holds this card after these moves."""
    mover = len(moves) % 2
    stratum = next(number for number, deal in enumerate(DEALS) if "JQK"[deal[mover]] == card)
    state = KuhnPoker().start(stratum)
    for move in moves:
        state.apply(move)
    return state


@pytest.mark.parametrize(
    ("style", "bets", "calls"),
    [("conservative", "K", "K"), ("aggressive", "JQK", "QK"), ("intermediate", "QK", "K")],
)
def test_kuhn_styles_do_what_the_method_page_says(style, bets, calls):
    for card in "JQK":
        for moves, willing in (
            ((), bets),
            (("pass",), bets),
            (("bet",), calls),
            (("pass", "bet"), calls),
        ):
            state = kuhn_state(card, moves)
            assert find(style).policy(state, len(moves) % 2) == {
                "bet" if card in willing else "pass": 1.0
            }


@pytest.mark.parametrize(("name", "cells"), [("pattern-2", "2468"), ("pattern-5", "9731")])
def test_patterns_take_the_first_empty_cell_of_their_list(name, cells):
    """01 10 12 21 and 22 20 02 00 as row and column."""
    state = TicTacToe().start(0)
    for cell in cells:
        assert find(name).act(state, state.turn() or 0, random.Random(0)) == cell
        state.apply(cell)


def test_biased_players_weigh_cells_by_distance():
    policy = find("biased-centre-1").policy(TicTacToe().start(0), 0)
    # weights 1, 1/2 and 1/(1 + sqrt 2) for centre, edge and corner
    assert policy["5"] / policy["2"] == pytest.approx(2)
    assert policy["5"] / policy["1"] == pytest.approx(1 + 2**0.5)
    assert sum(policy.values()) == pytest.approx(1)


def test_cfr_is_sampled_and_near_the_equilibrium():
    # Kuhn 1950, second player: Q calls a bet one time in three, K always bets or calls, and J
    # bluffs one time in three.
    cfr = find("cfr")
    assert cfr.policy(kuhn_state("Q", ("bet",)), 1)["bet"] == pytest.approx(1 / 3, abs=0.01)
    assert cfr.policy(kuhn_state("J", ("pass",)), 1)["bet"] == pytest.approx(1 / 3, abs=0.01)
    assert cfr.policy(kuhn_state("K", ("pass",)), 1).get("bet", 0) == pytest.approx(1, abs=0.01)
    drawn = Counter(cfr.act(kuhn_state("Q", ("bet",)), 1, random.Random(n)) for n in range(600))
    assert 140 < drawn["bet"] < 260


def test_more_search_plays_better():
    def losses(simulations: int) -> int:
        lost = 0
        for game in range(60):
            rng, state = random.Random(game), TicTacToe().start(0)
            while (seat := state.turn()) is not None:
                state.apply(
                    find(f"mcts-{simulations}").act(state, seat, rng)
                    if seat == game % 2
                    else rng.choice(state.legal())
                )
            lost += state.scores()[game % 2] < 0
        return lost

    assert losses(500) <= 1 < losses(2)


@pytest.mark.parametrize("name", NAMES)
def test_moves_are_legal_and_depend_on_state_and_seed_only(name):
    opponent = find(name)
    for seed in range(5):
        state, twin = TicTacToe().start(0), TicTacToe().start(0)
        rng = random.Random(seed)
        while (seat := state.turn()) is not None:
            move = opponent.act(state, seat, random.Random(seed))
            assert move in state.legal()
            assert move == opponent.act(twin, seat, random.Random(seed))
            step = rng.choice(state.legal())
            state.apply(step)
            twin.apply(step)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", "has no .nobody."),
        ("mcts-0", "greater than or equal"),
        ("pattern-9", "less than"),
        ("random-3", "takes 0"),
        ("no.such.Bot", "cannot be imported"),
        ("dirichlet-0", "greater than 0"),
        ("dirichlet--1", "valid number"),
        ("roshambo-nobody", "known programs"),
        ("dirichlet-1-2-3", "takes 2"),
    ],
)
def test_wrong_names_give_a_clear_message(name, message):
    with pytest.raises(ValueError, match=message):
        find(name)


def test_an_opponent_of_another_package_is_named_by_its_path():
    assert (
        find("mage.opponents.scripted.Pattern-3").act(TicTacToe().start(0), 0, random.Random(0))
        == "1"
    )
    assert {"mcts", "cfr", "random"} <= set(known())


@given(st.integers(1, 200), st.integers(0, 10**6))
def test_allocation_meets_every_share_to_within_one(count, seed):
    pool = {"a": 0.3, "b": 0.3, "c": 0.4}
    drawn = Counter(allocate(pool, count, seed))
    assert sum(drawn.values()) == count
    assert all(abs(drawn[name] - share * count) < 1 + 1e-6 for name, share in pool.items())


def test_pools_are_normalised_and_test_falls_back_to_train():
    population = Population(train={"random": 3, "cfr": 1})
    assert population.pool("train") == population.pool("test") == {"random": 0.75, "cfr": 0.25}
    assert population.pool("ood") == {}


class Wrong(Opponent):
    """It returns whatever it is told, where a contract asks for something else."""

    name: ClassVar[str] = "wrong"
    answer: Any = None

    def policy(self, state: State, seat: int) -> Any:
        return self.answer

    def think(self, state: State, seat: int, rng: random.Random) -> Any:
        return "pass"


class Mute(Wrong):
    def act(self, state: State, seat: int, rng: random.Random) -> Any:
        return self.answer


def test_wrong_return_types_of_an_own_opponent_are_one_line():
    state, rng = KuhnPoker().start(0), random.Random(0)
    with pytest.raises(
        UserError, match=r"test_opponents.py, line \d+: Wrong.policy\(\) returned 'p"
    ):
        Wrong(answer="pass").act(state, 0, rng)
    for empty in ({}, {"pass": 0.0}):
        with pytest.raises(UserError, match=r"the probability of every move, and one of them must"):
            Wrong(answer=empty).act(state, 0, rng)
    with pytest.raises(UserError, match=r"Mute.act\(\) returned 3 \(int\), but must return text"):
        Mute(answer=3).act(state, 0, rng)
    with pytest.raises(UserError, match=r"Wrong.think\(\) must be a coroutine: write `async def`"):
        asyncio.run(Wrong().think(state, 0, rng))


def test_an_illegal_move_of_an_opponent_is_one_line():
    with pytest.raises(UserError, match=r"opponent Wrong made the move 'fold', which is not legal"):
        apply_move(KuhnPoker().start(0), "fold", Wrong())


class BreaksAfterMove(CorridorState):
    """It removes the move from the legal ones, and fails then."""

    def legal(self) -> tuple[str, ...]:
        return () if self.place else ("left",)

    def apply(self, action: str) -> None:
        self.place = 1
        raise KeyError("a fault of the environment")


def test_an_error_of_the_environment_does_not_name_the_opponent():
    with pytest.raises(KeyError, match="a fault of the environment"):
        apply_move(BreaksAfterMove(3, 0), "left", Wrong())
