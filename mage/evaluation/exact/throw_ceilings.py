"""Exact ceilings of rock-paper-scissors against `dirichlet-A`: players with fixed probabilities.

After t seen throws with counts n the best learner expects the payoff of the best throw under the
posterior mean (n + A) / (t + 3A). Its mean over all counts, weighted by the Dirichlet-multinomial
distribution, is the exact score of throw t + 1. What the learner sees does not depend on its own
throws, so the greedy learner is the best one in every episode. A player without memory cannot
score more than the first episode's figure in any episode.
"""

from dataclasses import dataclass
from math import exp, lgamma

import numpy as np
from scipy.special import roots_jacobi

from mage.config.errors import UserError
from mage.environments.base import Environment
from mage.opponents.base import find, is_kind_of

_NODES = 800  # of the quadrature for `knows_opponent`; its error is below 1e-5


@dataclass(frozen=True, slots=True)
class ThrowCeilings:
    """Scores per throw: of the best learner in each episode, and of one that knows the player."""

    episodes: tuple[float, ...]
    knows_opponent: float


def dirichlet_alpha(environment: Environment, opponent: str) -> float | None:
    """A, if this is rock-paper-scissors against the family `dirichlet-A`; else None."""
    player = find(opponent)
    if not is_kind_of(environment, "rock_paper_scissors") or player.name != "dirichlet":
        return None
    options = player.model_dump()
    return float(options["alpha"]) if options["seed"] is None else None


def throw_ceilings(alpha: float, throws: int, episodes: int) -> ThrowCeilings:
    """The exact ceilings for episodes of so many throws.

    >>> [round(score, 3) for score in throw_ceilings(0.5, throws=3, episodes=3).episodes]
    [0.286, 0.489, 0.523]
    """
    if alpha <= 0 or throws < 1 or episodes < 1:
        raise UserError(
            f"ceilings need A > 0 and at least one throw and one episode, not A = {alpha}, "
            f"{throws} throws and {episodes} episodes"
        )
    scores = [_score_after(seen, alpha) for seen in range(throws * episodes)]
    means = [sum(scores[at : at + throws]) / throws for at in range(0, len(scores), throws)]
    return ThrowCeilings(tuple(means), _score_of_knowing(alpha))


def _score_after(seen: int, alpha: float) -> float:
    """The best learner's expected payoff of the next throw after `seen` throws."""
    total = 0.0
    for rock in range(seen + 1):
        for paper in range(seen - rock + 1):
            counts = (rock, paper, seen - rock - paper)
            posterior = [(count + alpha) / (seen + 3 * alpha) for count in counts]
            total += _weight(counts, alpha) * _best_payoff(posterior)
    return total


def _best_payoff(chances: list[float]) -> float:
    """Rock wins against scissors and loses to paper, and so on around the circle."""
    return max(chances[throw - 1] - chances[(throw + 1) % 3] for throw in range(3))


def _weight(counts: tuple[int, ...], alpha: float) -> float:
    """Dirichlet-multinomial probability of these counts."""
    seen = sum(counts)
    log = lgamma(seen + 1) + lgamma(3 * alpha) - lgamma(seen + 3 * alpha)
    log += sum(lgamma(n + alpha) - lgamma(n + 1) - lgamma(alpha) for n in counts)
    return exp(log)


def _score_of_knowing(alpha: float) -> float:
    """E[max payoff] over Dirichlet(A, A, A), by Gauss-Jacobi quadrature.

    p_1 is Beta(A, 2A), and the rest is split by an independent Beta(A, A).
    """
    first, first_weights = _beta_nodes(alpha, 2 * alpha)
    split, split_weights = _beta_nodes(alpha, alpha)
    rock = first[:, None] + 0 * split[None, :]
    paper = (1 - first)[:, None] * split[None, :]
    scissors = 1 - rock - paper
    best = np.maximum(np.maximum(scissors - paper, rock - scissors), paper - rock)
    return float(first_weights @ best @ split_weights)


def _beta_nodes(a: float, b: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes in (0, 1) and weights, normalised, for the density of Beta(a, b)."""
    nodes, weights = roots_jacobi(_NODES, b - 1, a - 1)
    return (nodes + 1) / 2, weights / weights.sum()
