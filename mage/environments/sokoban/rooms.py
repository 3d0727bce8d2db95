"""A room: its floor, its targets, where play starts, and (unless it is too large) the distance of every live state to the solution.

Rooms are made to order: exactly so many moves from solved. `Workshop` draws layouts until one has such a start; the seed decides everything.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from mage.environments.sokoban import compiled, kernels
from mage.seeds import derive

MOVES = ("up", "down", "left", "right")  # opposite moves are neighbours: move ^ 1
WALL, FLOOR, TARGET, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET = "#_OX*PS"
SHARES = 5  # rooms are dealt to splits by a mark of walls and targets: share 0 is held out
LARGEST_TABLE = 300_000  # states; 8x8 with 3 boxes has 257,040
MOST_BOXES = 4
_PAYS = 20_000  # states from which a compiled table is worth the wait for the compiler
_TRIES = 2_000  # layouts drawn for one difficulty before it counts as out of reach

Boxes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """Cells are the floor squares in reading order. `distances` has an entry per state key (`kernels.py`), -1 where it cannot be solved."""

    height: int
    width: int
    cells: tuple[int, ...]
    beside: tuple[int, ...]
    targets: Boxes
    player: int
    boxes: Boxes
    distances: "np.ndarray[Any, Any] | None" = field(default=None, compare=False, repr=False)

    def distance(self, player: int, boxes: Boxes) -> int | None:
        """Moves to the solution, None where there is none any more. One look into the table."""
        assert self.distances is not None, "only a room with a table knows distances"
        found = self.distances[_rank(boxes) * len(self.cells) + player]
        return None if found < 0 else int(found)

    def step(self, player: int, boxes: Boxes, move: int) -> tuple[int, Boxes]:
        """Player and boxes after a move; unchanged where a wall or a box that cannot move is in the way."""
        ahead = self.beside[4 * player + move]
        if ahead < 0 or ahead not in boxes:
            return (player if ahead < 0 else ahead), boxes
        beyond = self.beside[4 * ahead + move]
        if beyond < 0 or beyond in boxes:
            return player, boxes
        return ahead, tuple(sorted(beyond if box == ahead else box for box in boxes))

    def best_move(self, player: int, boxes: Boxes) -> int | None:
        """The first move that comes one nearer to the solution; None if it is reached or out of reach."""
        now = self.distance(player, boxes)
        return next((move for move in range(4) if now and self.distance(*self.step(player, boxes, move)) == now - 1), None)

    def draw(self, player: int, boxes: Boxes) -> str:
        """The room as text, a line a row, symbols apart."""
        at = {square: cell for cell, square in enumerate(self.cells)}
        rows = (range(row * self.width, (row + 1) * self.width) for row in range(self.height))
        return "\n".join(" ".join(self._symbol(at.get(square), player, boxes) for square in row) for row in rows)

    def _symbol(self, cell: int | None, player: int, boxes: Boxes) -> str:
        if cell is None:
            return WALL
        wanted = cell in self.targets
        if cell == player:
            return PLAYER_ON_TARGET if wanted else PLAYER
        if cell in boxes:
            return BOX_ON_TARGET if wanted else BOX
        return TARGET if wanted else FLOOR

    def place(self, cell: int) -> str:
        """Where a cell is, in words."""
        row, column = divmod(self.cells[cell], self.width)
        return f"row {row + 1}, column {column + 1}"


def _rank(boxes: Boxes) -> int:
    return sum(math.comb(box, i + 1) for i, box in enumerate(boxes))


def count_states(cells: int, boxes: int) -> int:
    """How many entries the table of a room with so much floor has."""
    return cells * math.comb(cells, boxes)


# --- Rooms to order -------------------------------------------------------------------------------------------------


def make_room(size: int, boxes: int, moves: tuple[int, int], seed: int, shares: tuple[int, int] = (0, SHARES), fast: bool | None = None) -> Room | None:
    """A room whose shortest solution takes so many moves (fewest, most), with no box on a target; None where no layout drawn has such a start.

    `shares` bounds which rooms count. `fast` asks for compiled or plain work; by default large rooms are compiled where numba is installed.
    """
    if fast is None:
        fast = count_states((size - 2) ** 2, boxes) > _PAYS and compiled.is_installed()
    return _workshop(size, boxes, fast).make(moves, seed, shares)


@lru_cache(maxsize=16)
def _workshop(size: int, boxes: int, fast: bool) -> "Workshop":
    return Workshop(size, boxes, fast)


class Workshop:
    """The sequences that `kernels.make` fills, for rooms of one size and number of boxes; they are reused from room to room."""

    def __init__(self, size: int, boxes: int, fast: bool) -> None:
        self.size, self.boxes, self.fast = size, boxes, fast
        inside = (size - 2) ** 2
        states = count_states(inside, boxes)
        lengths = (2, size * size, inside, 4 * inside, 8, 4 * (inside + 1), states, states * (boxes + 2), states + 2, inside, 16)
        self.ends = (0, *itertools.accumulate(lengths))
        self.space = np.zeros(self.ends[-1] if fast else 0, np.int64)
        self.parts: list[Any] = [self.space[a:b] if fast else [0] * (b - a) for a, b in itertools.pairwise(self.ends)]
        _, self.grid, self.cells, self.beside, self.targets, choose, self.table, self.queue, *_ = self.parts
        choose[:] = binomials(inside)

    def make(self, moves: tuple[int, int], seed: int, shares: tuple[int, int]) -> Room | None:
        luck = derive(seed, "sokoban", self.size, self.boxes, *moves)
        self.parts[0][:] = (1 + luck % 2147483562, 1 + luck // 2147483562 % 2147483398)
        order = (self.size, self.boxes, *moves, SHARES, *shares, _TRIES)
        floor, start = compiled.compile_all()[0](self.space, self.ends, *order) if self.fast else kernels.make(*order, *self.parts)
        return None if start < 0 else self._take(floor, start)

    def _take(self, floor: int, start: int) -> Room:
        """A copy of what the sequences hold now."""
        wide, inside = self.boxes + 2, len(self.cells)
        player, _, *boxes = _listed(self.queue[start * wide : (start + 1) * wide])
        shape = _listed(self.space[self.ends[2] : self.ends[5]]) if self.fast else [*self.cells, *self.beside, *self.targets]
        cells, beside, targets = shape[:floor], shape[inside : inside + 4 * floor], shape[5 * inside : 5 * inside + self.boxes]
        table = np.array(self.table[: count_states(floor, self.boxes)], np.int16)
        return Room(self.size, self.size, tuple(cells), tuple(beside), tuple(targets), player, tuple(boxes), table)


def _listed(part: Any) -> list[int]:
    return part if isinstance(part, list) else part.tolist()  # type: ignore[no-any-return]


def binomials(most: int) -> list[int]:
    """n over 1 to 4 for n up to `most`, in one row, as the kernels want them."""
    return [math.comb(n, i + 1) for n in range(most + 1) for i in range(MOST_BOXES)]


# --- Rooms from elsewhere -------------------------------------------------------------------------------------------


def build_room(height: int, width: int, floor: Iterable[int], targets: Iterable[int], player: int, boxes: Iterable[int]) -> Room:
    """A room from its squares; with a table unless that would be too large."""
    squares = set(floor)
    grid, cells, beside = [int(square in squares) for square in range(height * width)], [0] * len(squares), [0] * (4 * len(squares))
    kernels.connect(grid, height, width, cells, beside)
    goals, crates = (tuple(sorted(grid[square] for square in some)) for some in (targets, boxes))
    small = len(crates) <= MOST_BOXES and count_states(len(cells), len(crates)) <= LARGEST_TABLE
    table = fill_table(beside, len(cells), goals) if small else None
    return Room(height, width, tuple(cells), tuple(beside), goals, grid[player], crates, table)


def fill_table(beside: Sequence[int], cells: int, targets: Boxes, fast: bool | None = None) -> "np.ndarray[Any, Any]":
    """The distance of every state of a room, as `Room.distances` wants it."""
    boxes, states = len(targets), count_states(cells, len(targets))
    if fast is None:
        fast = states > _PAYS and compiled.is_installed()
    sequences: list[Any] = [beside, targets, binomials(cells), [-1] * states, [0] * (states * (boxes + 2)), [0] * (states + 2), [0] * cells, [0] * 16]
    if fast:
        sequences = [np.array(one, np.int64) for one in sequences]
    sides, goals, choose, table, *rest = sequences
    (compiled.compile_all()[1] if fast else kernels.fill)(sides, cells, goals, boxes, choose, table, *rest)
    return np.array(table, np.int16)
