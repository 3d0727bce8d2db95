"""The best learner of a task for each return, by dynamic programming over what it knows.

A return weighs the scores of the episodes that remain. Seen from an episode with N to go, with the
discount g between episodes:

    cumulative    1, g, g^2, ...                       (LaMer)
    differential  1-g, g(1-g), ..., g^(N-1) at the end (MAGE)
    final         0, ..., 0, 1
    sum           1, ..., 1
    balanced      1/sqrt(N), ..., 1/sqrt(N)            (the best policy is that of the sum)

Every move is the best one for the weights as its own episode sees them: this is what training
rewards. Ties are broken by the larger plain sum of the scores that remain, then by the larger score
of the earliest episode, so the scores do not depend on the order of the moves.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from mage.config.errors import UserError
from mage.environments.base import Environment, Problem, Result
from mage.evaluation.exact.game_tree import Budget, TooLarge

RETURNS = ("cumulative", "differential", "final", "sum")
MAX_STATES = 400_000  # about 1 GB with ten episodes
_EQUAL = 1e-12  # values that differ by less are a tie
Scores = tuple[float, ...]  # of the episodes that remain
Weights = Callable[[int], Sequence[float]]  # from the number of episodes that remain


def return_weights(kind: str, episodes: int, discount: float) -> Scores:
    """The weights of the scores of the episodes that remain, this one included.

    >>> [round(weight, 2) for weight in return_weights("differential", 3, 0.6)]
    [0.4, 0.24, 0.36]
    """
    powers = [discount**number for number in range(episodes)]
    if kind == "cumulative":
        return tuple(powers)
    if kind == "differential":
        return (*((1 - discount) * power for power in powers[:-1]), powers[-1])
    if kind == "final":
        return (*(0.0,) * (episodes - 1), 1.0)
    assert kind in ("sum", "balanced"), "a return with known weights"
    return (1.0 if kind == "sum" else episodes**-0.5,) * episodes


def learner_ceilings(environment: Environment, episodes: int, discount: float) -> dict[str, Scores]:
    """The mean score of every episode of the policy that is best for each return."""
    problems = environment.problems()
    if not problems:
        raise UserError(
            f"{environment.name} has no exact best learner. `mage ceilings` computes it for doors, "
            "bandit, mastermind and small games of OpenSpiel"
        )
    if episodes < 1 or not 0 <= discount <= 1:
        raise UserError(
            f"ceilings need at least one episode and a discount between 0 and 1, not {episodes} "
            f"episodes and a discount of {discount:g}"
        )
    return {kind: _mean(problems, episodes, kind, discount) for kind in RETURNS}


def _mean(
    problems: Sequence[tuple[float, Problem]], episodes: int, kind: str, discount: float
) -> Scores:
    """The scores of the best learner, averaged over the tasks."""
    weights = partial(return_weights, kind, discount=discount)
    budget = Budget("best learner", MAX_STATES)
    rows = [
        (share, best_learner(problem, episodes, weights, budget)) for share, problem in problems
    ]
    return tuple(sum(share * scores[n] for share, scores in rows) for n in range(episodes))


def best_learner(
    problem: Problem, episodes: int, weights: Weights, budget: Budget | None = None
) -> Scores:
    """The expected score of every episode of the learner that is best for these weights."""
    learner = _Learner(problem, [tuple(weights(n)) for n in range(1, episodes + 1)], budget)
    return learner.solve(problem.start(), episodes)


class _Learner:
    """Values of (state, episodes that remain), each computed once.

    The walk has a stack of its own, because tasks have more choices than Python has frames.
    """

    def __init__(self, problem: Problem, weights: Sequence[Scores], budget: Budget | None) -> None:
        self.problem, self.weights = problem, weights
        self.budget = budget or Budget("best learner", MAX_STATES)
        self.values: dict[tuple[Hashable, int], Scores] = {}

    def solve(self, start: Hashable, episodes: int) -> Scores:
        stack = [(start, episodes)]
        moves: dict[tuple[Hashable, int], Sequence[Sequence[Result]]] = {}
        while stack:
            here = stack[-1]
            if here in self.values:
                stack.pop()
            elif here in moves:
                self.values[here] = self._best(moves.pop(here), here[1])
            else:
                moves[here] = self._expand(*here)
                stack += self._missing(moves[here], here[1])
        return self.values[start, episodes]

    def _expand(self, state: Hashable, left: int) -> Sequence[Sequence[Result]]:
        try:
            self.budget.visit()
        except TooLarge as error:
            raise TooLarge(
                f"{error}. Choose fewer episodes, choices or arms, or no change; training does "
                "not need this figure (evaluate.ceilings = false)"
            ) from None
        return self.problem.moves(state)

    def _missing(self, moves: Sequence[Sequence[Result]], left: int) -> list[tuple[Hashable, int]]:
        """The states that may follow and have no value yet."""
        after = {(one.state, left - one.ends) for results in moves for one in results}
        return [key for key in after if key[1] > 0 and key not in self.values]

    def _best(self, moves: Sequence[Sequence[Result]], left: int) -> Scores:
        best: Scores = ()
        for results in moves:
            scores = self._expected(results, left)
            value = sum(w * s for w, s in zip(self.weights[left - 1], scores, strict=True))
            found = value, sum(scores), *scores
            best = found if _is_better(found, best) else best
        assert best, "a state has at least one move"
        return best[2:]

    def _expected(self, results: Sequence[Result], left: int) -> Scores:
        total = [0.0] * left
        for chance, score, state, ends in results:
            total[0] += chance * score
            after = self.values.get((state, left - ends), ())
            for number, later in enumerate(after, start=int(ends)):
                total[number] += chance * later
        return tuple(total)


def _is_better(one: Scores, other: Scores) -> bool:
    """Whether the first number that differs is larger; everything is better than nothing."""
    gaps = (a - b for a, b in zip(one, other, strict=bool(other)))
    return next((gap > 0 for gap in gaps if abs(gap) > _EQUAL), not other)
