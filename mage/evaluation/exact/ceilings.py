"""Exact bounds: best response, equilibrium, and the best that any learner can do by episode N.

The figures come from the game tree and the opponents' own `policy`; nothing is sampled or looked
up. All of them have a bound on positions and on seconds (`game_tree.Budget`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from mage.config.errors import UserError
from mage.environments.base import Environment
from mage.environments.openspiel import OpenSpielState, load_game
from mage.evaluation.exact.beliefs import Belief, BeliefLearner, Point, grow_tree
from mage.evaluation.exact.best_response import Expectimax, Worth
from mage.evaluation.exact.game_tree import (
    Budget,
    chanced,
    checked_game,
    count_positions,
    is_perfect_information,
    moved,
    roots,
)
from mage.opponents.base import Opponent, find, fitting
from mage.types import Task

Objective = Literal["score", "win"]
Shares = tuple[tuple[str, float], ...]

_EQUILIBRIUM_ITERATIONS = 2_000
_NOTHING_TO_EXPLOIT = 0.01
_STEP = 2.0**-20


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Expected result of one episode against a population, exact.

    `bayes_final`: episode N of the learner that counts only that episode, so it may give up the
    earlier ones to explore. `bayes_mean`: the mean over N episodes of the learner that maximises
    their sum.
    """

    non_adapting: float
    bayes_final: float
    bayes_mean: float
    knows_opponent: float


@cache
def best_response(
    environment: Environment, opponent_name: str, seat: int, objective: Objective = "score"
) -> float:
    """The most that a player in `seat` can expect per game: score, or probability to win.

    MCTS has no policy in closed form: 200 seeded searches a state estimate it (15 s for MCTS-100 on
    Tic-Tac-Toe). The maximum over moves also picks lucky estimates, so against MCTS the figure is a
    little too high: .594 (first seat) and .084 (second) to win against MCTS-100, where 1,000
    searches a state give .593 and .068.
    """
    game, opponent = checked_game(environment, seat), _rival(environment, opponent_name)
    worth = _worth(environment, objective)
    budget = Budget(f"best response to {opponent_name} in {game.game}")
    if is_perfect_information(game):
        return Expectimax(game, opponent, seat, worth, budget).total()
    tree = grow_tree(game, (opponent,), seat, budget)
    return BeliefLearner(tree, worth, budget).value((1.0,), (1.0,))


@cache
def expert_score(environment: Environment, task: Task) -> float | None:
    """The score of the world's expert in the first episode of a task; None without an expert."""
    world = environment.for_split(task.split)
    state = world.start(world.episode_seed(task.seed, 0))
    for _ in range(world.max_turns):
        if state.turn() is None:
            break
        action = state.expert()
        if action is None:
            return None
        state.apply(action)
    return state.scores()[task.seat]


@cache
def equilibrium_value(environment: Environment, seat: int) -> float:
    """The score of `seat` when both players are perfect.

    Minimax with perfect information, else CFR+ against itself (Kuhn poker: -1/18 to within 1e-6).
    """
    game = checked_game(environment, seat)
    budget = Budget(f"equilibrium of {game.game}")
    if is_perfect_information(game):
        return Expectimax(game, None, seat, lambda score: score, budget).total()
    count_positions(load_game(game.spiel_game()).new_initial_state(), budget)
    player = find(f"cfr-{_EQUILIBRIUM_ITERATIONS}")
    return math.fsum(chance * _self_play(player, root, seat) for chance, root in roots(game))


def _self_play(player: Opponent, state: OpenSpielState, seat: int) -> float:
    """The expected score of `seat` when this player has both seats."""
    if state.spiel.is_terminal():
        return state.scores()[seat]
    if state.spiel.is_chance_node():
        return math.fsum(
            chance * _self_play(player, chanced(state, action), seat)
            for action, chance in state.spiel.chance_outcomes()
        )
    chances = player.policy(state, state.spiel.current_player())
    return math.fsum(
        chance * _self_play(player, moved(state, word), seat) for word, chance in chances.items()
    )


