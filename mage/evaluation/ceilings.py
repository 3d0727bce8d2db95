"""What no player can beat: exact best responses, the equilibrium, and the best that ANY learner can do by its N-th episode.

Everything comes from walking the game tree with the opponents' own `policy`; nothing is sampled or looked up. A learner is
a player whose hidden state is the opponent: what it saw in an episode (its information sets and the recap at the end, which
tells the opponent's card at a showdown only) updates its belief, and dynamic programming over beliefs gives its best score.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import pyspiel

from mage.environments.base import Environment
from mage.environments.openspiel import OpenSpiel, OpenSpielState, load_game
from mage.opponents.base import Opponent, find
from mage.types import Task

Objective = Literal["score", "win"]
Belief = tuple[float, ...]
Shares = tuple[tuple[str, float], ...]
Worth = Callable[[float], float]

MAX_NODES = 200_000
MAX_BELIEFS = 50_000
_EQUILIBRIUM_ITERATIONS = 2_000
_NOTHING_TO_EXPLOIT = 0.01
_STEP = 2.0**-20


class TooLarge(ValueError):
    """The game tree or the set of beliefs is too large for an exact answer."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Expected result of one episode against a population, exact.

    `bayes_final` is episode N of the learner that cares for that episode alone, so it may give up the earlier ones to
    explore; `bayes_mean` is the mean over N episodes of the learner that maximises their sum.
    """

    non_adapting: float
    bayes_final: float
    bayes_mean: float
    knows_opponent: float


@cache
def best_response(
    environment: Environment, opponent_name: str, seat: int, objective: Objective = "score"
) -> float:
    """The most that any player in `seat` can expect per game against this opponent: score, or chance to win.

    MCTS has no policy in closed form: 200 seeded searches a state stand for it (a quarter of a minute for MCTS-100 on
    Tic-Tac-Toe). The maximum over moves then also picks lucky estimates, so against MCTS the figure lies a little above the
    truth: chances to win against MCTS-100 are .594 (first seat) and .084 (second), where 1,000 searches a state give .593 and .068.
    """
    game, opponent = _checked(environment, seat), _rival(environment, opponent_name)
    worth = _worth(environment, objective)
    if _is_perfect_information(game):
        return _Expectimax(game, opponent, seat, worth).total()
    return _Learner(_tree(game, (opponent,), seat), worth).value((1.0,), (1.0,))


@cache
def opening_values(
    environment: Environment, opponent_name: str, objective: Objective = "score"
) -> dict[str, float]:
    """What every first move is worth with best play after it, where nothing is hidden; estimated as `best_response` is."""
    game, opponent = _checked(environment, 0), _rival(environment, opponent_name)
    if not _is_perfect_information(game) or game.strata() > 1:
        raise ValueError(
            f"{environment.name} has hidden cards or chance: its first moves have no value of their own"
        )
    solver, ((_, root),) = (
        _Expectimax(game, opponent, 0, _worth(environment, objective)),
        roots(game),
    )
    return {word: solver.value(moved(root, word)) for word in root.legal()}


@cache
def expert_score(environment: Environment, task: Task) -> float | None:
    """What the world's own expert scores in the first episode of a task; None if the world knows no expert."""
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


def equilibrium_value(environment: Environment, seat: int) -> float:
    """What two perfect players get: minimax with perfect information, else CFR+ against itself (on Kuhn poker -1/18 to within 1e-6)."""
    game = _checked(environment, seat)
    if _is_perfect_information(game):
        return _Expectimax(game, None, seat, lambda score: score).total()
    if sum(1 for _ in _positions(load_game(game.game).new_initial_state())) > MAX_NODES:
        raise TooLarge(
            f"{game.game} has more than {MAX_NODES:,} positions; its equilibrium is not computed"
        )
    return math.fsum(
        chance * _self_play(find(f"cfr-{_EQUILIBRIUM_ITERATIONS}"), root, seat)
        for chance, root in roots(game)
    )


def _self_play(player: Opponent, state: OpenSpielState, seat: int) -> float:
    """What `seat` expects when both seats are this player."""
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
    """What can be reached against a weighted population, for any small OpenSpiel game with a fresh deal in every episode.

    Worked example (method page, section 7), Kuhn poker, {"conservative": .3, "aggressive": .3, "intermediate": .4}, first seat,
    three episodes: .0833 for the best policy that does not adapt, .2426 for the best learner's third episode, .2833 for one that
    knows the opponent. Beliefs about pure strategies are few; against mixed ones (cfr, random) their number grows fast
    with the episodes, and `TooLarge` says so instead of running for hours.
    """
    if episodes < 1:
        raise ValueError(f"ceilings need at least one episode, not {episodes}")
    return _ceilings(environment, _shares(environment, weights), seat, episodes, objective)


