"""Doors: one of K doors pays 1, the others pay nothing, and a safe box pays s.

An episode has a few choices, and its score is the mean of what they paid. The doors are the same in
all episodes of a task, so a door that was found pays in every later choice: searching costs now and
pays later. How much cost is right depends on the weights of the episodes (docs/exploration.md).

`safe` with several values draws one for each task. `map` offers information for a price: the move
`map` costs the price and shows the door that pays. `change` is the probability that the paying door
is drawn anew before an episode; a learner knows this probability.
"""

import random
from collections.abc import Hashable, Sequence
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from mage.config.errors import UserError
from mage.environments._paid_choices import PaidChoices, PaidState
from mage.environments.base import Problem, Result
from mage.seeds import derive

SAFE, MAP = "safe", "map"
Belief = tuple[float, ...]  # the probability of each door, the largest first
_DIGITS = 14  # of a probability that count: the same evidence in another order is one key


class DoorsState(PaidState):
    environment: "Doors"

    def __init__(self, environment: "Doors", door: int, safe: float) -> None:
        super().__init__(environment)
        self.door, self.safe = door, safe

    def apply(self, action: str) -> None:
        pays = self.safe if action == SAFE else float(action == str(self.door))
        if action == MAP:
            pays = -(self.environment.map or 0.0)
        self.paid.append((action, pays))
        self.regrets.append(1 - pays)

    def observe(self, seat: int) -> str:
        last = f"{self.told(*self.paid[-1])}. " if self.paid else ""
        return f"{last}The safe box pays {self.safe:g}. Choice {len(self.paid) + 1}."

    def told(self, move: str, pays: float) -> str:
        if move == MAP:
            return f"The map shows door {self.door}"
        return f"{'The safe box' if move == SAFE else f'Door {move}'} paid {pays:g}"


class Doors(PaidChoices):
    """One of K doors pays 1, a safe box pays s; the same doors in all episodes."""

    name: ClassVar[str] = "doors"
    length: ClassVar[str] = "choices"
    noun: ClassVar[str] = "door"

    arms: int = Field(4, description="doors, 2 to 100; one of them pays 1")
    safe: tuple[float, ...] = Field(
        (0.68,),
        min_length=1,
        description="what the safe box pays; of several values each task draws one",
    )
    choices: int = Field(2, ge=1, le=100, description="choices in one episode")
    map: float | None = Field(
        None,
        ge=0,
        le=100,
        description="price of a map that shows the paying door; not given = there is no map",
    )
    change: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability that the paying door is drawn anew before a later episode",
    )
    restart: Literal["same", "fresh"] = Field(
        "same", description="same = same doors in every episode; fresh = drawn anew in each"
    )

    @field_validator("arms")
    @classmethod
    def _are_several(cls, value: int) -> int:
        if not 2 <= value <= 100:
            raise UserError(
                f"arms = {value}: a search needs 2 to 100 doors. Choose a number in this range"
            )
        return value

    @field_validator("safe")
    @classmethod
    def _are_payoffs(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 <= one <= 1 for one in value):
            raise UserError(
                f"safe = {', '.join(f'{one:g}' for one in value)}: the safe box pays between "
                "0 (nothing) and 1 (what the right door pays). Give values in this range"
            )
        return tuple(sorted(set(value)))

    def start(self, seed: int) -> DoorsState:
        deal = self.stratum(seed)
        return DoorsState(self, 1 + deal % self.arms, self.safe[deal // self.arms])

    def moves(self) -> tuple[str, ...]:
        doors = tuple(str(door) for door in range(1, self.arms + 1))
        return (SAFE, *doors) if self.map is None else (SAFE, *doors, MAP)

    def rules(self) -> str:
        priced = "" if self.map is None else f" The map costs {self.map:g} and shows this door."
        return (
            f"There are {self.arms} doors and a safe box. One door pays 1, the other doors pay 0."
            f"{priced} Choose a door by its number, or safe."
        )

    def instance(self, seat: int) -> str:
        count = super().instance(seat)
        if self._changes() == 1:
            return f"{count} The paying door is drawn anew in every game."
        if self.change:
            return (
                f"{count} Before a game the paying door is drawn anew with chance {self.change:g}."
            )
        return f"{count} The same door pays in all games."

    @property
    def forfeit_score(self) -> float:
        return -(self.map or 0.0)

    def strata(self) -> int:
        """A deal is a door and a value of the safe box."""
        return self.arms * len(self.safe)

    def episode_seed(self, task_seed: int, episode: int) -> int:
        """The seed of the last change. The safe box of the first episode stays."""
        first, changes = derive(task_seed, "episode", 0), self._changes()
        drawn = [
            number
            for number in range(1, episode + 1)
            if random.Random(derive(task_seed, "change", number)).random() < changes
        ]
        if not drawn:
            return first
        later = derive(task_seed, "episode", drawn[-1])
        deal = self.stratum(first) // self.arms * self.arms + later % self.arms
        return later - self.stratum(later) + deal

    def problems(self) -> Sequence[tuple[float, "DoorsProblem"]]:
        share = 1 / len(self.safe)
        return [(share, DoorsProblem(self, safe, self._changes())) for safe in self.safe]

    def _changes(self) -> float:
        return 1.0 if self.restart == "fresh" else self.change


class DoorsProblem(Problem):
    """Doors are told apart by their probabilities only: a state is the choice and the belief."""

    def __init__(self, environment: Doors, safe: float, change: float) -> None:
        self.arms, self.choices, self.price = environment.arms, environment.choices, environment.map
        self.safe, self.change = safe, change
        self.found: Belief = (1.0, *(0.0,) * (self.arms - 1))

    def start(self) -> Hashable:
        return 0, (1 / self.arms,) * self.arms

    def moves(self, state: Hashable) -> Sequence[Sequence[Result]]:
        choice, belief = _checked(state)
        moves = [[self._result(1.0, self.safe, choice, belief)]]
        moves += [self._open(choice, belief, door) for door in _different(belief)]
        if self.price is not None:
            moves.append([self._result(1.0, -self.price, choice, self.found)])
        return moves

    def _open(self, choice: int, belief: Belief, door: int) -> list[Result]:
        chance = belief[door]
        results = [self._result(chance, 1.0, choice, self.found)] if chance > 0 else []
        if chance < 1:
            rest = (one / (1 - chance) for one in belief[:door] + belief[door + 1 :])
            empty = tuple(sorted((*rest, 0.0), reverse=True))
            results.append(self._result(1 - chance, 0.0, choice, empty))
        return results

    def _result(self, chance: float, pays: float, choice: int, belief: Belief) -> Result:
        ends = choice + 1 == self.choices
        if ends:
            belief = tuple((1 - self.change) * one + self.change / self.arms for one in belief)
        known = tuple(round(one, _DIGITS) for one in belief)
        return Result(chance, pays / self.choices, (0 if ends else choice + 1, known), ends)


def _different(belief: Belief) -> list[int]:
    """One door of each probability."""
    return [door for door in range(len(belief)) if belief[door] not in belief[:door]]


def _checked(state: Hashable) -> tuple[int, Belief]:
    assert isinstance(state, tuple), "a state of this problem"
    choice, belief = state
    return choice, belief
