"""Any environment with Gymnasium's interface as text: `reset(seed=...)` and `step(action)`.

`reset` returns (observation, info), `step` returns (observation, reward, terminated, truncated,
info). The package gymnasium is needed for registered names only: an own class is named by its
dotted path (`my_lab.maze.Maze`) and needs no base class. Actions are discrete (every action has a
word) or free text. The score of an episode is the sum of its rewards.

Every episode gets a new object, so nothing is carried from one episode to the next.
"""

import math
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from mage.config.errors import UserError
from mage.config.menus import find_object, imports_foreign_code
from mage.environments._foreign import (
    ForeignCalls,
    ForeignState,
    ForeignWorld,
    check_seeds,
    missing_package,
    read_arguments,
    show_value,
    small_seed,
)
from mage.environments._gymnasium_games import KnownGame, find_known, find_relative
from mage.environments.base import named


class GymnasiumState(ForeignState):
    """One episode of a foreign environment."""

    world: "Gymnasium"

    def __init__(self, world: "Gymnasium", seed: int) -> None:
        super().__init__(world)
        self.call = ForeignCalls(world.title(), seed)
        self.env = self.call("making it", world.make)
        answer = self.call("reset", self.env.reset, seed=small_seed(seed))
        self.observation, self.info = _unpack(world, "reset", answer, 2)
        own = getattr(self.env, "action_space", None)
        self.space = getattr(self.env, "ACTION_SPACE", own)  # RAGEN's name; its base has another
        self.listed = hasattr(self.space, "n")  # numbers, as in gymnasium.spaces.Discrete
        self._look()

    def read(self, written: str) -> str | None:
        if self.listed:
            return named(written, self.words)
        contains = getattr(self.space, "contains", None)
        return written if written and (contains is None or contains(written)) else None

    def apply(self, action: str) -> None:
        number = self._all_words().index(action) if self.listed else None
        sent = action if number is None else int(getattr(self.space, "start", 0)) + number
        answer = self.call(f"step({sent!r})", self.env.step, sent)
        self.observation, reward, terminated, truncated, self.info = _unpack(
            self.world, "step", answer, 5
        )
        self.score += _read_reward(self.world, reward)
        self.moves.append(action)
        ran_out = len(self.moves) >= self.world.max_turns
        self.done = bool(terminated or truncated or ran_out)
        self._look()
        if self.done and hasattr(self.env, "close"):
            self.call.guard("close", self.env.close)

    def anchor(self, seat: int) -> str:
        """The observation, or all of the episode so far where one observation does not say it."""
        kind = self.world.anchor
        if kind == "auto":
            kind = "history" if isinstance(self.observation, str) else "observation"
        if kind == "observation":
            return self.seen[-1]
        return super().anchor(seat)

    def _look(self) -> None:
        """Note what the agent sees now and which moves it has."""
        self.seen.append(self.call.guard("the text of an observation", self._shown) or "(nothing)")
        self.words = self._legal_words()

    def _shown(self) -> str:
        return self.world.show(self.observation, self.env).strip()

    def _all_words(self) -> tuple[str, ...]:
        count = int(getattr(self.space, "n", 0))
        start = int(getattr(self.space, "start", 0))
        lookup: dict[int, str] = getattr(self.env, "ACTION_LOOKUP", {})  # RAGEN's words
        numbers = tuple(str(lookup.get(start + one, start + one)) for one in range(count))
        words = self.world.moves or (not lookup and self.world.words()) or numbers
        if len(words) != count:
            raise UserError(
                f"{self.world.title()} has {count} actions, but environments.moves names "
                f"{len(words)}: {', '.join(words)}"
            )
        return words

    def _legal_words(self) -> tuple[str, ...]:
        if not self.listed:
            return self._examples()
        words, mask = self._all_words(), self.info.get("action_mask")
        allowed = words if mask is None else [word for word, on in zip(words, mask) if on]
        return tuple(allowed) or words

    def _examples(self) -> tuple[str, ...]:
        """Typical moves of a game with free text."""
        is_text = self.space is None or isinstance(self.space, list | tuple)
        if not is_text and not hasattr(self.space, "max_length"):
            raise UserError(
                f"{self.world.title()} has the action space {self.space}: only discrete actions "
                "and text can be played. Wrap it so that its actions are a few numbers"
            )
        if self.world.moves:
            return self.world.moves
        sample = getattr(self.env, "sample_random_action", None)
        if sample is not None:
            with suppress(UserError):  # GEM's base class has it, but not every game
                return (str(self.call("sample_random_action", sample)),)
        raise UserError(
            f"{self.world.title()} takes free text: name typical moves with environments.moves"
        )


