"""What bandits and doors share: an episode of a few choices, each of which pays at once."""

from abc import abstractmethod
from typing import ClassVar

from mage.environments.base import FixedLength, SingleAgentEnvironment, State, named
from mage.types import Outcome


class PaidState(State):
    """One episode. `paid` has the moves with what they paid."""

    def __init__(self, environment: "PaidChoices") -> None:
        self.environment = environment
        self.paid: list[tuple[str, float]] = []
        self.regrets: list[float] = []

    def turn(self) -> int | None:
        return 0 if len(self.paid) < self.environment.turns else None

    def legal(self) -> tuple[str, ...]:
        return self.environment.moves()

    def read(self, written: str) -> str | None:
        """Accepts `arm 3` for `3`."""
        return named(written.lower().removeprefix(self.environment.noun).strip(), self.legal())

    def observe(self, seat: int) -> str:
        last = f"{self.told(*self.paid[-1])}. " if self.paid else ""
        return f"{last}{self.anchor(seat).capitalize()}."

    def anchor(self, seat: int) -> str:
        """The number of the choice, as in rock-paper-scissors: earlier episodes count as much."""
        return f"{self.environment.length.removesuffix('s')} {len(self.paid) + 1}"

    def scores(self) -> tuple[float, ...]:
        return (round(sum(pays for _, pays in self.paid) / self.environment.turns, 12),)

    def recap(self, seat: int) -> str:
        nothing = f"No {self.environment.length.removesuffix('s')}"
        return f"{', '.join(self.told(*one) for one in self.paid) or nothing}."

    @abstractmethod
    def told(self, move: str, pays: float) -> str:
        """What the agent reads about a move and what it paid."""


class PaidChoices(FixedLength, SingleAgentEnvironment):
    """An environment whose episodes are such choices."""

    scores_every_turn: ClassVar[bool] = True
    noun: ClassVar[str]  # what is chosen: arm, door

    @property
    def turns(self) -> int:
        """The choices of an episode."""
        return int(getattr(self, self.length))

    @abstractmethod
    def moves(self) -> tuple[str, ...]:
        """All moves, the same in every turn."""

    def example_action(self) -> str:
        return "1"

    def instance(self, seat: int) -> str:
        word = self.length if self.turns > 1 else self.length.removesuffix("s")
        return f"{self.turns} {word} a game."

    def outcome(self, score: float) -> Outcome:
        """Won: every choice paid 1."""
        return "won" if score > 1 - 1e-9 else "lost"
