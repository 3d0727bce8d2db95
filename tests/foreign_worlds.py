"""Environments of other people: plain classes with Gymnasium's signature, good and bad ones.

None of them imports gymnasium. `DIGITS` draws its secret from the global generator of `random`.
"""

import random
from typing import Any


class Space:
    """A discrete action space, as far as an adapter looks at it."""

    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start


class Digits:
    """Guess the digit. A guess says higher or lower."""

    action_space = Space(5, start=1)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        random.seed(seed)
        self.secret, self.turns = random.randint(1, 5), 0
        return "Guess a number from 1 to 5.", {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        random.random()  # a foreign call between two steps would change this one
        self.turns += 1
        answer = "right" if action == self.secret else "low" if action < self.secret else "high"
        return f"{action} is {answer}.", float(answer == "right"), answer == "right", False, {}


class Arms(Digits):
    """A game in the older form, as RAGEN's are: four values, and names of actions by number."""

    action_space = Space(9)  # of a base class with other actions
    ACTION_SPACE = Space(2, start=1)

    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        names = random.Random(seed).sample(("red", "blue"), 2)
        self.ACTION_LOOKUP = dict(enumerate(names, start=1))
        return f"Pull {names[0]} or {names[1]}."

    def step(self, action: int) -> Any:
        name = self.ACTION_LOOKUP[action]
        return f"You pulled {name}.", float(name == "red"), True, {"success": name == "red"}


class Served:
    """A game in the form of NeMo Gym's servers: asynchronous, and without a seed."""

    async def reset(self, metadata: dict[str, Any], session_id: str = "") -> Any:
        return "Hit or stand?", {}

    async def step(self, action: Any, metadata: dict[str, Any], session_id: str = "") -> Any:
        return None, 1.0, True, False, {}


class Echo(Digits):
    """Say the word. The move is free text."""

    action_space = None

    def step(self, action: Any) -> Any:
        return f"You said {action}.", 0.5, False, False, {}


class OfGem(Echo):
    """As games of GEM: some list their words, and not all can draw one."""

    action_space = ("up", "down")

    def sample_random_action(self) -> str:
        raise NotImplementedError


class Masked(Digits):
    def reset(self, *, seed: int | None = None) -> Any:
        return super().reset(seed=seed)[0], {"action_mask": [0, 1, 0, 1, 0]}


class IgnoresSeed(Digits):
    count = 0

    def reset(self, *, seed: int | None = None) -> Any:
        IgnoresSeed.count += 1
        return f"Round {IgnoresSeed.count}", {}


class ReturnsThree(Digits):
    def step(self, action: int) -> Any:
        return "text", 0.0, False


class OldReset(Digits):
    def reset(self, *, seed: int | None = None) -> Any:
        return 7


class Raises(Digits):
    def step(self, action: int) -> Any:
        raise KeyError("no such room")


class PaysNothingKnown(Digits):
    def step(self, action: int) -> Any:
        return "text", float("nan"), False, False, {}


def shout(observation: Any, env: Any) -> str:
    return f"{observation} {type(env).__name__}".upper()
