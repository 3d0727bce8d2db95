"""MineSweeper in the size of LaMer's table: 6 x 6 cells, 3 mines, 7 turns, the same board again.

A move opens one cell, written as row,column. A cell shows the number of mines around it; around a
cell with none, all cells open too. The episode is won when all cells without a mine are open, and
lost at a mine or when the turns run out. The mines are fixed by the task, also for the first move,
so a mine that was hit in one episode is known in the next.
"""

import random
import re
from collections.abc import Hashable, Iterator
from typing import ClassVar

from pydantic import Field, model_validator

from mage.config.errors import UserError
from mage.environments.base import SingleAgentEnvironment, State, turn_limit

Cell = tuple[int, int]  # row and column, from 1 on
CLOSED, MINE, NONE = "?", "*", "."


class MinesweeperState(State):
    """One episode. `opened` are the cells of the moves, `shown` all open cells."""

    def __init__(self, environment: "Minesweeper", mines: frozenset[Cell]) -> None:
        self.environment, self.mines = environment, mines
        self.opened: list[Cell] = []
        self.shown: set[Cell] = set()

    def turn(self) -> int | None:
        over = self.hit or self.won or len(self.opened) >= self.environment.max_turns
        return None if over else 0

    @property
    def hit(self) -> bool:
        return bool(self.opened) and self.opened[-1] in self.mines

    @property
    def won(self) -> bool:
        return len(self.shown - self.mines) == self.environment.size**2 - len(self.mines)

    def legal(self) -> tuple[str, ...]:
        return tuple(_name(cell) for cell in self.environment.cells() if cell not in self.shown)

    def read(self, written: str) -> str | None:
        """Accepts `(2, 3)` and `2 3` for `2,3`."""
        numbers = re.findall(r"\d+", written)
        name = ",".join(numbers)
        return name if len(numbers) == 2 and name in self.legal() else None

    def apply(self, action: str) -> None:
        row, column = map(int, action.split(","))
        self.opened.append((row, column))
        waiting = [(row, column)]
        while waiting:
            cell = waiting.pop()
            if cell in self.shown:
                continue
            self.shown.add(cell)
            if cell not in self.mines and not self._mines_around(cell):
                waiting += self.environment.around(cell)

    def _mines_around(self, cell: Cell) -> int:
        return sum(other in self.mines for other in self.environment.around(cell))

    def _sign(self, cell: Cell) -> str:
        if cell not in self.shown:
            return CLOSED
        return MINE if cell in self.mines else str(self._mines_around(cell) or NONE)

    def board(self) -> str:
        side = range(1, self.environment.size + 1)
        return "\n".join(" ".join(self._sign((row, column)) for column in side) for row in side)

    def observe(self, seat: int) -> str:
        last = f"You opened {_name(self.opened[-1])}.\n" if self.opened else ""
        left = self.environment.max_turns - len(self.opened)
        return f"{last}{self.board()}\nTurns left: {left}."

    def anchor(self, seat: int) -> str:
        return self.board().replace(" ", "")

    def scores(self) -> tuple[float, ...]:
        return (float(self.won and not self.hit),)

    def recap(self, seat: int) -> str:
        moves = "; ".join(map(_name, self.opened)) or "none"
        end = "You won." if self.scores()[0] else "You lost."
        mine = f" {_name(self.opened[-1])} is a mine." if self.hit else ""
        return f"Cells opened: {moves}.{mine} The board then:\n{self.board()}\n{end}"


class Minesweeper(SingleAgentEnvironment):
    """Open all cells without a mine; the same board in all episodes (LaMer's sizes)."""

    name: ClassVar[str] = "minesweeper"

    size: int = Field(6, ge=2, le=20, description="rows and columns of the board")
    mines: int = Field(3, ge=1, description="number of mines")
    max_turns: int = turn_limit(7)

    @model_validator(mode="after")
    def _has_safe_cells(self) -> "Minesweeper":
        if self.mines >= self.size**2:
            raise UserError(
                f"mines = {self.mines} leaves no free cell on {self.size} x {self.size} cells. "
                f"Choose at most {self.size**2 - 1}"
            )
        return self

    def start(self, seed: int) -> MinesweeperState:
        return MinesweeperState(self, self.laid(seed))

    def laid(self, seed: int) -> frozenset[Cell]:
        """The cells with a mine."""
        return frozenset(random.Random(seed).sample(list(self.cells()), self.mines))

    def cells(self) -> Iterator[Cell]:
        side = range(1, self.size + 1)
        return ((row, column) for row in side for column in side)

    def around(self, cell: Cell) -> Iterator[Cell]:
        """The neighbours of a cell, up to eight."""
        near = (-1, 0, 1)
        cells = ((cell[0] + down, cell[1] + right) for down in near for right in near)
        side = range(1, self.size + 1)
        return (one for one in cells if one != cell and one[0] in side and one[1] in side)

    def instance_key(self, seed: int) -> Hashable:
        return self.laid(seed)

    def rules(self) -> str:
        return (
            f"The board has {self.size} rows and {self.size} columns, and {self.mines} cells have "
            f"a mine. ? is a closed cell, a number says how many of the cells around it have a "
            f"mine, . is an open cell with none around it. Open all cells without a mine in at "
            f"most {self.max_turns} turns. A cell is written row,column."
        )

    def instance(self, seat: int) -> str:
        same = self.restart == "same"
        return "The mines are the same in every game." if same else "Every game has a new board."

    def example_action(self) -> str:
        return "2,1"


def _name(cell: Cell) -> str:
    return f"{cell[0]},{cell[1]}"
