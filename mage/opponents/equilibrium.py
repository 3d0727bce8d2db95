"""CFR: average policies of OpenSpiel's solvers, solved once per process.

`cfr` samples its moves. `cfr_argmax` always makes the most likely one, as the player of the
published code does: that is a pure strategy and not an equilibrium.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import pyspiel
from pydantic import Field

from mage.environments.base import Environment, State
from mage.environments.openspiel import OpenSpielState, load_game
from mage.opponents.base import Opponent, is_kind_of


@cache
def solve(game: str, iterations: int, plus: bool) -> Any:
    """The average policy after this number of iterations of CFR+, or of plain CFR."""
    kind = pyspiel.CFRPlusSolver if plus else pyspiel.CFRSolver
    solver = kind(load_game(game))
    for _ in range(iterations):
        solver.evaluate_and_update_policy()
    return solver.tabular_average_policy()


class CounterfactualRegret(Opponent):
    """The average policy of CFR+ on a small OpenSpiel game, sampled."""

    name: ClassVar[str] = "cfr"
    is_plus: ClassVar[bool] = True
    iterations: int = Field(500, ge=1)

    @classmethod
    def plays(cls, environment: Environment) -> bool:
        return is_kind_of(environment, "openspiel") and not is_kind_of(environment, "tic_tac_toe")

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        assert isinstance(state, OpenSpielState), "CFR needs an OpenSpiel game"
        average = solve(state.environment.spiel_game(), self.iterations, self.is_plus)
        chances = average.action_probabilities(state.spiel)
        return {state.word(action): chance for action, chance in chances.items() if chance > 0}


class CounterfactualRegretArgmax(CounterfactualRegret):
    """The most likely move of CFR's average policy on a small OpenSpiel game, as published."""

    name: ClassVar[str] = "cfr_argmax"
    is_plus: ClassVar[bool] = False
    iterations: int = Field(1000, ge=1)

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        chances = super().policy(state, seat)
        return {max(chances, key=lambda move: chances[move]): 1.0}
