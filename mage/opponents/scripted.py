"""Scripted players: pattern, biased and random players of Tic-Tac-Toe; three Kuhn poker styles.

A pattern player takes the first empty cell of its list; it does not look for wins or blocks.
docs/opponents.md describes all of them.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from mage.environments.base import State
from mage.opponents.base import Opponent

# Cells as row and column from 0; pattern-0 .. pattern-5.
PATTERNS = tuple(
    tuple(str(3 * int(cell[0]) + int(cell[1]) + 1) for cell in line.split())
    for line in (
        "11 00 02 20 22 01 10 12 21",
        "00 02 20 22 11 01 10 12 21",
        "01 10 12 21 11 00 02 20 22",
        "00 11 22 02 20 01 10 12 21",
        "02 11 20 00 22 01 10 12 21",
        "22 20 02 00 11 21 12 10 01",
    )
)


class UniformRandom(Opponent):
    """Uniform over the legal moves; plays every environment."""

    name: ClassVar[str] = "random"

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        legal = state.legal()
        return dict.fromkeys(legal, 1 / len(legal))


class Pattern(Opponent):
    """The first empty cell of one of six lists."""

    name: ClassVar[str] = "pattern"
    plays_only: ClassVar[str] = "tic_tac_toe"
    number: int = Field(0, ge=0, lt=len(PATTERNS))

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        legal = state.legal()
        return {next(cell for cell in PATTERNS[self.number] if cell in legal): 1.0}


class Biased(Opponent):
    """Random with weight (1 / (1 + d)) ** alpha; d is the distance to centre or nearest corner."""

    name: ClassVar[str] = "biased"
    plays_only: ClassVar[str] = "tic_tac_toe"
    towards: Literal["centre", "corner"] = "centre"
    alpha: float = Field(2.0, ge=0)

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        weights = {
            cell: (1 / (1 + self._distance(int(cell) - 1))) ** self.alpha for cell in state.legal()
        }
        total = sum(weights.values())
        return {cell: weight / total for cell, weight in weights.items()}

    def _distance(self, cell: int) -> float:
        places = [(1, 1)] if self.towards == "centre" else [(0, 0), (0, 2), (2, 0), (2, 2)]
        return min(math.dist(divmod(cell, 3), place) for place in places)


class _KuhnStyle(Opponent):
    """A pure strategy of Kuhn poker: the cards it bets with, and the cards it calls a bet with."""

    plays_only: ClassVar[str] = "kuhn_poker"

    bets: ClassVar[str]
    calls: ClassVar[str]

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        card, _, moves = state.anchor(seat).partition(" ")
        willing = self.calls if moves.endswith("bet") else self.bets
        return {"bet" if card in willing else "pass": 1.0}


class Conservative(_KuhnStyle):
    """Bets and calls with K only."""

    name: ClassVar[str] = "conservative"
    bets: ClassVar[str] = "K"
    calls: ClassVar[str] = "K"


class Aggressive(_KuhnStyle):
    """Always bets; facing a bet it folds J and calls with Q and K."""

    name: ClassVar[str] = "aggressive"
    bets: ClassVar[str] = "JQK"
    calls: ClassVar[str] = "QK"


class Intermediate(_KuhnStyle):
    """Bets and calls with K, passes and folds with J; Q bets first and folds to a bet."""

    name: ClassVar[str] = "intermediate"
    bets: ClassVar[str] = "QK"
    calls: ClassVar[str] = "K"
