"""Lefty: takes from the leftmost heap, one counter or all of them."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from mage.environments.base import Environment, State
from mage.opponents.base import Opponent
from my_lab.nim import Nim


class Lefty(Opponent):
    name: ClassVar[str] = "lefty"
    greed: float = Field(0.5, ge=0, le=1, description="probability to take the whole heap")

    @classmethod
    def plays(cls, environment: Environment) -> bool:
        return isinstance(environment, Nim)

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        heap = state.legal()[0][0]
        moves = [move for move in state.legal() if move[0] == heap]
        if len(moves) == 1:
            return {moves[0]: 1.0}
        return {moves[0]: 1 - self.greed, moves[-1]: self.greed}
