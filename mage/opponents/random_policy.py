"""random_policy: an endless population of consistent players for OpenSpiel and TextArena games.

Every information state gets its own move probabilities, drawn from a Dirichlet distribution by a
hash of the state and the player's seed. The same player always uses the same probabilities in the
same information state, and the table is never stored.
"""

import random
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from mage.environments.base import Environment, State
from mage.environments.openspiel import OpenSpielState, load_game
from mage.opponents.base import Family, is_kind_of
from mage.seeds import derive


class RandomPolicy(Family):
    """Move probabilities of every information state from Dirichlet(A, ..., A), by the seed."""

    name: ClassVar[str] = "random_policy"
    alpha: float = Field(0.5, gt=0, le=1000, description="Dirichlet parameter; small = predictable")

    @classmethod
    def plays(cls, environment: Environment) -> bool:
        return environment.multi_agent and is_kind_of(environment, "openspiel", "textarena")

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        rng = random.Random(derive(self.player_seed(), "information state", _key(state, seat)))
        legal = state.legal()
        while True:
            weights = [rng.gammavariate(self.alpha, 1.0) for _ in legal]
            if (total := sum(weights)) > 0:  # tiny alphas can underflow to 0 in all of them
                return {move: weight / total for move, weight in zip(legal, weights, strict=True)}


def _key(state: State, seat: int) -> str:
    """What this seat knows: OpenSpiel's information state, else its observation."""
    if not isinstance(state, OpenSpielState):
        return f"{seat} {state.anchor(seat)}"
    game_type = load_game(state.environment.spiel_game()).get_type()
    if game_type.provides_information_state_string:
        return f"{seat} {state.spiel.information_state_string(seat)}"
    return f"{seat} {state.spiel.observation_string(seat)}"
