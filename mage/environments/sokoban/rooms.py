"""Rooms: floor, targets, start state and the distance of every state to the solution.

Rooms are generated with an exact solution length: layouts are drawn until one has a suitable start
state. The seed determines the room. Rooms that are too large have no distances.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from mage.config.errors import UserError
from mage.environments.sokoban import compiled, kernels
from mage.seeds import derive

MOVES = ("up", "down", "left", "right")  # the opposite of a move is move ^ 1
WALL, FLOOR, TARGET, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET = "#_OX*PS"
SHARES = 5  # a hash of walls and targets assigns a room to a share; share 0 is held out
LARGEST_TABLE = 300_000  # states; 8x8 with 3 boxes has 257,040
MOST_BOXES = 4
_ONE_TO_FOUR = (1, 2, 3, 4)
_PAYS = 20_000  # number of states from which compilation is worth its time
_MOST_BITS = 64  # limit on inner squares of a compiled table
_TRIES = 2_000  # layouts drawn before a solution length counts as impossible

Boxes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """One room. Cells are the floor squares in reading order.

    `distances` has one entry per state key (see `kernels.py`), -1 for states that cannot be solved.
    """

    height: int
    width: int
    cells: tuple[int, ...]
    beside: tuple[int, ...]
    targets: Boxes
    player: int
    boxes: Boxes
    distances: "np.ndarray[Any, Any] | None" = field(default=None, compare=False, repr=False)

    def distance(self, player: int, boxes: Boxes) -> int | None:
        """Moves to the solution by table lookup; None if the state cannot be solved."""
        assert self.distances is not None, "only a room with a table knows distances"
        found = self.distances[_rank(boxes) * len(self.cells) + player]
        return None if found < 0 else int(found)

    def step(self, player: int, boxes: Boxes, move: int) -> tuple[int, Boxes]:
        """Player and boxes after a move; unchanged if a wall or a stuck box blocks it."""
        ahead = self.beside[4 * player + move]
        if ahead < 0 or ahead not in boxes:
            return (player if ahead < 0 else ahead), boxes
        beyond = self.beside[4 * ahead + move]
        if beyond < 0 or beyond in boxes:
            return player, boxes
        return ahead, tuple(sorted(beyond if box == ahead else box for box in boxes))

    def best_move(self, player: int, boxes: Boxes) -> int | None:
        """The first move that reduces the distance; None if solved or not solvable."""
        now = self.distance(player, boxes)
        return next(
            (
                move
                for move in range(4)
                if now and self.distance(*self.step(player, boxes, move)) == now - 1
            ),
            None,
        )

    def draw(self, player: int, boxes: Boxes) -> str:
        """The room as text, one line per row, symbols separated by spaces."""
        shown, width = [WALL] * (self.height * self.width), self.width
        for square in self.cells:
            shown[square] = FLOOR
        for cell in self.targets:
            shown[self.cells[cell]] = TARGET
        for cell in boxes:
            shown[self.cells[cell]] = BOX_ON_TARGET if cell in self.targets else BOX
        shown[self.cells[player]] = PLAYER_ON_TARGET if player in self.targets else PLAYER
        return "\n".join(
            " ".join(shown[start : start + width]) for start in range(0, len(shown), width)
        )

    def direction(self, start: int, end: int) -> str:
        """Distance and direction of another cell: "2 right 1 up", or "here"."""
        (row, column), (other_row, other_column) = (
            divmod(self.cells[cell], self.width) for cell in (start, end)
        )
        across, along = other_column - column, other_row - row
        steps = [f"{abs(across)} {'right' if across > 0 else 'left'}"] if across else []
        steps += [f"{abs(along)} {'down' if along > 0 else 'up'}"] if along else []
        return " ".join(steps) or "here"

    def place(self, cell: int) -> str:
        """The position of a cell in words."""
        row, column = divmod(self.cells[cell], self.width)
        return f"row {row + 1}, column {column + 1}"


def _rank(boxes: Boxes) -> int:
    return sum(map(math.comb, boxes, _ONE_TO_FOUR))


def count_states(cells: int, boxes: int) -> int:
    """Number of table entries for a room with so many floor cells."""
    return cells * math.comb(cells, boxes)


# --- Generated rooms ------------------------------------------------------------------------------


def make_room(
    size: int,
    boxes: int,
    moves: tuple[int, int],
    seed: int,
    shares: tuple[int, int] = (0, SHARES),
    fast: bool | None = None,
) -> Room | None:
    """A room whose shortest solution has a length in `moves` (fewest, most).

    No box starts on a target. Returns None if no drawn layout has such a start state. `shares`
    selects the accepted rooms (see `kernels.mark`). `fast` selects compiled or plain functions; by
    default large rooms are compiled where numba is installed.
    """
    if fast is None:
        fast = count_states((size - 2) ** 2, boxes) > _PAYS and compiled.is_installed()
    desk, luck = _desk(size, boxes, fast), derive(seed, "sokoban", size, boxes, *moves)
    cells, player = desk.make(size, boxes, *moves, SHARES, *shares, _TRIES, luck)
    if not cells:
        return None
    squares, beside, targets, crates = desk.shape(cells)
    return Room(size, size, squares, beside, targets, player, crates, desk.table(cells))


@lru_cache(maxsize=1024)
def nearest_room(
    size: int, boxes: int, shortest: int, longest: int, moves: int, seed: int, part: str
) -> Room:
    """The room of this seed with a solution of `moves` moves.

    If there is none, take the longest below `moves`, else the shortest above, within the range.
    """
    shares = {"all": (0, SHARES), "train": (1, SHARES), "test": (0, 1)}[part]
    for wanted in (*range(moves, shortest - 1, -1), *range(moves + 1, longest + 1)):
        room = make_room(size, boxes, (wanted, wanted), seed, shares)
        if room is not None:
            return room
    raise UserError(
        f"no {size}x{size} room with {boxes} box{'es' if boxes > 1 else ''} was found whose "
        f"solution takes {shortest} to {longest} moves; change environments.size, boxes, "
        "shortest or longest"
    )


@lru_cache(maxsize=16)
def _desk(size: int, boxes: int, fast: bool) -> "Desk":
    return Desk(size * size, (size - 2) ** 2, boxes, fast)


class Desk:
    """The working memory of the kernels: lists, or slices of one array if compiled."""

    def __init__(self, squares: int, floor: int, boxes: int, fast: bool) -> None:
        self.floor, self.boxes, self.fast = floor, boxes, fast
        sets, states = math.comb(floor, boxes), count_states(floor, boxes)
        lengths = (
            2, squares, floor, 4 * floor, boxes, boxes, 4 * (floor + 1), floor, kernels.PRIME,
            kernels.FIELDS * sets, 2 * states, states + 2, states // 4 + 1 if fast else states,
        )  # fmt: skip
        self.ends = tuple(itertools.accumulate(lengths, initial=kernels.PIECES + 1))
        self.array = np.zeros(self.ends[-1] if fast else kernels.PIECES + 1, np.int64)
        self.array[: kernels.PIECES + 1] = self.ends
        self.space = (
            kernels.cut(self.array)
            if fast
            else kernels.Space(*([0] * length for length in lengths))
        )
        self.space.choose[:] = binomials(floor)

    def make(self, *order: int) -> tuple[int, int]:
        if not self.fast:
            return kernels.make(self.space, *order)
        found: tuple[int, int] = compiled.compile_all()[0](self.array, *order)
        return found

    def fill(self, height: int, width: int) -> None:
        if self.fast:
            compiled.compile_all()[1](self.array, height, width, self.boxes)
        else:
            kernels.fill(self.space, height, width, self.boxes)

    def shape(self, cells: int) -> tuple[tuple[int, ...], tuple[int, ...], Boxes, Boxes]:
        """Squares of the cells, their neighbours, the targets, and the boxes at the start."""
        if not self.fast:
            return (
                tuple(self.space.cells[:cells]),
                tuple(self.space.beside[: 4 * cells]),
                tuple(self.space.targets),
                tuple(self.space.boxes),
            )
        found, floor = tuple(self.array[self.ends[2] : self.ends[6]].tolist()), self.floor
        return (
            found[:cells],
            found[floor : floor + 4 * cells],
            found[5 * floor : -self.boxes],
            found[-self.boxes :],
        )

    def table(self, cells: int) -> "np.ndarray[Any, Any]":
        return np.array(self.space.table[: count_states(cells, self.boxes)], np.int16)


def binomials(most: int) -> list[int]:
    """n over 1 to 4 for n up to `most`, as one flat list."""
    return [math.comb(n, i + 1) for n in range(most + 1) for i in range(MOST_BOXES)]


# --- Rooms from level files -----------------------------------------------------------------------


def build_room(
    height: int,
    width: int,
    floor: Iterable[int],
    targets: Iterable[int],
    player: int,
    boxes: Iterable[int],
) -> Room:
    """A room from its squares, with a distance table unless that would be too large."""
    squares = sorted(floor)
    cell = {square: number for number, square in enumerate(squares)}
    goals, crates = (tuple(sorted(cell[square] for square in some)) for some in (targets, boxes))
    small = len(crates) <= MOST_BOXES and count_states(len(squares), len(crates)) <= LARGEST_TABLE
    beside = tuple(
        cell.get(square + step, -1) for square in squares for step in (-width, width, -1, 1)
    )
    table = fill_table(height, width, squares, goals) if small else None
    return Room(height, width, tuple(squares), beside, goals, cell[player], crates, table)


def fill_table(
    height: int, width: int, cells: Sequence[int], targets: Boxes, fast: bool | None = None
) -> "np.ndarray[Any, Any]":
    """The distance of every state of a room, for `Room.distances`."""
    if fast is None:
        fast = (
            count_states(len(cells), len(targets)) > _PAYS
            and (height - 2) * (width - 2) <= _MOST_BITS
            and compiled.is_installed()
        )
    desk = Desk(height * width, len(cells), len(targets), fast)
    desk.space.targets[:] = targets
    for square in cells:
        desk.space.grid[square] = 1
    desk.fill(height, width)
    return desk.table(len(cells))
