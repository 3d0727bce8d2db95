"""Bernoulli bandit: arms that pay 1 with unknown probabilities, the same ones in all episodes.

The probability of each arm is drawn from Beta(prior) for every task. An episode has a few pulls and
its score is the mean of what they paid. `safe` adds an arm that always pays the same. The regret of
a pull is the probability of the best arm minus that of the pulled one. Plain bandits hardly tell
the returns of MAGE and LaMer apart (docs/exploration.md); doors do.
"""

import random
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from scipy.integrate import quad
from scipy.special import betainc

from mage.config.errors import UserError
from mage.environments._paid_choices import PaidChoices, PaidState
from mage.environments.base import Problem, Result
from mage.seeds import derive

SAFE = "safe"
_EPISODES = 128  # the last digits of a seed count the episode, because play allows 100
Record = tuple[int, int]  # how often an arm paid 1, and 0


class BanditState(PaidState):
    """One episode. The same pull of the same arm has the same luck for all members of a group."""

    environment: "Bandit"

    def __init__(self, environment: "Bandit", seed: int) -> None:
        super().__init__(environment)
        self.seed, self.chances = seed, environment.chances(seed)

    def apply(self, action: str) -> None:
        expected = self._expected(action)
        before = sum(move == action for move, _ in self.paid)
        luck = random.Random(derive(self.seed, "pull", action, before)).random()
        self.paid.append((action, expected if action == SAFE else float(luck < expected)))
        self.regrets.append(max(map(self._expected, self.legal())) - expected)

    def _expected(self, move: str) -> float:
        if move == SAFE:
            return self.environment.safe or 0.0
        return self.chances[int(move) - 1]

    def told(self, move: str, pays: float) -> str:
        return f"{SAFE if move == SAFE else f'arm {move}'} paid {pays:g}"


class Bandit(PaidChoices):
    """Arms that pay 1 with unknown probabilities, the same ones in all episodes."""

    name: ClassVar[str] = "bandit"
    length: ClassVar[str] = "pulls"
    noun: ClassVar[str] = "arm"

    arms: int = Field(2, description="arms with unknown probabilities, 2 to 100")
    pulls: int = Field(3, ge=1, le=100, description="pulls in one episode")
    prior: tuple[float, float] = Field(
        (1.0, 1.0), description="a and b of Beta(a, b), the distribution of the probabilities"
    )
    safe: float | None = Field(
        None, ge=0, le=1, description="what a safe arm always pays; not given = there is none"
    )
    restart: Literal["same", "fresh"] = Field(
        "same", description="same = same arms in every episode; fresh = new arms in each"
    )

    @field_validator("prior")
    @classmethod
    def _is_positive(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 < one < 1e6 for one in value):
            raise UserError(
                f"prior = {value[0]:g}, {value[1]:g}: both numbers of a Beta distribution are "
                "above 0. Choose for example 1, 1, where all probabilities are equally likely"
            )
        return value

    @field_validator("arms")
    @classmethod
    def _are_several(cls, value: int) -> int:
        if not 2 <= value <= 100:
            raise UserError(
                f"arms = {value}: a choice needs 2 to 100 arms. Choose a number in this range"
            )
        return value

    def start(self, seed: int) -> BanditState:
        return BanditState(self, seed)

    def chances(self, seed: int) -> tuple[float, ...]:
        """The probabilities of the arms in an episode with this seed."""
        rng = random.Random(derive(seed // _EPISODES, "arms"))
        return tuple(rng.betavariate(*self.prior) for _ in range(self.arms))

    def moves(self) -> tuple[str, ...]:
        arms = tuple(str(arm) for arm in range(1, self.arms + 1))
        return arms if self.safe is None else (SAFE, *arms)

    def rules(self) -> str:
        safe = "" if self.safe is None else f" The safe arm always pays {self.safe:g}."
        return (
            f"There are {self.arms} arms. Each arm pays 1 with its own hidden probability, "
            f"else 0.{safe} Choose an arm by its number{'' if self.safe is None else ', or safe'}."
        )

    def instance(self, seat: int) -> str:
        arms = "The same arms" if self.restart == "same" else "New arms"
        return f"{super().instance(seat)} {arms} in every game."

    def episode_seed(self, task_seed: int, episode: int) -> int:
        """Episodes of a task share the arms (all but the last digits) and differ in luck."""
        first = derive(task_seed, "episode", 0 if self.restart == "same" else episode)
        return first - first % _EPISODES + episode % _EPISODES

    def restated(self, score: float) -> Mapping[str, float]:
        """The regret of a pull: what the best arm pays on average, minus the score."""
        lowest = self.safe or 0.0
        above, _ = quad(lambda x: 1 - betainc(*self.prior, x) ** self.arms, lowest, 1)
        return {"regret": lowest + above - score}

    def instance_key(self, seed: int) -> Hashable:
        return seed // _EPISODES

    def problems(self) -> Sequence[tuple[float, "BanditProblem"]]:
        return [(1.0, BanditProblem(self))]


class BanditProblem(Problem):
    """Beta posteriors: a state is the pull and the records of the arms, in any order."""

    def __init__(self, environment: Bandit) -> None:
        self.pulls, self.prior, self.safe = environment.pulls, environment.prior, environment.safe
        self.nothing: tuple[Record, ...] = ((0, 0),) * environment.arms
        self.keeps = environment.restart == "same"

    def start(self) -> Hashable:
        return 0, self.nothing

    def moves(self, state: Hashable) -> Sequence[Sequence[Result]]:
        assert isinstance(state, tuple), "a state of this problem"
        pull, records = state
        moves = [] if self.safe is None else [[self._result(1.0, self.safe, pull, records)]]
        for record in sorted(set(records)):
            paid, empty = record
            chance = (self.prior[0] + paid) / (sum(self.prior) + paid + empty)
            others = list(records)
            others.remove(record)
            won = tuple(sorted([*others, (paid + 1, empty)]))
            lost = tuple(sorted([*others, (paid, empty + 1)]))
            moves.append(
                [self._result(chance, 1.0, pull, won), self._result(1 - chance, 0.0, pull, lost)]
            )
        return moves

    def _result(self, chance: float, pays: float, pull: int, records: tuple[Record, ...]) -> Result:
        ends = pull + 1 == self.pulls
        if ends and not self.keeps:
            records = self.nothing
        return Result(chance, pays / self.pulls, (0 if ends else pull + 1, records), ends)