def optimum(
    environment: Environment, weights: Mapping[str, float], seat: int, counts: tuple[float, ...]
) -> tuple[float, ...]:
    """The score of every episode for the learner that maximises their sum with the weights `counts`, exact.

    The best sum is linear in the weights wherever its learner stays the same, so its slope by a weight is that episode's
    score. Where several learners are equally good (a weight of 0), each episode's score is the best among theirs.
    """
    tree, prior = _population(environment, _shares(environment, weights), seat)
    raised = [
        tuple(count + _STEP * (k == n) for k, count in enumerate(counts))
        for n in range(len(counts))
    ]
    best, *more = (
        _Learner(tree, lambda score: score).value(prior, each) for each in (counts, *raised)
    )
    return tuple((value - best) / _STEP for value in more)


def _shares(environment: Environment, weights: Mapping[str, float]) -> Shares:
    shares = {name: share for name, share in weights.items() if share > 0}
    if not shares:
        raise ValueError("ceilings need a population: at least one opponent with a weight above 0")
    if environment.restart == "same" and environment.strata() > 1:
        raise ValueError(
            "ceilings are computed for fresh deals; restart = 'same' replays one deal, which the agent then knows"
        )
    return tuple(sorted(shares.items()))


def exploitation(score: float, equilibrium: float, best_response: float) -> float | None:
    """0 = plays safe, 1 = exploits perfectly; None where there is nothing to exploit (an equilibrium player).

    >>> exploitation(0.5, 0.0, 2.0)
    0.25
    """
    gap = best_response - equilibrium
    return (score - equilibrium) / gap if gap > _NOTHING_TO_EXPLOIT else None


def _population(environment: Environment, shares: Shares, seat: int) -> tuple["_Point", Belief]:
    """The agent's own tree against a population, and its shares as a belief."""
    game = _checked(environment, seat)
    total = sum(share for _, share in shares)
    tree = _tree(game, tuple(_rival(environment, name) for name, _ in shares), seat)
    return tree, tuple(share / total for _, share in shares)


@cache
def _ceilings(
    environment: Environment, shares: Shares, seat: int, episodes: int, objective: Objective
) -> Ceilings:
    tree, prior = _population(environment, shares, seat)
    learner = _Learner(tree, _worth(environment, objective))
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


# --- Positions -----------------------------------------------------------------------------------------------------


def _checked(environment: Environment, seat: int) -> OpenSpiel:
    if not isinstance(environment, OpenSpiel):
        raise ValueError(
            f"exact ceilings need a game of OpenSpiel, and {environment.name!r} is none"
        )
    if seat not in range(environment.seats):
        raise ValueError(f"{environment.name} has seats 0 to {environment.seats - 1}, not {seat}")
    return environment


def _rival(environment: Environment, name: str) -> Opponent:
    opponent = find(name)
    if opponent.plays is not None and environment.name not in opponent.plays:
        raise ValueError(
            f"opponent {name!r} plays {', '.join(opponent.plays)}, not {environment.name}"
        )
    return opponent


def _worth(environment: Environment, objective: Objective) -> Worth:
    return (
        (lambda score: score)
        if objective == "score"
        else (lambda score: float(environment.outcome(score) == "won"))
    )


def _is_perfect_information(game: OpenSpiel) -> bool:
    return bool(
        load_game(game.game).get_type().information
        == pyspiel.GameType.Information.PERFECT_INFORMATION
    )


def roots(game: OpenSpiel) -> list[tuple[float, OpenSpielState]]:
    """The equally likely deals of a game that names them as strata; otherwise one root, whose chance is met on the way."""
    if game.strata() == 1:
        root = game.start(0)
        root.spiel, root.moves = load_game(game.game).new_initial_state(), []
        return [(1.0, root)]
    seeds: dict[int, int] = {}
    for seed in range(100 * game.strata()):
        seeds.setdefault(game.stratum(seed), seed)
    assert len(seeds) == game.strata(), (
        "every stratum is as likely as any other, so small seeds meet them all"
    )
    return [(1 / len(seeds), game.start(seed)) for _, seed in sorted(seeds.items())]


def moved(state: OpenSpielState, word: str) -> OpenSpielState:
    """The position after a move. The state's own `apply` would draw chance; here every outcome is walked."""
    child = chanced(state, state.number(word))
    child.moves.append((state.spiel.current_player(), word))
    return child


def chanced(state: OpenSpielState, action: int) -> OpenSpielState:
    child = copy.copy(state)
    child.spiel, child.moves = state.spiel.clone(), [*state.moves]
    child.spiel.apply_action(action)
    return child


def _positions(spiel: pyspiel.State) -> Iterator[pyspiel.State]:
    stack = [spiel]
    for _ in range(MAX_NODES + 1):
        if not stack:
            return
        here = stack.pop()
        yield here
        stack += [
            here.child(action) for action in (() if here.is_terminal() else here.legal_actions())
        ]


