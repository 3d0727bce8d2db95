"""MineSweeper: the contract, the numbers of the board, and what the next episode can know."""

import random
from itertools import product

import pytest
from pydantic import ValidationError

from mage.environments.base import check
from mage.environments.minesweeper import Minesweeper


def play(world, seed, moves):
    state = world.start(seed)
    for move in moves:
        state.apply(move)
    return state


@pytest.mark.parametrize("world", [Minesweeper(), Minesweeper(size=3, mines=2, max_turns=9)])
def test_the_board_keeps_the_contract(world):
    assert check(world, games=40) == []


def test_numbers_count_the_mines_around_and_empty_cells_open_their_neighbours():
    world = Minesweeper()
    for seed in range(30):
        state, rng = world.start(seed), random.Random(seed)
        while state.turn() is not None:
            state.apply(rng.choice(state.legal()))
        assert len(state.mines) == 3
        for row, line in enumerate(state.board().splitlines(), start=1):
            for column, sign in enumerate(line.split(), start=1):
                near = list(product(range(row - 1, row + 2), range(column - 1, column + 2)))
                mines = sum(cell in state.mines for cell in near if cell != (row, column))
                assert sign in ("?", "*") or int(sign.replace(".", "0")) == mines
                if sign == ".":
                    inside = [cell for cell in near if min(cell) > 0 and max(cell) < 7]
                    assert all(cell in state.shown for cell in inside)


def test_an_episode_is_won_when_all_free_cells_are_open():
    world = Minesweeper(size=3, mines=1, max_turns=9)
    free = [f"{r},{c}" for r, c in world.cells() if (r, c) not in world.laid(5)]
    state = world.start(5)
    for move in free:
        if state.turn() is not None and move in state.legal():
            state.apply(move)
    assert state.scores() == (1.0,)
    assert state.recap(0).endswith("You won.")


def test_a_mine_ends_the_episode_and_is_named_for_the_next_one():
    world = Minesweeper()
    mine = "{},{}".format(*min(world.laid(1)))
    state = play(world, 1, [mine])
    assert state.turn() is None
    assert state.scores() == (0.0,)
    assert f"{mine} is a mine." in state.recap(0)
    seeds = {world.episode_seed(9, k) for k in range(3)}
    assert len(seeds) == 1


def test_free_text_is_read_as_a_cell_and_bad_boards_are_refused():
    state = Minesweeper().start(0)
    assert [state.read(text) for text in ("(2, 3)", "2 3", "7,1", "2")] == [
        "2,3",
        "2,3",
        None,
        None,
    ]
    with pytest.raises(ValidationError, match="Choose at most 8"):
        Minesweeper(size=3, mines=9)
