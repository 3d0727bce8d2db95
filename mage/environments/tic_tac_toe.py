"""Tic-Tac-Toe as text. The board shows the number of every empty cell; a move is such a number.

1 X 3
4 O 6
7 8 9
"""

import re
from typing import ClassVar, Literal

from pydantic import Field

from mage.environments.base import State, Wording, turn_limit
from mage.environments.openspiel import OpenSpiel, OpenSpielState

_RULES = (
    "You play Tic-Tac-Toe against one opponent. The board has nine cells, numbered 1 to 9 "
    "row by row; an empty cell shows its number. "
    "X moves first. Three of your own marks in a row, a column or a diagonal win; "
    "a full board without that is a draw."
)
_TASK = """You are an expert at Tic-Tac-Toe. The board has 3 rows and 3 columns; both are numbered \
from 1 to 3.

Cells:
. is free
X belongs to player X
O belongs to player O

Rules:
- A move puts your mark on a free cell. A cell is named (row,column).
- On an empty board all cells are free: (1,1), (1,2), (1,3), (2,1), (2,2), (2,3), (3,1), (3,2), \
(3,3). Later you can take only a cell that still shows a dot.
- Three marks of one player in a line win. Lines are the rows, such as (2,1), (2,2), (2,3); the \
columns, such as (1,3), (2,3), (3,3); and the diagonals (1,1), (2,2), (3,3) and (1,3), (2,2), (3,1).
- A full board without such a line is a draw. Until then the game goes on.

Goal: win, or keep the opponent from winning. You are X, the opponent is O."""
_ANSWER = (
    "The turns list your own moves only; the opponent's moves appear in the boards. A cell with O "
    "is the opponent's: you cannot take it, and it is no part of a line of yours.\n"
    "It is your move. First think step by step about the board, its threats and its chances. "
    "Then choose one free cell and write it as (row,column) between <action> and </action>."
)
_CELL = re.compile(r"\(\s*([1-3])\s*,\s*([1-3])\s*\)")
_RESULT = {"won": "You won.", "lost": "You lost.", "drawn": "It was a draw."}


class TicTacToeState(OpenSpielState):
    """Cells are 1..9 in reading order; OpenSpiel counts them from 0."""

    def word(self, action: int) -> str:
        return str(action + 1)

    def number(self, word: str) -> int:
        return int(word) - 1

    def observe(self, seat: int) -> str:
        return f"{self._view(seat)}\nFree: {' '.join(self.legal())}."

    def anchor(self, seat: int) -> str:
        return self.board()

    def recap(self, seat: int) -> str:
        cells = {
            mover: " ".join(cell for who, cell in self.moves if who == mover) or "none"
            for mover in (0, 1)
        }
        result = _RESULT[self.environment.outcome(self.scores()[seat])]
        return (
            f"Your cells in order: {cells[seat]}. "
            f"Opponent's cells in order: {cells[1 - seat]}. {result}"
        )

    def _view(self, seat: int) -> str:
        cells = [
            mark if mark != "." else str(number + 1) for number, mark in enumerate(self.board())
        ]
        return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))

    def board(self) -> str:
        """The nine cells in reading order, a dot for an empty one."""
        return str(self.spiel).replace("\n", "").upper()


class TicTacToeWording(Wording):
    """Cells are (row,column), and the agent is always X."""

    boards: ClassVar[int | None] = 2
    reviewed: ClassVar[int | None] = 7

    def task(self, seat: int) -> str:
        return _TASK

    def view(self, state: State, seat: int) -> str:
        assert isinstance(state, TicTacToeState)
        marks = state.board()
        if seat == 1:
            marks = marks.translate(str.maketrans("XO", "OX"))
        return "\n".join(" ".join(marks[row : row + 3]) for row in (0, 3, 6))

    def answer(self) -> str:
        return _ANSWER

    def word(self, action: str) -> str:
        row, column = divmod(int(action) - 1, 3)
        return f"({row + 1},{column + 1})"

    def read(self, state: State, written: str) -> str | None:
        found = _CELL.search(written)
        cell = found and str(3 * int(found[1]) + int(found[2]) - 3)
        return cell if cell in state.legal() else None


class TicTacToe(OpenSpiel):
    name: ClassVar[str] = "tic_tac_toe"
    game: Literal["tic_tac_toe"] = Field("tic_tac_toe", description="OpenSpiel's name of the game")
    max_turns: int = turn_limit(8)

    def start(self, seed: int) -> TicTacToeState:
        return TicTacToeState(self, seed)

    def rules(self) -> str:
        return _RULES

    def wording(self) -> TicTacToeWording:
        return TicTacToeWording(self)

    def instance(self, seat: int) -> str:
        return "You are X and move first." if seat == 0 else "You are O and move second."

    def example_action(self) -> str:
        return "5"
