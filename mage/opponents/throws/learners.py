"""Fixed learners of rock-paper-scissors: exact Bayes players and rules that follow predictors.

They are references for trained agents (`mage evaluate --population`), and opponents like all
others: they see the throws of the running game only.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from pydantic import Field

from mage.environments.base import State
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissorsState, Round
from mage.opponents.base import Opponent


class _Learner(Opponent):
    """A player that makes one of the throws with the highest value."""

    plays_only: ClassVar[str] = "rock_paper_scissors"

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        assert isinstance(state, RockPaperScissorsState), "it plays rock-paper-scissors only"
        values = self.values(state, seat)
        best = [throw for throw in range(3) if values[throw] >= max(values) - 1e-9]
        return {THROWS[throw]: 1 / len(best) for throw in best}

    def values(self, state: RockPaperScissorsState, seat: int) -> Sequence[float]:
        """A value for each throw."""
        raise NotImplementedError


class Bayes(_Learner):
    """The best learner if probabilities are fixed, or depend on both last throws."""

    name: ClassVar[str] = "bayes"
    model: Literal["fixed", "pairs"] = Field(
        "fixed", description="what the opponent's probabilities depend on: nothing, or both throws"
    )
    alpha: float = Field(0.5, gt=0, le=1000, description="Dirichlet parameter of its belief")

    def values(self, state: RockPaperScissorsState, seat: int) -> Sequence[float]:
        counts = [self.alpha] * 3
        for throw in self._followed(state.rounds(seat)):
            counts[THROWS.index(throw)] += 1
        # Throw x beats throw x - 1 and loses to throw x + 1.
        return [(counts[x - 1] - counts[(x + 1) % 3]) / sum(counts) for x in range(3)]

    def _followed(self, rounds: Sequence[Round]) -> list[str]:
        """The opponent's throws in the present context so far."""
        if self.model == "fixed":
            return [other for _, other in rounds]
        return [after[1] for before, after in pairwise(rounds) if before == rounds[-1]]


class PredictorRule(_Learner):
    """A fixed rule on the records of predictors; best and vote use ten of them, all uses 24."""

    name: ClassVar[str] = "predictors"
    rule: Literal["best", "vote", "all"] = Field(
        "best",
        description="best = the highest digit of ten predictors; vote = all their digits, high "
        "ones count more; all = the same with the words that a summary shows",
    )
    sharpness: float = Field(
        1.33, gt=0, le=100, description="vote, all: a digit d counts exp(sharpness * d)"
    )

    def values(self, state: RockPaperScissorsState, seat: int) -> Sequence[float]:
        if self.rule == "all":
            return self._votes(state.predictors(seat).words)
        rows = state.predictors(seat, only_first=True).digits()
        if self.rule == "best":
            return [float(max(row)) for row in rows]
        return [sum(math.exp(self.sharpness * digit) for digit in row) for row in rows]

    def _votes(self, words: Sequence[tuple[int, int] | None]) -> list[float]:
        totals = [0.0, 0.0, 0.0]
        for throw, digit in filter(None, words):
            totals[throw] += math.exp(self.sharpness * digit)
        return totals