# --- Perfect information: every position once ----------------------------------------------------------------------


class _Expectimax:
    """Best response where nothing is hidden; positions met by several orders of moves are solved once.

    Without an opponent the other seat plays its own best reply: minimax.
    """

    def __init__(self, game: OpenSpiel, opponent: Opponent | None, seat: int, worth: Worth) -> None:
        self.game, self.opponent, self.seat, self.worth = game, opponent, seat, worth
        self.memo: dict[tuple[int, str], float] = {}

    def total(self) -> float:
        return sum(chance * self.value(root) for chance, root in roots(self.game))

    def value(self, state: OpenSpielState) -> float:
        if state.spiel.is_terminal():
            return self.worth(state.scores()[self.seat])
        key = (state.spiel.current_player(), str(state.spiel))
        if key not in self.memo:
            if len(self.memo) > MAX_NODES:
                raise TooLarge(
                    f"{self.game.game} has more than {MAX_NODES:,} positions; its best response is not computed"
                )
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
        return math.fsum(
            chance * self.value(moved(state, word))
            for word, chance in chances.items()
            if chance > 0
        )


# --- Hidden information: the agent's own tree ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Point:
    """A place in the agent's own tree, between two of its decisions.

    `results`: what may be seen at an end reached from here, as (score, chance of it under each opponent).
    `decisions`: for every information set met next, the point behind each legal move.
    """

    results: tuple[tuple[float, Belief], ...]
    decisions: tuple[tuple["_Point", ...], ...]


def _tree(game: OpenSpiel, opponents: tuple[Opponent, ...], seat: int) -> _Point:
    if not load_game(game.game).get_type().provides_information_state_string:
        raise ValueError(
            f"OpenSpiel gives no information states for {game.game}; its ceilings are not computed"
        )
    grower = _Grower(opponents, seat)
    return grower.grow([((chance,) * len(opponents), root) for chance, root in roots(game)])


class _Grower:
    """Walks all positions that the agent cannot tell apart side by side, once for all opponents."""

    def __init__(self, opponents: tuple[Opponent, ...], seat: int) -> None:
        self.opponents, self.seat, self.nodes = opponents, seat, 0

    def grow(self, frontier: list[tuple[Belief, OpenSpielState]]) -> _Point:
        ends: dict[str, tuple[float, Belief]] = {}
        sets: dict[str, list[tuple[Belief, OpenSpielState]]] = {}
        while frontier:
            chances, state = frontier.pop()
            self._count(state)
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
        return _Point(tuple(ends.values()), tuple(self._decide(nodes) for nodes in sets.values()))

    def _decide(self, nodes: list[tuple[Belief, OpenSpielState]]) -> tuple[_Point, ...]:
        words = nodes[0][1].legal()
        return tuple(
            self.grow([(chances, moved(state, word)) for chances, state in nodes]) for word in words
        )

    def _others_move(
        self, chances: Belief, state: OpenSpielState
    ) -> list[tuple[Belief, OpenSpielState]]:
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

    def _count(self, state: OpenSpielState) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise TooLarge(
                f"{state.environment.game} has more than {MAX_NODES:,} positions against these opponents; no exact ceilings"
            )


class _Learner:
    """Dynamic programming over beliefs. `weights[n]` says how much the n-th episode from now counts."""

    def __init__(self, tree: _Point, worth: Worth) -> None:
        self.tree, self.worth = tree, worth
        self.memo: dict[tuple[Belief, tuple[float, ...]], float] = {}

    def value(self, belief: Belief, weights: tuple[float, ...]) -> float:
        """Homogeneous in the belief: twice as likely counts twice, so likelihoods need no normalising by the caller."""
        mass = sum(belief)
        if not weights or mass <= 0:
            return 0.0
        normal = tuple(b / mass for b in belief)
        # Different orders of the same evidence differ in the last bits only; rounding makes them one belief.
        key = (tuple(round(b, 10) for b in normal), weights)
        if key not in self.memo:
            if len(self.memo) > MAX_BELIEFS:
                raise TooLarge(
                    f"more than {MAX_BELIEFS:,} beliefs: an exact ceiling needs fewer episodes or purer opponents"
                )
            self.memo[key] = self._from(self.tree, normal, weights)
        return mass * self.memo[key]

    def _from(self, point: _Point, belief: Belief, weights: tuple[float, ...]) -> float:
        here = 0.0
        for score, likelihoods in point.results:
            joint = tuple(b * chance for b, chance in zip(belief, likelihoods, strict=True))
            here += weights[0] * self.worth(score) * sum(joint) + self.value(joint, weights[1:])
        return here + sum(
            max(self._from(child, belief, weights) for child in choices)
            for choices in point.decisions
        )
