"""CFR: OpenSpiel's CFR+ average policy, solved once a process and SAMPLED (its argmax is not the equilibrium)."""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import pyspiel
from pydantic import Field

from mage.environments.base import State
from mage.environments.openspiel import OpenSpielState, load_game
from mage.opponents.base import Opponent


@cache
def solve(game: str, iterations: int) -> Any:
    """The average policy after so many CFR+ iterations."""
    solver = pyspiel.CFRPlusSolver(load_game(game))
    for _ in range(iterations):
        solver.evaluate_and_update_policy()
    return solver.tabular_average_policy()


class CounterfactualRegret(Opponent):
    name: ClassVar[str] = "cfr"
    plays: ClassVar[tuple[str, ...] | None] = ("kuhn_poker", "openspiel")
    iterations: int = Field(500, ge=1)

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        assert isinstance(state, OpenSpielState), "CFR needs a game of OpenSpiel"
        average = solve(state.environment.game, self.iterations)
        chances = average.action_probabilities(state.spiel)
        return {state.word(action): chance for action, chance in chances.items() if chance > 0}
