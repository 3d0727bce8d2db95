"""A single-agent environment as a third party would add it: find the door of a corridor."""

from typing import ClassVar

from mage.environments.base import Environment, State


class CorridorState(State):
    def __init__(self, length: int, seed: int) -> None:
        self.length, self.place, self.steps, self.lamp = length, 0, 0, seed % 2

    def turn(self) -> int | None:
        return None if self.place == self.length or self.steps == 8 else 0

    def legal(self) -> tuple[str, ...]:
        return ("go east", "go west", "wait") if self.place else ("go east", "wait")

    def apply(self, action: str) -> None:
        self.place += {"go east": 1, "go west": -1, "wait": 0}[action]
        self.steps += 1

    def observe(self, seat: int) -> str:
        return f"You stand at {self.place}. Moves: {', '.join(self.legal())}."

    def anchor(self, seat: int) -> str:
        return str(self.place)

    def scores(self) -> tuple[float, ...]:
        return (1.0 if self.place == self.length else 0.0,)

    def recap(self, seat: int) -> str:
        return (
            f"The lamp was {'on' if self.lamp else 'off'}. You took {self.steps} steps. You "
            f"{'found' if self.scores()[0] else 'missed'} the door!"
        )


class Corridor(Environment):
    name: ClassVar[str] = "corridor"
    seats: ClassVar[int] = 1
    multi_agent: ClassVar[bool] = False
    length: int = 2
    max_turns: int = 5

    def start(self, seed: int) -> CorridorState:
        return CorridorState(self.length, seed)

    def rules(self) -> str:
        return "Find the door."

    def instance(self, seat: int) -> str:
        return "The door is in the east."

    def example_action(self) -> str:
        return "wait"

    @property
    def forfeit_score(self) -> float:
        return 0.0