def ceilings(
    environment: Environment,
    weights: Mapping[str, float],
    seat: int,
    episodes: int,
    objective: Objective = "score",
) -> Ceilings:
    """The bounds against a weighted population, for a small OpenSpiel game with fresh deals.

    Worked example: Kuhn poker, {"conservative": .3, "aggressive": .3,
    "intermediate": .4}, first seat, three episodes. The best policy that does not adapt gets
    .0833, the best learner's third episode .2426, and a player that knows the opponent .2833.
    Beliefs about pure strategies are few. Against mixed ones (cfr, random) their number grows fast
    with the episodes; then the computation ends with `TooLarge`.
    """
    if episodes < 1:
        raise UserError(f"ceilings need at least one episode, not {episodes}")
    return _ceilings(environment, _shares(environment, weights), seat, episodes, objective)


def optimum(
    environment: Environment, weights: Mapping[str, float], seat: int, counts: tuple[float, ...]
) -> tuple[float, ...]:
    """The score of every episode for the learner that maximises their sum with weights `counts`.

    The best sum is linear in the weights as long as its learner stays the same, so its slope by a
    weight is the score of that episode. Where several learners are equally good (a weight of 0),
    each episode's score is the best among theirs.
    """
    budget = Budget(f"best learner in {environment.name}")
    tree, prior = _population(environment, _shares(environment, weights), seat, budget)
    raised = [
        tuple(count + _STEP * (k == n) for k, count in enumerate(counts))
        for n in range(len(counts))
    ]
    best, *more = (
        BeliefLearner(tree, lambda score: score, budget).value(prior, each)
        for each in (counts, *raised)
    )
    return tuple((value - best) / _STEP for value in more)


def exploitation(score: float, equilibrium: float, best_response: float) -> float | None:
    """0 = plays safe, 1 = exploits perfectly; None against a player who cannot be exploited.

    >>> exploitation(0.5, 0.0, 2.0)
    0.25
    """
    gap = best_response - equilibrium
    return (score - equilibrium) / gap if gap > _NOTHING_TO_EXPLOIT else None


def _shares(environment: Environment, weights: Mapping[str, float]) -> Shares:
    shares = {name: share for name, share in weights.items() if share > 0}
    if not shares:
        raise UserError("ceilings need a population: at least one opponent with a weight above 0")
    if environment.restart == "same" and environment.strata() > 1:
        raise UserError(
            "ceilings are computed for fresh deals; restart = 'same' replays a deal that the agent "
            "already knows"
        )
    return tuple(sorted(shares.items()))


def _population(
    environment: Environment, shares: Shares, seat: int, budget: Budget
) -> tuple[Point, Belief]:
    """The agent's own tree against a population, and its shares as a belief."""
    game = checked_game(environment, seat)
    total = sum(share for _, share in shares)
    tree = grow_tree(game, tuple(_rival(environment, name) for name, _ in shares), seat, budget)
    return tree, tuple(share / total for _, share in shares)


@cache
def _ceilings(
    environment: Environment, shares: Shares, seat: int, episodes: int, objective: Objective
) -> Ceilings:
    budget = Budget(f"ceilings of {environment.name}")
    tree, prior = _population(environment, shares, seat, budget)
    learner = BeliefLearner(tree, _worth(environment, objective), budget)
    certain = (
        tuple(float(mine == other) for other in range(len(prior))) for mine in range(len(prior))
    )
    return Ceilings(
        non_adapting=learner.value(prior, (1.0,)),
        bayes_final=learner.value(prior, (*(0.0,) * (episodes - 1), 1.0)),
        bayes_mean=learner.value(prior, (1 / episodes,) * episodes),
        knows_opponent=sum(
            share * learner.value(belief, (1.0,))
            for share, belief in zip(prior, certain, strict=True)
        ),
    )


def _rival(environment: Environment, name: str) -> Opponent:
    opponent = find(name)
    if not opponent.plays(environment):
        raise UserError(
            f"opponent {name!r} does not play {environment.name}; opponents for it: "
            f"{', '.join(fitting(environment))}"
        )
    return opponent


def _worth(environment: Environment, objective: Objective) -> Worth:
    if objective == "score":
        return lambda score: score
    return lambda score: float(environment.outcome(score) == "won")
