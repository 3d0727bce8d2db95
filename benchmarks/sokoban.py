"""Sokoban rooms a second compared with gym_sokoban, the published generator.

6x6 rooms with 2 boxes. A unit of work is a room AND the length of its shortest solution. Theirs:
`generate_room` (random walk and reverse play, as their environment calls it), then a breadth-first
search; every length counts. Ours: a room with a solution of 5 to 21 moves, and the distance of
EVERY state of the room. Both run in one process and one thread, alternating.

    compiled       compiled by numba, compile time not counted; the target of 500 is for this line
    plain          the same without numba
"""

import contextlib
import io
import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.measure import Comparison, Skipped, relate, take_turns
from mage.environments.sokoban import compiled
from mage.environments.sokoban.rooms import make_room

SIZE, BOXES, SHORTEST, LONGEST = 6, 2, 5, 21
WALK = int(1.7 * (SIZE + SIZE))  # steps with which their environment calls the generator
TARGET = 500.0
INSTALL = (
    "gym_sokoban or numba is not installed: .venv/bin/python -m pip install -c constraints.txt "
    "-e '.[dev,peers]' (or `make bench`); skipped"
)
Cell = tuple[int, int]
Found = tuple[Cell, frozenset[Cell]]


def is_installed() -> bool:
    return compiled.is_installed() and find_spec("gym_sokoban") is not None


def measure(
    ours: int = 5000, plain: int = 200, theirs: int = 100, rounds: int = 7
) -> Iterator[Comparison]:
    """Rooms a second. The arguments are rooms per round."""
    if not is_installed():
        raise Skipped(INSTALL)
    seeds, lengths = itertools.count(), list[int]()
    ways = (
        _each(ours, lambda: make_ours(next(seeds), fast=True)),
        _each(plain, lambda: make_ours(next(seeds), fast=False)),
        _each(theirs, lambda: lengths.append(search(make_theirs(next(seeds))))),
    )
    fast, slow, searched = take_turns(ways, rounds)
    inside = sum(SHORTEST <= length <= LONGEST for length in lengths) / len(lengths)
    told = (
        f"theirs: solutions of {sum(lengths) / len(lengths):.1f} moves on average, {inside:.0%} "
        f"within {SHORTEST} to {LONGEST}"
    )
    for case, mine in (("compiled", fast), ("plain", slow)):
        name = f"{SIZE}x{SIZE}, {BOXES} boxes: {case}"
        found = relate("sokoban", name, ("ours", "gym_sokoban"), "rooms", 1, mine, searched)
        yield replace(found, note=told, target=TARGET) if case == "compiled" else found


def _each(count: int, work: Callable[[], object]) -> Callable[[], float]:
    """Mean processor seconds of one unit of work over `count` units."""

    def way() -> float:
        began = time.process_time()
        for _ in range(count):
            work()
        return (time.process_time() - began) / count

    return way


def make_ours(seed: int, fast: bool) -> int:
    """Generate a room; returns the length of its solution."""
    room = make_room(SIZE, BOXES, (SHORTEST, LONGEST), seed, fast=fast)
    assert room is not None, "6x6 rooms with 2 boxes reach every length from 5 to 21"
    found = room.distance(room.player, room.boxes)
    assert found is not None, "a room that is made can be solved"
    return found


def make_theirs(seed: int) -> Any:
    """A room of gym_sokoban and its contents: (walls and targets, the rest)."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
    ):  # it asks, at length, to be replaced
        warnings.simplefilter("ignore")
        from gym_sokoban.envs.room_utils import generate_room

    random.seed(seed)
    np.random.seed(seed % 2**32)  # it draws from both
    while True:
        try:
            return generate_room(dim=(SIZE, SIZE), num_steps=WALK, num_boxes=BOXES)[:2]
        except (RuntimeWarning, RuntimeError):  # it gives up; the published environment repeats
            continue


def search(room: Any) -> int:
    """Length of the shortest solution by breadth-first search, as in the published environment."""
    fixed, standing = (grid.astype(int).tolist() for grid in room)
    squares = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    floor = frozenset(at for at in squares if fixed[at[0]][at[1]] != 0)
    targets = frozenset(at for at in squares if fixed[at[0]][at[1]] == 2)
    boxes = frozenset(at for at in squares if standing[at[0]][at[1]] in (3, 4))
    player = next(at for at in squares if standing[at[0]][at[1]] == 5)
    seen, layer = {(player, boxes)}, [(player, boxes)]
    for depth in itertools.count():
        if any(boxes == targets for _, boxes in layer) or not layer:
            return depth
        found = dict.fromkeys(state for before in layer for state in _next(before, floor))
        layer = [state for state in found if state not in seen]
        seen.update(layer)
    raise AssertionError("a search ends")


def _next(state: Found, floor: frozenset[Cell]) -> Iterator[Found]:
    (row, column), boxes = state
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if ahead in boxes:
            if beyond in floor and beyond not in boxes:
                yield ahead, boxes - {ahead} | {beyond}
        elif ahead in floor:
            yield ahead, boxes
