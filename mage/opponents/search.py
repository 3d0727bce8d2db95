"""MCTS-k: OpenSpiel's C++ tree search with k simulations, UCT c = 1.4, random roll-outs, solver on.

Every move builds a new bot from the seed of the move. A bot keeps random state, and an opponent
must be stationary.
"""

import random
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import pyspiel
from pydantic import Field

from mage.environments.base import Environment, State
from mage.environments.openspiel import OpenSpiel, OpenSpielState, load_game
from mage.opponents.base import Knowledge, Opponent

_POLICY_DRAWS = 200
_TERMINAL = pyspiel.GameType.RewardModel.TERMINAL


class MonteCarloTreeSearch(Opponent):
    """UCT search with a fixed number of simulations a move."""

    name: ClassVar[str] = "mcts"
    policy_is: ClassVar[Knowledge] = "sampled"
    simulations: int = Field(100, ge=1)

    @classmethod
    def plays(cls, environment: Environment) -> bool:
        """OpenSpiel games whose rewards come at the end: the search needs terminal rewards."""
        if not isinstance(environment, OpenSpiel):
            return False
        return load_game(environment.spiel_game()).get_type().reward_model == _TERMINAL

    def act(self, state: State, seat: int, rng: random.Random) -> str:
        assert isinstance(state, OpenSpielState), "search needs an OpenSpiel game"
        game, seed = load_game(state.environment.spiel_game()), rng.getrandbits(31)
        evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
        bot = pyspiel.MCTSBot(game, evaluator, 1.4, self.simulations, 16, True, seed, False)
        return state.word(bot.step(state.spiel))

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        """Estimated from 200 seeded searches; a search has no policy in closed form."""
        counts = Counter(
            self.act(state, seat, random.Random(draw)) for draw in range(_POLICY_DRAWS)
        )
        return {action: count / _POLICY_DRAWS for action, count in sorted(counts.items())}
