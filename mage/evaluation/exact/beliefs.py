"""The best learner in games with hidden information: dynamic programming over beliefs.

The tree below is the agent's own: it joins all positions that the agent cannot tell apart, once
for all opponents. A learner's hidden state is the opponent. What it saw in an episode (its
information sets, and the recap at the end) updates its belief.
"""

from dataclasses import dataclass

from mage.config.errors import UserError
from mage.environments.openspiel import OpenSpiel, OpenSpielState, load_game
from mage.evaluation.exact.best_response import Worth
from mage.evaluation.exact.game_tree import Budget, TooLarge, chanced, moved, roots
from mage.opponents.base import Opponent

Belief = tuple[float, ...]
Frontier = list[tuple[Belief, OpenSpielState]]

MAX_BELIEFS = 50_000


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the agent's own tree, between two of its decisions.

    `results`: what may be seen at an end reached from here, as (score, its probability under each
    opponent). `decisions`: for every information set met next, the point behind each legal move.
    """

    results: tuple[tuple[float, Belief], ...]
    decisions: tuple[tuple["Point", ...], ...]


def grow_tree(game: OpenSpiel, opponents: tuple[Opponent, ...], seat: int, budget: Budget) -> Point:
    """The agent's own tree of one episode against these opponents."""
    if not load_game(game.spiel_game()).get_type().provides_information_state_string:
        raise UserError(
            f"OpenSpiel has no information states for {game.game}; its ceilings are not computed"
        )
    grower = _Grower(opponents, seat, budget)
    return grower.grow([((chance,) * len(opponents), root) for chance, root in roots(game)])


class _Grower:
    """Walks all positions that the agent cannot tell apart together, once for all opponents."""

    def __init__(self, opponents: tuple[Opponent, ...], seat: int, budget: Budget) -> None:
        self.opponents, self.seat, self.budget = opponents, seat, budget

    def grow(self, frontier: Frontier) -> Point:
        ends: dict[str, tuple[float, Belief]] = {}
        sets: dict[str, Frontier] = {}
        while frontier:
            chances, state = frontier.pop()
            self.budget.visit()
            if state.spiel.is_terminal():
                seen = state.recap(self.seat)
                score, before = ends.get(seen, (state.scores()[self.seat], (0.0,) * len(chances)))
                ends[seen] = score, tuple(a + b for a, b in zip(before, chances, strict=True))
            elif state.spiel.current_player() == self.seat:
                sets.setdefault(state.spiel.information_state_string(self.seat), []).append(
                    (chances, state)
                )
            else:
                frontier += self._others_move(chances, state)
        return Point(tuple(ends.values()), tuple(self._decide(nodes) for nodes in sets.values()))

    def _decide(self, nodes: Frontier) -> tuple[Point, ...]:
        words = nodes[0][1].legal()
        return tuple(
            self.grow([(chances, moved(state, word)) for chances, state in nodes]) for word in words
        )

    def _others_move(self, chances: Belief, state: OpenSpielState) -> Frontier:
        if state.spiel.is_chance_node():
            return [
                (tuple(c * chance for c in chances), chanced(state, action))
                for action, chance in state.spiel.chance_outcomes()
            ]
        policies = [opponent.policy(state, 1 - self.seat) for opponent in self.opponents]
        after = {
            word: tuple(
                c * policy.get(word, 0.0) for c, policy in zip(chances, policies, strict=True)
            )
            for word in state.legal()
        }
        return [(likely, moved(state, word)) for word, likely in after.items() if any(likely)]


class BeliefLearner:
    """Dynamic programming over beliefs. `weights[n]` is the weight of the n-th episode from now."""

    def __init__(self, tree: Point, worth: Worth, budget: Budget) -> None:
        self.tree, self.worth, self.budget = tree, worth, budget
        self.memo: dict[tuple[Belief, tuple[float, ...]], float] = {}

    def value(self, belief: Belief, weights: tuple[float, ...]) -> float:
        """The value is homogeneous in the belief, so callers may pass likelihoods as they are."""
        mass = sum(belief)
        if not weights or mass <= 0:
            return 0.0
        normal = tuple(b / mass for b in belief)
        # The same evidence in another order differs in the last bits; rounding makes it one key.
        key = (tuple(round(b, 10) for b in normal), weights)
        if key not in self.memo:
            self.budget.check_seconds()
            if len(self.memo) > MAX_BELIEFS:
                raise TooLarge(
                    f"more than {MAX_BELIEFS:,} beliefs: an exact ceiling needs fewer episodes, "
                    "or opponents that mix less"
                )
            self.memo[key] = self._from(self.tree, normal, weights)
        return mass * self.memo[key]

    def _from(self, point: Point, belief: Belief, weights: tuple[float, ...]) -> float:
        here = 0.0
        for score, likelihoods in point.results:
            joint = tuple(b * chance for b, chance in zip(belief, likelihoods, strict=True))
            here += weights[0] * self.worth(score) * sum(joint) + self.value(joint, weights[1:])
        return here + sum(
            max(self._from(child, belief, weights) for child in choices)
            for choices in point.decisions
        )
