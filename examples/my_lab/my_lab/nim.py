"""Nim: take any number of counters from one heap. Who takes the last counter wins.

A move names the heap and the number of counters: `A2` takes two counters from heap A.
"""

import random
from typing import ClassVar

from pydantic import Field

from mage.environments.base import Environment, State


class NimState(State):
    """One game. The seed decides the sizes of the heaps."""

    def __init__(self, heaps: int, largest: int, seed: int) -> None:
        rng = random.Random(seed)
        self.heaps = [rng.randint(1, largest) for _ in range(heaps)]
        self.moves: list[str] = []

    def turn(self) -> int | None:
        return len(self.moves) % 2 if any(self.heaps) else None

    def legal(self) -> tuple[str, ...]:
        return tuple(
            f"{chr(65 + heap)}{count}"
            for heap, size in enumerate(self.heaps)
            for count in range(1, size + 1)
        )

    def apply(self, action: str) -> None:
        self.heaps[ord(action[0]) - 65] -= int(action[1:])
        self.moves.append(action)

    def observe(self, seat: int) -> str:
        heaps = ", ".join(f"{chr(65 + heap)} has {size}" for heap, size in enumerate(self.heaps))
        return f"Heaps: {heaps}."

    def anchor(self, seat: int) -> str:
        return ",".join(map(str, self.heaps))

    def scores(self) -> tuple[float, ...]:
        return (1.0, -1.0) if len(self.moves) % 2 else (-1.0, 1.0)

    def recap(self, seat: int) -> str:
        result = "won" if self.scores()[seat] > 0 else "lost"
        return f"Moves in turn: {' '.join(self.moves)}. You {result}."


class Nim(Environment):
    name: ClassVar[str] = "nim"
    heaps: int = Field(2, ge=1, le=6, description="number of heaps")
    largest: int = Field(3, ge=1, description="largest size of a heap")

    def start(self, seed: int) -> NimState:
        return NimState(self.heaps, self.largest, seed)

    def rules(self) -> str:
        return (
            "Two players take counters in turn. A move takes one or more counters from one heap: "
            "A2 takes two counters from heap A. Who takes the last counter wins."
        )

    def instance(self, seat: int) -> str:
        return f"You move {'first' if seat == 0 else 'second'}."

    def example_action(self) -> str:
        return "A1"

    @property
    def forfeit_score(self) -> float:
        return -1.0
