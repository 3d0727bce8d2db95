"""Tic-Tac-Toe as text. The board shows the number of every empty cell; a move is such a number.

1 X 3
4 O 6
7 8 9
"""

from typing import ClassVar, Literal

from pydantic import Field

from mage.environments.openspiel import OpenSpiel, OpenSpielState

_RULES = (
    "You play Tic-Tac-Toe against one opponent. The board has nine cells, numbered 1 to 9 "
    "row by row; an empty cell shows its number. "
    "X moves first. Three of your own marks in a row, a column or a diagonal win; "
    "a full board without that is a draw."
)
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
        return self._board()

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
            mark if mark != "." else str(number + 1) for number, mark in enumerate(self._board())
        ]
        return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))

    def _board(self) -> str:
        return str(self.spiel).replace("\n", "").upper()


class TicTacToe(OpenSpiel):
    name: ClassVar[str] = "tic_tac_toe"
    game: Literal["tic_tac_toe"] = Field("tic_tac_toe", description="OpenSpiel's name of the game")
    max_turns: int = Field(
        8, ge=1, description="replies the agent may give in one episode, illegal ones included"
    )

    def start(self, seed: int) -> TicTacToeState:
        return TicTacToeState(self, seed)

    def rules(self) -> str:
        return _RULES

    def instance(self, seat: int) -> str:
        return "You are X and move first." if seat == 0 else "You are O and move second."

    def example_action(self) -> str:
        return "5"
