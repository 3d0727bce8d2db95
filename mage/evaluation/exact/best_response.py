"""Best response and minimax in games without hidden information; each position is solved once."""

import math
from collections.abc import Callable

from mage.environments.openspiel import OpenSpiel, OpenSpielState
from mage.evaluation.exact.game_tree import Budget, chanced, moved, roots
from mage.opponents.base import Opponent

Worth = Callable[[float], float]  # from the score of a finished game to what is maximised


class Expectimax:
    """The value of positions for `seat` with best play against `opponent`.

    Without an opponent the other seat plays its own best reply, which is minimax. A position that
    several orders of moves reach is solved once.
    """

    def __init__(
        self, game: OpenSpiel, opponent: Opponent | None, seat: int, worth: Worth, budget: Budget
    ) -> None:
        self.game, self.opponent, self.seat, self.worth = game, opponent, seat, worth
        self.budget = budget
        self.memo: dict[tuple[int, str], float] = {}

    def total(self) -> float:
        return sum(chance * self.value(root) for chance, root in roots(self.game))

    def value(self, state: OpenSpielState) -> float:
        if state.spiel.is_terminal():
            return self.worth(state.scores()[self.seat])
        key = (state.spiel.current_player(), str(state.spiel))
        if key not in self.memo:
            # Counted on entry: the depth-first walk solves nothing before it reaches the ends.
            self.budget.visit()
            self.memo[key] = self._solve(state)
        return self.memo[key]

    def _solve(self, state: OpenSpielState) -> float:
        if state.spiel.is_chance_node():
            return math.fsum(
                chance * self.value(chanced(state, action))
                for action, chance in state.spiel.chance_outcomes()
            )
        if state.spiel.current_player() == self.seat:
            return max(self.value(moved(state, word)) for word in state.legal())
        if self.opponent is None:
            return min(self.value(moved(state, word)) for word in state.legal())
        chances = self.opponent.policy(state, 1 - self.seat)
        self.budget.check_seconds()  # a search estimates its policy, which takes long
        return math.fsum(
            chance * self.value(moved(state, word))
            for word, chance in chances.items()
            if chance > 0
        )
