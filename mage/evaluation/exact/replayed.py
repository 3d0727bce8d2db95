"""The largest possible Pass@k where every episode replays one deal (`restart = "same"`).

A player that knows the deal and the opponent wins an episode with probability p at most: best
response on the tree of that deal. Episodes are independent given the policy, so no learner has
Pass@k above 1 - (1 - p)^k on this task. Some deals cannot be won at all: there p is 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from mage.config.errors import UserError
from mage.environments.base import Environment
from mage.evaluation.exact.best_response import Expectimax
from mage.evaluation.exact.game_tree import Budget, checked_game, is_perfect_information, roots
from mage.opponents.base import find
from mage.types import Task

RARE = 1e-3  # CFR keeps tiny probabilities of moves that an equilibrium never makes


def at_least_once(chance: float, times: int) -> float:
    """The probability of at least one success in independent tries.

    >>> round(at_least_once(0.5, 3), 3)
    0.875
    """
    return 1 - (1 - chance) ** times


def win_chances(environment: Environment, opponent: str, seat: int) -> tuple[float, ...]:
    """The largest probability to win one episode, for every deal, knowing deal and opponent."""
    game = checked_game(environment, seat)
    if game.strata() == 1 and not is_perfect_information(game):
        raise UserError(
            f"{game.game} does not name its deals, so the Pass@k of a replayed deal is not computed"
        )
    budget = Budget(f"replayed deals against {opponent} in {game.game}")
    solver = Expectimax(
        game, find(opponent), seat, lambda score: float(game.outcome(score) == "won"), budget
    )
    return tuple(solver.value(root) for _, root in roots(game))


def count_winnable(chances: Sequence[float]) -> int:
    """Deals that a player who knows everything wins sometimes."""
    return sum(chance > RARE for chance in chances)


def pass_bound(
    environment: Environment, weights: Mapping[str, float], seat: int, episodes: int
) -> float:
    """The largest Pass@k over equally likely deals and a weighted population."""
    total = sum(weights.values())
    return math.fsum(
        share / total * _mean(at_least_once(p, episodes) for p in chances)
        for share, chances in (
            (share, win_chances(environment, name, seat)) for name, share in weights.items()
        )
    )


def panel_bound(environment: Environment, tasks: Sequence[Task], episodes: int) -> float:
    """The largest Pass@k on the tasks of a panel, which have deals and seats of their own."""
    found = {
        key: win_chances(environment, *key)
        for key in dict.fromkeys((task.opponent, task.seat) for task in tasks)
    }
    return _mean(
        at_least_once(found[task.opponent, task.seat][_deal(environment, task)], episodes)
        for task in tasks
    )


def _deal(environment: Environment, task: Task) -> int:
    return environment.stratum(environment.episode_seed(task.seed, 0))


def _mean(values: Iterable[float]) -> float:
    found = tuple(values)
    return math.fsum(found) / len(found)
