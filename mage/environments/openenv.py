"""A running OpenEnv server as an environment: `--environments.url=http://localhost:8000`.

One connection is one session; every episode has its own. The client speaks the WebSocket protocol
of OpenEnv's servers and needs the package websockets, not openenv. All calls have limits on seconds
and bytes. A server whose two resets with one seed give two observations is refused: members of a
group would play different tasks.
"""

import json
import math
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from mage.config.errors import UserError
from mage.environments._foreign import (
    ForeignState,
    ForeignWorld,
    check_seeds,
    missing_package,
    read_arguments,
    show_value,
    small_seed,
)
from mage.environments.base import named

if TYPE_CHECKING:
    from mage.environments._websocket import WebSocket

_CUT = " (cut)"


class OpenEnvState(ForeignState):
    """One session of the server."""

    world: "OpenEnv"

    def __init__(self, world: "OpenEnv", seed: int) -> None:
        super().__init__(world)
        self.connection = world.connect()
        self._take("reset", {"seed": small_seed(seed), **read_arguments(world.arguments)})

    def read(self, written: str) -> str | None:
        if self.listed:
            return named(written, self.words)
        return written or None

    def apply(self, action: str) -> None:
        self.moves.append(action)
        self._take("step", {**read_arguments(self.world.extra), self.world.action_field: action})
        self.done = self.done or len(self.moves) >= self.world.max_turns
        if self.done:
            self.connection.close()

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        """Send a request and read observation, reward, end and legal moves from the answer."""
        answer = self.world.ask(self.connection, kind, data)
        observation = answer["observation"]
        self.score += self.world.read_reward(answer.get("reward"))
        self.done = bool(answer.get("done", False))
        self.seen.append(self.world.show(observation))
        words = observation.get(self.world.legal_field) if self.world.legal_field else None
        self.listed = isinstance(words, list) and bool(words)
        self.words = tuple(map(str, words or ())) if self.listed else self.world.moves


class OpenEnv(ForeignWorld):
    """A running OpenEnv server, by its address."""

    name: ClassVar[str] = "openenv"
    presentation: ClassVar[tuple[str, ...]] = ("text_field", "seconds", "largest", "longest")

    url: str = Field(
        "http://localhost:8000", description="address of the server (http, https, ws or wss)"
    )
    arguments: str = Field("", description="arguments of reset besides the seed, as in level=2")
    action_field: str = Field(
        "message", min_length=1, description="field of an action for the move"
    )
    extra: str = Field("", description="other fields of every action, as in player=0")
    text_field: str = Field(
        "", description="field of the observation that the agent reads; empty = all of it"
    )
    legal_field: str = Field(
        "", description="field of the observation that lists the legal moves; empty = free text"
    )
    moves: tuple[str, ...] = Field(("hello",), min_length=1, description="a few typical moves")
    about: str = Field("", description="the rules, shown first; empty = a general sentence")
    worst: float = Field(0.0, description="lowest possible score")
    seconds: float = Field(30.0, gt=0, description="time limit of every call to the server")
    largest: int = Field(1_000_000, ge=1000, description="largest answer of the server in bytes")
    longest: int = Field(4000, ge=100, description="characters of an observation that are shown")

    @field_validator("url")
    @classmethod
    def _is_address(cls, text: str) -> str:
        if (
            urlsplit(text).scheme not in ("http", "https", "ws", "wss")
            or not urlsplit(text).hostname
        ):
            raise UserError(f"{text!r} is not an address such as http://localhost:8000")
        return text

    def connect(self) -> "WebSocket":
        """A new session."""
        try:
            from mage.environments._websocket import WebSocket
        except ImportError:
            raise missing_package("websockets", "openenv") from None
        url = urlsplit(self.url)
        scheme = {"http": "ws", "https": "wss"}.get(url.scheme, url.scheme)
        address = f"{scheme}://{url.netloc}{url.path.rstrip('/')}/ws"
        try:
            return WebSocket(address, self.seconds, self.largest)
        except ConnectionError as error:
            raise self.fault(
                f"cannot be used: {error}. Check that it runs, and environments.url"
            ) from None

    def ask(self, connection: "WebSocket", kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """The data of the server's answer, checked."""
        try:
            text = connection.ask(json.dumps({"type": kind, "data": data}))
        except ConnectionError as error:
            raise self.fault(f"failed in {kind}: {error}") from None
        answer = _parse(text)
        if isinstance(answer, dict) and answer.get("type") == "error":
            raise self.fault(f"refused {kind}: {_short(answer.get('data'))}{_advice(answer)}")
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(found, dict) or not isinstance(found.get("observation"), dict):
            raise self.fault(
                f"answered {kind} with {_short(answer)}, not with data that holds an observation"
            )
        return found

    def fault(self, what: str) -> UserError:
        """A message that names the server."""
        return UserError(f"the OpenEnv server {self.url} {what}")

    def read_reward(self, reward: Any) -> float:
        """A reward of the server; none counts 0."""
        if reward is None:
            return 0.0
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise self.fault(f"gave the reward {_short(reward)}, which is no number")
        if not math.isfinite(reward):
            raise self.fault(f"gave the reward {reward}, which is no number")
        return float(reward)

    def show(self, observation: dict[str, Any]) -> str:
        """What the agent reads."""
        if self.text_field and self.text_field not in observation:
            raise self.fault(
                f"has no field {self.text_field!r} in its observation, only "
                f"{', '.join(map(str, observation))[:200]}"
            )
        value = observation[self.text_field] if self.text_field else observation
        text = show_value(value) or "(nothing)"
        return text if len(text) <= self.longest else text[: self.longest] + _CUT

    def start(self, seed: int) -> OpenEnvState:
        return OpenEnvState(self, seed)

    def rules(self) -> str:
        return self.about or "You act in a world that answers each of your moves."

    def example_action(self) -> str:
        return self.moves[0]

    @property
    def forfeit_score(self) -> float:
        return self.worst

    def check_data(self) -> None:
        """The server answers, and the seed decides the task."""
        check_seeds(f"the OpenEnv server {self.url}", self._opening)

    def _opening(self, seed: int) -> str:
        state = self.start(seed)
        state.connection.close()
        return state.observe(0)


def _advice(answer: dict[str, Any]) -> str:
    """What to do if the server has no session left."""
    if "CAPACITY_REACHED" not in json.dumps(answer):
        return ""
    return (
        ". All members of an update play at once: raise max_concurrent_envs of the server, or "
        "lower play.groups and play.members"
    )


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    line = " ".join("".join(letter for letter in text[:400] if letter.isprintable()).split())
    return repr(line[:120])