class Gymnasium(ForeignWorld):
    """Any Gymnasium environment with discrete or text actions, by its name or dotted path."""

    name: ClassVar[str] = "gymnasium"
    presentation: ClassVar[tuple[str, ...]] = ("formatter",)

    game: str = Field(
        "FrozenLake-v1",
        min_length=1,
        description="a registered name, or the dotted path of a class or function that makes it",
    )
    arguments: str = Field(
        "", description="arguments of the environment, as in is_slippery=false,map_name=8x8"
    )
    moves: tuple[str, ...] = Field(
        (),
        description="a word for every action, in order; with free text a few typical moves; "
        "empty = MAGE's words for known games, else numbers",
    )
    about: str = Field("", description="the rules, shown first; empty = known or from the class")
    formatter: str = Field(
        "",
        description="dotted path of a function (observation, environment) -> text; "
        "empty = known, else the observation as text",
    )
    anchor: Literal["auto", "observation", "history"] = Field(
        "auto",
        description="what makes two turns comparable: equal observations, or the whole episode "
        "so far; auto = history for text observations",
    )
    worst: float | None = Field(
        None, description="lowest possible score; not given = known, else 0"
    )

    @field_validator("arguments")
    @classmethod
    def _are_arguments(cls, text: str) -> str:
        read_arguments(text)
        return text

    def title(self) -> str:
        """The game in messages."""
        return f"environments.game = {self.game!r}"

    def make(self) -> Any:
        """A new foreign environment; a subclass may make its own."""
        arguments = read_arguments(self.arguments)
        if _is_path(self.game):
            return find_object(self.game)(**arguments)
        try:
            import gymnasium
        except ImportError:
            raise missing_package("gymnasium", "gymnasium") from None
        return gymnasium.make(self.game, disable_env_checker=True, **arguments)

    def known(self) -> KnownGame:
        """MAGE's words for a registered game, or for a class that extends its class."""
        if not _is_path(self.game):
            return find_known(self.game)
        return find_relative(find_object(self.game)) if imports_foreign_code() else KnownGame()

    def words(self) -> tuple[str, ...]:
        """The words of discrete actions; empty if they are numbers."""
        return self.moves or self.known().moves

    def show(self, observation: Any, env: Any) -> str:
        """What the agent reads; a subclass may write its own text."""
        if self.formatter:
            return str(find_object(self.formatter)(observation, env))
        known = self.known()
        own = known.rules and not isinstance(observation, str)
        return known.show(observation, env) if own else show_value(observation)

    def start(self, seed: int) -> GymnasiumState:
        return GymnasiumState(self, seed)

    def rules(self) -> str:
        return self.about or self.known().rules or _first_paragraph(self)

    def example_action(self) -> str:
        return (self.words() or self.start(0).legal())[0]

    @property
    def forfeit_score(self) -> float:
        return self.known().worst if self.worst is None else self.worst

    def check_data(self) -> None:
        """The environment can be made, and its seed decides the task."""
        check_seeds(self.title(), lambda seed: self.start(seed).observe(0))


def _is_path(game: str) -> bool:
    """Whether a game is named by a dotted path; registered names end with a version."""
    return "." in game and "-v" not in game


def _unpack(world: Gymnasium, what: str, answer: Any, count: int) -> Any:
    """What `reset` (2 values) and `step` (5 values) returned.

    The older form, an observation alone and four values without `truncated`, is read too.
    """
    if isinstance(answer, str) and count == 2:
        return answer, {}
    if isinstance(answer, tuple) and len(answer) == 4 and count == 5:
        answer = (*answer[:3], False, answer[3])
    if isinstance(answer, tuple) and len(answer) == count and isinstance(answer[-1], dict):
        return answer
    wanted = {2: "(observation, info)", 5: "(observation, reward, terminated, truncated, info)"}[
        count
    ]
    found = f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
    raise UserError(f"{world.title()}: {what} must return {wanted}, but it returned {found}")


def _read_reward(world: Gymnasium, reward: Any) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{world.title()}: step gave the reward {reward!r}, which is no number")
    return value


@cache
def _first_paragraph(world: Gymnasium) -> str:
    """The first paragraph of the environment's documentation, on one line."""
    env = ForeignCalls(world.title(), 0)("making it", world.make)
    text = type(getattr(env, "unwrapped", env)).__doc__ or ""
    first = text.strip().split("\n\n")[0]
    return " ".join(first.split()) or f"You act in {world.game}."
