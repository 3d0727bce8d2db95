"""What all adapters to other people's environments share: random state, arguments, errors.

Foreign code often draws from the global generators of `random` and numpy. Every episode has global
states of its own, which are put in place for each call and taken out after it. So an episode does
not depend on what runs beside it, and nothing outside sees the calls. Numpy's generator is swapped
as a whole, which is 400 times faster than its state; only a second value that an odd number of
`np.random.normal` has kept is lost.
"""

import json
import random
import traceback
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.random import mtrand
from pydantic import Field

from mage.config.errors import UserError
from mage.environments.base import SingleAgentEnvironment, State
from mage.types import Outcome

Found = TypeVar("Found")
_LONGEST_RECAP = 300  # characters of the last observation
LARGEST_SEED = 2**31  # many environments pass the seed to numpy's old generator


class ForeignCalls:
    """Calls to one foreign object, with global random numbers that belong to this episode only."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.state = random.Random(seed).getstate()
        self.numpy: Any = np.random.MT19937(seed % 2**32)

    def __call__(
        self, what: str, function: Callable[..., Found], *args: Any, **named: Any
    ) -> Found:
        """The result of a call that may draw random numbers."""
        plain, numpy = random.getstate(), mtrand.get_bit_generator()
        random.setstate(self.state)
        mtrand.set_bit_generator(self.numpy)
        try:
            return self.guard(what, function, *args, **named)
        finally:
            self.state, self.numpy = random.getstate(), mtrand.get_bit_generator()
            random.setstate(plain)
            mtrand.set_bit_generator(numpy)

    def guard(self, what: str, function: Callable[..., Found], *args: Any, **named: Any) -> Found:
        """The result of a call. Its exceptions become one message that names the place."""
        try:
            return function(*args, **named)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{self.name}: {what} failed: {type(error).__name__}: {error} ({_place(error)})"
            ) from error

    def aside(self, function: Callable[..., Found], *args: Any) -> tuple[Found, bool]:
        """The result of a call, and whether it drew random numbers; they are put back."""
        state, numpy = self.state, self.numpy.state
        try:
            found = self("a trial", function, *args)
        finally:
            drew = self.state != state or not _same_position(self.numpy.state, numpy)
            if drew:
                self.state, self.numpy.state = state, numpy
        return found, drew


def _same_position(one: Any, other: Any) -> bool:
    """Whether two states of numpy's generator are equal."""
    return one["state"]["pos"] == other["state"]["pos"] and np.array_equal(
        one["state"]["key"], other["state"]["key"]
    )


def _place(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}"


def small_seed(seed: int) -> int:
    """The seed in the range that every library accepts."""
    return seed % LARGEST_SEED


def missing_package(package: str, extra: str) -> UserError:
    """The message for a package of an extra that is not installed."""
    return UserError(
        f"{package} is not installed: pip install '.[{extra}]' in the checkout of MAGE"
    )


def read_arguments(text: str) -> dict[str, Any]:
    """Keyword arguments from one line; values are JSON, or words as they are.

    A line that begins with a brace is a JSON object, for values that contain commas.

    >>> read_arguments("map_name=8x8, is_slippery=false, size=4")
    {'map_name': '8x8', 'is_slippery': False, 'size': 4}
    >>> read_arguments('{"desc": ["SF", "FG"]}')
    {'desc': ['SF', 'FG']}
    """
    if text.lstrip().startswith("{"):
        return _read_object(text)
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key.isidentifier() or key in found:
            raise UserError(
                f"{pair!r} is not an argument: write name=value with commas between, "
                "and each name only once"
            )
        found[key] = _read_value(value)
    return found


def _read_object(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError as error:
        raise UserError(f"the arguments {text!r} are not a JSON object: {error}") from None


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def show_value(value: Any) -> str:
    """An observation as text: strings as they are, numbers short, mappings as lines.

    >>> show_value({"place": np.array([1, 2]), "speed": 0.12345})
    'place: [1, 2]\\nspeed: 0.123'
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict):
        return "\n".join(f"{key}: {show_value(one)}" for key, one in value.items())
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, list | tuple):
        return f"[{', '.join(show_value(one) for one in plain)}]"
    return f"{plain:.3g}" if isinstance(plain, float) else str(plain)


def check_seeds(name: str, observe: Callable[[int], str]) -> None:
    """Refuse an environment whose two resets with one seed show two different observations.

    Members of a group would play different tasks, and the group baseline would be wrong.
    """
    for seed in (11, 12):
        first, second = observe(seed), observe(seed)
        if first != second:
            raise UserError(
                f"{name} ignores the seed: two resets with seed {seed} show "
                f"{_short(first)!r} and {_short(second)!r}. Members of a group would play "
                "different tasks. Draw all random numbers of the environment from the seed of reset"
            )


def _short(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}..."


class ForeignState(State):
    """What the states of adapters for one agent share: words, history and recap.

    `seen` has the text of every observation so far. `listed` says whether `words` are all moves, or
    only typical ones of a game with free text.
    """

    words: tuple[str, ...]
    listed: bool

    def __init__(self, world: "ForeignWorld") -> None:
        self.world = world
        self.moves: list[str] = []
        self.seen: list[str] = []
        self.score, self.done = 0.0, False

    def turn(self) -> int | None:
        return None if self.done else 0

    def legal(self) -> tuple[str, ...]:
        return self.words

    def observe(self, seat: int) -> str:
        return f"{self.seen[-1]}\nMoves: {', '.join(self.words)}." if self.listed else self.seen[-1]

    def anchor(self, seat: int) -> str:
        steps = [text for pair in zip(self.moves, self.seen[1:], strict=True) for text in pair]
        return " / ".join([self.seen[0], *steps])

    def scores(self) -> tuple[float, ...]:
        return (self.score,)

    def recap(self, seat: int) -> str:
        moves = ", ".join(self.moves) or "none"
        last = self.seen[-1][-_LONGEST_RECAP:]
        result = "succeeded" if self.world.outcome(self.score) == "won" else "did not succeed"
        return f"Your moves: {moves}.\nAt the end:\n{last}\nYou {result} (score {self.score:g})."


class ForeignWorld(SingleAgentEnvironment):
    """What adapters for one agent share: when a task is repeated, and when it is won."""

    scores_every_turn: ClassVar[bool] = True
    presentation: ClassVar[tuple[str, ...]] = ("about", "moves")

    success: float | None = Field(
        None, description="score from which an episode is won; not given = any score above 0"
    )
    restart: Literal["same", "fresh"] = Field(
        "same", description="same = one seed in all episodes of a task; fresh = a new one in each"
    )
    max_turns: int = Field(
        20, ge=1, description="replies the agent may give in one episode, illegal ones included"
    )

    def instance(self, seat: int) -> str:
        if self.restart == "same":
            return "The task is the same in every attempt."
        return "Every attempt is another task."

    def outcome(self, score: float) -> Outcome:
        won = score > 0 if self.success is None else score >= self.success
        return "won" if won else "lost"
