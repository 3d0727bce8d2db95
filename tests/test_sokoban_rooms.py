"""Sokoban rooms: distance tables against brute force, and exact solution lengths."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sokoban_oracle import all_states, search_all

from mage.environments.sokoban import Sokoban, compiled
from mage.environments.sokoban.levels import parse_level
from mage.environments.sokoban.rooms import fill_table, make_room

needs_numba = pytest.mark.skipif(
    not compiled.is_installed(), reason="numba is not installed: pip install 'mage[fast]'"
)
seeds = st.integers(0, 2**62)


@pytest.fixture(scope="module")
def one_process():
    """Tests with it run in one process, which compiles once."""


@given(seeds, st.sampled_from(((5, 1, 2), (5, 1, 6), (5, 2, 5))))
def test_the_distance_table_equals_brute_force(seed, order):
    size, boxes, moves = order
    room = make_room(size, boxes, (moves, moves), seed, fast=False)
    assert room is not None
    expected = search_all(room.draw(room.player, room.boxes))
    for player, some in all_states(room):
        places = [divmod(room.cells[cell], room.width) for cell in (player, *some)]
        assert room.distance(player, some) == expected.get((places[0], frozenset(places[1:])))


@pytest.mark.e2e
@needs_numba
@pytest.mark.usefixtures("one_process")
@given(seeds, st.integers(1, 3), st.integers(5, 15))
def test_compiled_and_plain_make_the_same_rooms_and_tables(seed, boxes, moves):
    plain, fast = (make_room(6, boxes, (moves, moves), seed, fast=fast) for fast in (False, True))
    assert plain is not None
    assert fast is not None
    assert plain == fast
    assert plain.distances is not None
    assert fast.distances is not None
    assert (
        plain.distances.tolist()
        == fast.distances.tolist()
        == fill_table(6, 6, plain.cells, plain.targets, fast=True).tolist()
    )


@pytest.mark.e2e
@needs_numba
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("seed", range(6))
def test_rooms_that_use_the_sign_bit_are_correct(seed):
    """The largest rooms, and one without inner walls: boxes and player use the sign bit."""
    plain, fast = (make_room(10, 1 + seed % 2, (20, 30), seed, fast=fast) for fast in (False, True))
    assert plain is not None
    assert plain == fast
    everywhere = [10 * row + column for row in range(1, 9) for column in range(1, 9)]
    tables = [
        fill_table(10, 10, everywhere, (seed, 63), fast=fast).tolist() for fast in (False, True)
    ]
    assert tables[0] == tables[1]


def test_a_room_wider_than_64_squares_has_the_table_of_brute_force():
    room = parse_level(
        f"{'#' * 20}\n#@{' ' * 9}$ "
        f".{' ' * 5}#\n#{' ' * 18}#\n#{' ' * 18}#\n#{' ' * 18}#\n{'#' * 20}"
    )
    expected = search_all(room.draw(room.player, room.boxes))
    for player, boxes in all_states(room):
        places = [divmod(room.cells[cell], room.width) for cell in (player, *boxes)]
        assert room.distance(player, boxes) == expected.get((places[0], frozenset(places[1:])))


@given(seeds, st.integers(1, 3))
def test_rooms_have_exactly_the_requested_solution_length(seed, boxes):
    world = Sokoban(boxes=boxes)
    room = world.room(seed)
    assert room.distance(room.player, room.boxes) == 5 + seed % 17
    assert len(room.boxes) == len(room.targets) == boxes
    assert not set(room.boxes) & set(room.targets)


def test_a_range_of_lengths_is_covered():
    found = [
        room.distance(room.player, room.boxes)
        for seed in range(60)
        if (room := make_room(6, 2, (5, 9), seed))
    ]
    assert set(found) == {5, 6, 7, 8, 9}


# --- Without numba, without a cache, without torch ------------------------------------------------


def test_rooms_are_made_without_numba(monkeypatch):
    monkeypatch.setattr(compiled, "is_installed", lambda: False)
    monkeypatch.setattr(compiled, "compile_all", lambda: pytest.fail("numba was asked for"))
    room = make_room(8, 2, (5, 9), 1)  # large enough to be compiled where numba is there
    assert room is not None


def test_functions_are_compiled_without_a_disk_cache():
    def njit(function: Any = None, cache: bool = False) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return function

    assert compiled._compile(lambda *a, **k: njit(*a, **k), len) is len
