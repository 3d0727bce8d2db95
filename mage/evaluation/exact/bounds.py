"""Bounds of a score where the game is small enough: equilibrium, best response, best learner."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from mage.environments.base import Environment
from mage.environments.openspiel import OpenSpiel
from mage.evaluation.exact.ceilings import Ceilings, best_response, ceilings, equilibrium_value
from mage.evaluation.exact.game_tree import TooLarge
from mage.evaluation.exact.throw_ceilings import dirichlet_alpha, throw_ceilings
from mage.opponents.base import find
from mage.types import Task


class PanelBounds:
    """The bounds of one environment against one pool of opponents; each is computed once.

    `enabled = False` gives no bounds.
    """

    def __init__(
        self, environment: Environment, pool: Mapping[str, float], episodes: int, *, enabled: bool
    ) -> None:
        self.environment, self.pool = environment, pool
        self.episodes, self.enabled = episodes, enabled
        self.ceilings: dict[int, tuple[Ceilings, ...]] = {}
        self.pairs: dict[tuple[str, int], tuple[float, float]] = {}

    def scores(self, tasks: list[Task]) -> tuple[float, float] | None:
        """Equilibrium and best-response score, averaged over the tasks.

        Not for `restart = "same"`: a player that has seen the deal and the opponent's random
        choices may score more than a best response.
        """
        if (
            not tasks
            or not self.enabled
            or self.environment.restart == "same"
            or not isinstance(self.environment, OpenSpiel)
        ):
            return None
        if not all(_is_exact(task.opponent) for task in tasks):
            return None
        pairs = Counter((task.opponent, task.seat) for task in tasks)
        try:
            bounds = [(count, *self._pair_bounds(*pair)) for pair, count in pairs.items()]
        except TooLarge:
            return None
        return math.fsum(count * low for count, low, _ in bounds) / len(tasks), math.fsum(
            count * high for count, _, high in bounds
        ) / len(tasks)

    def _pair_bounds(self, opponent: str, seat: int) -> tuple[float, float]:
        """Equilibrium and best-response score of one seat against one opponent; computed once."""
        if (opponent, seat) not in self.pairs:
            self.pairs[opponent, seat] = (
                equilibrium_value(self.environment, seat),
                best_response(self.environment, opponent, seat),
            )
        return self.pairs[opponent, seat]

    def ceiling(self, tasks: list[Task], k: int) -> Ceilings | None:
        """The ceilings of episode k (from 0), averaged over the seats of the tasks."""
        per_seat = [self._seat_ceilings(task.seat) for task in tasks]
        if not all(len(found) > k for found in per_seat):
            return None
        chosen = [asdict(found[k]) for found in per_seat]
        return Ceilings(
            **{name: math.fsum(one[name] for one in chosen) / len(chosen) for name in chosen[0]}
        )

    def _seat_ceilings(self, seat: int) -> tuple[Ceilings, ...]:
        if seat not in self.ceilings:
            self.ceilings[seat] = self._compute_ceilings(seat)
        return self.ceilings[seat]

    def _compute_ceilings(self, seat: int) -> tuple[Ceilings, ...]:
        alpha = self._dirichlet_alpha()
        if alpha is not None:
            return _throw_ceilings(self.environment, alpha, self.episodes)
        if (
            not self.enabled
            or not isinstance(self.environment, OpenSpiel)
            or self.environment.strata() == 1
            or self.environment.restart == "same"
            or not all(map(_is_exact, self.pool))
        ):
            return ()
        found: list[Ceilings] = []
        for episodes in range(1, self.episodes + 1):
            try:
                found.append(ceilings(self.environment, self.pool, seat, episodes))
            except TooLarge:
                break
        return tuple(found)

    def _dirichlet_alpha(self) -> float | None:
        """A, if the whole pool is the family `dirichlet-A` of rock-paper-scissors."""
        if not self.enabled or len(self.pool) != 1:
            return None
        return dirichlet_alpha(self.environment, next(iter(self.pool)))


def _is_exact(opponent: str) -> bool:
    return find(opponent).policy_is == "exact"


def _throw_ceilings(environment: Environment, alpha: float, episodes: int) -> tuple[Ceilings, ...]:
    throws = environment.model_dump()["throws"]
    found = throw_ceilings(alpha, throws, episodes)
    scores = found.episodes
    return tuple(
        Ceilings(scores[0], scores[k], sum(scores[: k + 1]) / (k + 1), found.knows_opponent)
        for k in range(episodes)
    )
