"""The environment contract. An Environment holds options and rules; a State holds one episode.

An environment is a class whose fields are its options. `start(seed)` returns a new state. All
randomness inside a state (deals, chance) comes from that seed, so members of a group that share a
seed get the same cards. `check` plays random games and tests the contract. `golden` writes a
play-through that a test compares with a stored file.
"""

import hashlib
import json
import random
import typing
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mage.config import returned
from mage.config.errors import UserError
from mage.seeds import derive
from mage.types import Outcome, Split, Task

SEATS = ("first", "second")


def named(written: str, legal: tuple[str, ...]) -> str | None:
    """The legal move that this text names, case ignored; None if it names none."""
    return next((word for word in legal if word.lower() == written.lower()), None)


class State(ABC):
    """One running episode. Mutable, used once, never shared.

    `regrets` has one entry per turn so far: how much worse the turn was than the best play. Only
    worlds that know this exactly fill it (Sokoban: wasted moves). None means that no play could
    succeed any more after the turn.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        returned.check_class(cls, _STATE)

    regrets: Sequence[float | None] = ()
    hides_moves: bool = False  # moves are made at the same time: one sees them when all are made

    @abstractmethod
    def turn(self) -> int | None:
        """The seat that moves next, or None when the episode is over."""

    @abstractmethod
    def legal(self) -> tuple[str, ...]:
        """The moves of the seat whose turn it is, as the words the agent writes."""

    @abstractmethod
    def apply(self, action: str) -> None:
        """Make a legal move and let chance do its part."""

    @abstractmethod
    def observe(self, seat: int) -> str:
        """What this seat sees now; never another seat's private information."""

    @abstractmethod
    def anchor(self, seat: int) -> str:
        """The plain state as this seat knows it: two turns with equal anchors face one decision."""

    @abstractmethod
    def scores(self) -> tuple[float, ...]:
        """What every seat has scored so far; final once `turn()` is None."""

    @abstractmethod
    def recap(self, seat: int) -> str:
        """The finished episode and its true outcome in a few words, as this seat knows it.

        In a world without other agents it is also called for an episode that hit the turn limit.
        """

    def read(self, written: str) -> str | None:
        """The legal move that the agent's text names, case ignored; None if it names none.

        A world whose moves cannot all be listed (free text) overrides this method. Its `legal()`
        then returns typical moves.
        """
        return named(written, self.legal())

    def refuse(self, written: str | None) -> None:  # noqa: B027 (the default is to do nothing)
        """Called when the agent's last reply named no legal move; a world may show a message."""

    def calls(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Tool calls that make sense now, each with name and arguments, in the order of an expert.

        The warm-up teaches their form, and `mage check` makes them. Play does not use them.
        """
        return ()

    def remember(self, past: "Sequence[State]") -> None:  # noqa: B027 (most experts need nothing)
        """Past episodes of the same task, for an expert that uses what a memory tells of them.

        It may be called more than once in an episode, always with the same states.
        """

    def expert(self) -> str | None:
        """The move of the world's expert, if it has one; evaluation reports the expert's score."""
        return None


def _begins_with_text(moves: Sequence[object]) -> bool:
    """Whether moves are texts, judged by the first: this runs in every turn."""
    return not moves or isinstance(moves[0], str)


_STATE = {
    "turn": returned.SEAT,
    "legal": returned.Returns(
        (tuple, list), "a tuple of moves, each a text, such as ('pass', 'bet')", _begins_with_text
    ),
    "observe": returned.TEXT,
    "anchor": returned.TEXT,
    "scores": returned.SCORES,
    "recap": returned.TEXT,
    "read": returned.TEXT_OR_NONE,
    "calls": returned.LIST,
    "expert": returned.TEXT_OR_NONE,
}


class Wording:
    """An environment in the words of the published prompts (`agent.prompts`, docs/prompts.md).

    This class takes the environment's own texts, so an environment needs no second prompt. A world
    of the paper has a subclass with the content of its published prompt. Moves have two spellings
    then: the one of the state (`State.legal`) and the one of the agent.
    """

    boards: ClassVar[int | None] = None  # latest observations in a prompt for a move; None = all
    reviewed: ClassVar[int | None] = None  # latest turns that a reflection sees; None = all

    def __init__(self, environment: "Environment") -> None:
        self.environment = environment

    def task(self, seat: int) -> str:
        """Role, rules and goal. Reflections begin with it too, so it names no answer format."""
        return f"{self.environment.rules()} {self.environment.instance(seat)}"

    def opening(self, state: State, seat: int) -> str:
        """What this seat sees when the episode begins."""
        return f"At the start:\n{self.view(state, seat)}"

    def view(self, state: State, seat: int) -> str:
        """What this seat sees after its last move, or at the end of the episode."""
        return state.recap(seat) if state.turn() is None else state.observe(seat)

    def review(self, state: State, seat: int, training: bool) -> str:
        """A view in the request for a reflection."""
        return self.view(state, seat)

    def past(self, view: str) -> str:
        """A view that is no longer the latest one."""
        return view

    def choices(self, state: State) -> str:
        """The list of possible moves; empty if the task tells them."""
        return ""

    def answer(self) -> str:
        """What to think about, what to choose and how to write it."""
        return (
            "First think step by step about the present situation. Then choose your action and "
            f"write it like this: <action>{self.environment.example_action()}</action>"
        )

    def word(self, action: str) -> str:
        """A legal move of the state as the agent writes it."""
        return action

    def words(self, state: State) -> tuple[str, ...]:
        """All legal moves as the agent writes them."""
        if type(self).word is Wording.word:  # as the state writes them
            return tuple(state.legal())
        return tuple(map(self.word, state.legal()))

    def read(self, state: State, written: str) -> str | None:
        """The legal move of the state that the agent has written; None if it is none."""
        return state.read(written)


class Result(NamedTuple):
    """What may follow a move: the score it adds, and what the learner knows afterwards.

    If the episode ends, `state` is the first state of the next one.
    """

    chance: float
    score: float
    state: Hashable
    ends: bool


def score_of(state: State, seat: int) -> float:
    """What a seat has scored so far."""
    scores = state.scores()
    if seat >= len(scores):
        raise UserError(
            f"{type(state).__name__}.scores() returned {scores!r}, but must return one number for "
            f"each seat: the {SEATS[seat]} seat has none"
        )
    return scores[seat]


class Problem(ABC):
    """A task as a perfect learner knows it. `evaluation/exact/learners.py` finds its best play."""

    @abstractmethod
    def start(self) -> Hashable:
        """What the learner knows before the first episode."""

    @abstractmethod
    def moves(self, state: Hashable) -> Sequence[Sequence[Result]]:
        """The results of every move that differs from the others; the first one wins ties."""


def turn_limit(default: int) -> Any:
    """The option `max_turns` of an environment."""
    return Field(
        default,
        ge=1,
        description="replies the agent may give in one episode, illegal ones included",
    )


class Environment(BaseModel, ABC):
    """A world and its options. A class in a file of this folder is found by the file's name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    seats: ClassVar[int] = 2
    multi_agent: ClassVar[bool] = True
    scores_every_turn: ClassVar[bool] = False  # scores() grow during the episode, not at its end
    # Options that change what the agent is shown or paid, but not the tasks. Subclasses add some.
    presentation: ClassVar[tuple[str, ...]] = ("reward_scale", "failure_reward", "anchor")
    # Deleted options with the value that is now the only one: digests of older runs stay equal.
    settled: ClassVar[Mapping[str, Any]] = {}

    restart: Literal["same", "fresh"] = Field(
        "fresh",
        description="same = the deal and the opponent's opening are replayed; "
        "fresh = same opponent and seat, new deal",
    )
    max_turns: int = turn_limit(8)
    reward_scale: float = Field(10.0, gt=0, description="task reward of an episode = scale x score")

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        returned.check_class(cls, _ENVIRONMENT)

    @field_validator("*", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any, info: ValidationInfo) -> Any:
        """Several values may be given as a text such as `1,3`, and one value as it is."""
        if typing.get_origin(cls.model_fields[info.field_name or ""].annotation) is not tuple:
            return value
        if isinstance(value, str):
            return tuple(filter(None, map(str.strip, value.split(","))))
        return (value,) if isinstance(value, int | float) else value

    @abstractmethod
    def start(self, seed: int) -> State:
        """A new state; the seed decides every deal."""

    @abstractmethod
    def rules(self) -> str:
        """The rules, the same for every task: the first thing in every prompt."""

    @abstractmethod
    def instance(self, seat: int) -> str:
        """What is particular to this task and stays fixed in a meta-episode."""

    @abstractmethod
    def example_action(self) -> str:
        """One move as the agent would write it, for the answer format."""

    @property
    @abstractmethod
    def forfeit_score(self) -> float:
        """The score of an agent that gives no legal move: at most the score of the worst loss."""

    def tools(self) -> Sequence[Callable[..., Any]]:
        """Functions that the agent may call before it acts (docs/tutorials/tools.md).

        Type hints and docstring describe them. A function whose first parameter is `self` or
        `state`, such as a method of the state's class, gets the running state.
        """
        return ()

    def forfeits_at_limit(self) -> bool:
        """Whether an agent that reaches the turn limit with an illegal reply loses the episode."""
        return True

    def inside(self) -> Mapping[str, "Environment"]:
        """The worlds of a mix by name; any other environment is its only world."""
        return {self.name: self}

    def shares(self) -> Mapping[str, float]:
        """The share of the tasks that each world has."""
        return {self.name: 1.0}

    def world_of(self, task: Task) -> "Environment":
        """The world in which a task is played."""
        return self

    def wording(self) -> Wording:
        """The words of the published prompts; an environment of its own needs none."""
        return Wording(self)

    def task_kind(self, seed: int) -> str:
        """A label of the episode with this seed for tables, such as its task type; may be empty."""
        return ""

    def variants(self) -> tuple[str, ...]:
        """First words of the kinds that results report apart, such as `1 box`; empty = no such."""
        return ()

    def check_data(self) -> None:
        """Raise ValueError if data files are missing or invalid. Runs before the model loads."""

    def for_split(self, split: Split) -> "Environment":
        """The world with the tasks of this split; itself where splits differ in opponents only."""
        return self

    def outcome(self, score: float) -> Outcome:
        return "won" if score > 0 else "lost" if score < 0 else "drawn"

    def reward(self, score: float) -> float:
        """Task reward of a finished episode (Appendix A)."""
        return self.reward_scale * score

    def strata(self) -> int:
        """The number of equally likely deals that a panel balances; 1 without chance."""
        return 1

    def stratum(self, seed: int) -> int:
        """Which of the `strata()` deals an episode with this seed gets."""
        return seed % self.strata()

    def fixed_deals(self, tasks: int) -> list[int] | None:
        """The strata of the final panel, one for each task; None = a panel balances them."""
        return None

    def instances(self) -> int | None:
        """Number of different instances of this split; None if it is not known."""
        return None

    def instance_key(self, seed: int) -> Hashable:
        """Equal for two seeds exactly when an episode has the same instance."""
        return seed

    def problems(self) -> Sequence[tuple[float, Problem]]:
        """The tasks with their shares, if the best learner can be computed; else empty."""
        return ()

    def digest(self) -> str:
        """Equal for two environments exactly when a seed gives the same task in both."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, Environment)]
        ignored = {name for kind in kinds for name in vars(kind).get("presentation", ())}
        options = {key: value for key, value in self if key not in ignored} | dict(self.settled)
        text = json.dumps([self.name, options], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def restated(self, score: float) -> Mapping[str, float]:
        """A mean score in other units, such as the guesses of Mastermind; empty without any."""
        return {}

    def episode_seed(self, task_seed: int, episode: int) -> int:
        """`same` replays one seed, `fresh` takes a new one in every episode."""
        return derive(task_seed, "episode", 0 if self.restart == "same" else episode)


_ENVIRONMENT = {
    "start": returned.instance_of(State),
    "rules": returned.TEXT,
    "instance": returned.TEXT,
    "example_action": returned.TEXT,
    "forfeit_score": returned.NUMBER,
    "tools": returned.TOOLS,
    "inside": returned.MAPPING,
    "shares": returned.MAPPING,
    "world_of": returned.instance_of(Environment),
    "wording": returned.instance_of(Wording),
    "task_kind": returned.TEXT,
    "variants": returned.LIST,
    "for_split": returned.instance_of(Environment),
    "outcome": returned.one_of(*get_args(Outcome)),
    "reward": returned.NUMBER,
    "strata": returned.WHOLE,
    "stratum": returned.WHOLE,
    "fixed_deals": returned.LIST_OR_NONE,
    "instances": returned.WHOLE_OR_NONE,
    "instance_key": returned.HASHABLE,
    "problems": returned.LIST,
    "restated": returned.MAPPING,
    "episode_seed": returned.WHOLE,
    "paid_score": returned.NUMBER,
}


class SingleAgentEnvironment(Environment):
    """An environment without opponents. The agent succeeds or fails."""

    seats: ClassVar[int] = 1
    multi_agent: ClassVar[bool] = False

    restart: Literal["same", "fresh"] = Field(
        "same", description="same = one task in all episodes; fresh = a new task in each"
    )
    failure_reward: float = Field(
        0.0,
        le=0,
        description="task reward of an episode without success, also at the turn limit; "
        "0 = scale x score",
    )

    @property
    def forfeit_score(self) -> float:
        return 0.0

    def outcome(self, score: float) -> Outcome:
        """There is no draw without another player: any score above 0 is a success."""
        return "won" if score > 0 else "lost"

    def reward(self, score: float) -> float:
        """Task reward of an episode (Appendix A: +10 for success, -10 for failure)."""
        if self.failure_reward and self.outcome(score) != "won":
            return self.failure_reward
        return self.reward_scale * self.paid_score(score)

    def paid_score(self, score: float) -> float:
        """The part of the score that is paid; an environment with partial scores overrides it."""
        return score


class FixedLength(Environment):
    """An environment whose episodes all have the same number of turns: the option `length`."""

    length: ClassVar[str]
    max_turns: int = Field(
        0, description="replies in one episode, illegal ones included; 0 = twice its turns"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_max_turns(cls, options: dict[str, Any]) -> dict[str, Any]:
        turns = str(options.get(cls.length, cls.model_fields[cls.length].default))
        if options.get("max_turns", 0) in (0, "0") and turns.isdigit():
            return options | {"max_turns": 2 * int(turns)}
        return options

    @model_validator(mode="after")
    def _can_be_finished(self) -> Self:
        turns = getattr(self, self.length)
        if self.max_turns < turns:
            raise UserError(
                f"max_turns = {self.max_turns} is less than {self.length} = {turns}: no episode "
                "could be finished. Leave max_turns out"
            )
        return self


def check(
    environment: Environment, games: int = 200, seed: int = 0, remarks: list[str] | None = None
) -> list[str]:
    """Play random games and test the contract; returns the violations, empty if there are none.

    In a mix the games are played in every world. `remarks` gets what may be intended.
    """
    if environment.name not in (worlds := environment.inside()):
        found = {name: check(world, games, seed, remarks) for name, world in worlds.items()}
        return [f"{name}: {fault}" for name, faults in found.items() for fault in faults][:20]
    faults: list[str] = []
    if not environment.rules().strip():
        faults.append("rules() is empty")
    tried, idle = Counter[str](), Counter[str]()  # by move: how often made, and without effect
    for game in range(games):
        faults += [
            f"game {game}: {fault}"
            for fault in _check_game(environment, derive(seed, "check", game), tried, idle)
        ]
    faults += [
        f"the legal move {move!r} did nothing in all {tried[move]} turns in which it was made: "
        "turn(), legal(), observe() and anchor() stayed the same"
        for move, count in idle.items()
        if count == tried[move] >= _ENOUGH
    ]
    if remarks is not None and idle:
        moves = ", ".join(move for move, _ in idle.most_common(5))
        remarks.append(
            f"{idle.total()} of {tried.total()} legal moves changed nothing ({moves}): "
            "does legal() list too many?"
        )
    return sorted(set(faults))[:20]


_ENOUGH = 3  # turns without effect after which a move counts as useless


def _check_game(
    environment: Environment, seed: int, tried: Counter[str], idle: Counter[str]
) -> list[str]:
    rng = random.Random(seed)
    state, twin = environment.start(seed), environment.start(seed)
    faults: list[str] = []
    differs: list[str] = []  # the first difference
    for _ in range(10_000):
        seat = state.turn()
        if seat is None:
            break
        legal = state.legal()
        faults += _check_turn(environment, state, seat, legal)
        differs = differs or _differences(environment, state, twin)
        follows = twin.turn() == seat and twin.legal() == legal
        if not follows or not legal or not all(isinstance(action, str) for action in legal):
            return faults + differs
        action, before = rng.choice(legal), _facts(state, seat)
        state.apply(action)
        twin.apply(action)
        tried[action] += 1
        if state.turn() == seat and _facts(state, seat) == before:
            idle[action] += 1
    else:
        return [*faults, "the episode did not end within 10,000 moves"]
    return [
        *faults,
        *_check_end(environment, state),
        *(differs or _differences(environment, state, twin)),
    ]


def _differences(environment: Environment, state: State, twin: State) -> list[str]:
    """What differs between two plays with the same seed and the same moves, of all that counts."""
    shown, again = _shown(environment, state), _shown(environment, twin)
    return [
        f"two plays with the same seed and moves differ in {name}: {_short(shown.get(name))} and "
        f"{_short(value)}. All random numbers must come from the seed of start()"
        for name, value in again.items()
        if name not in shown or not (shown[name] == value or shown[name] is value)
    ][:1]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _shown(environment: Environment, state: State) -> dict[str, object]:
    """What the agent sees of a state, or what is scored, by the method that tells it."""
    seat, seats = state.turn(), range(environment.seats)
    shown: dict[str, object] = {"turn()": seat}
    shown |= {"rules()": environment.rules(), "example_action()": environment.example_action()}
    shown["instance()"] = [environment.instance(one) for one in seats]
    if seat is None or environment.scores_every_turn:
        shown |= {"scores()": tuple(state.scores()), "regrets": tuple(state.regrets)}
    if seat is None:
        shown["recap()"] = [state.recap(one) for one in seats]
    else:
        shown |= {"legal()": tuple(state.legal()), "observe()": state.observe(seat)}
        shown |= {"anchor()": state.anchor(seat), "calls()": list(state.calls())}
    return shown | _worded(environment.wording(), state, seat)


def _worded(wording: Wording, state: State, seat: int | None) -> dict[str, object]:
    """What the agent sees in the words of a user's own `Wording`."""
    if not returned.is_outside(type(wording)):
        return {}
    viewer = 0 if seat is None else seat
    worded: dict[str, object] = {"Wording.task()": wording.task(viewer)}
    worded["Wording.view()"] = wording.view(state, viewer)
    worded["Wording.review()"] = wording.review(state, viewer, False)
    return worded | ({} if seat is None else {"Wording.choices()": wording.choices(state)})


def _facts(state: State, seat: int) -> tuple[object, ...]:
    """What a move can change in the eyes of the player who made it."""
    return state.legal(), state.observe(seat), state.anchor(seat)


def _check_turn(
    environment: Environment, state: State, seat: int, legal: tuple[str, ...]
) -> list[str]:
    faults = []
    if not 0 <= seat < environment.seats:
        faults.append(f"turn() returned seat {seat}, but there are {environment.seats} seats")
    if not legal or len(set(legal)) != len(legal):
        faults.append(f"legal() must return at least one move and no duplicates, not {legal}")
    if not all(map(_is_plain, legal)):
        faults.append(
            f"a move must be plain text without spaces at its ends and without '<': {legal}"
        )
    if not state.observe(seat).strip():
        faults.append("observe() is empty")
    return faults


def _is_plain(action: object) -> bool:
    return isinstance(action, str) and action == action.strip() != "" and "<" not in action


def _check_end(environment: Environment, state: State) -> list[str]:
    scores = state.scores()
    faults = []
    if len(scores) != environment.seats:
        faults.append(f"scores() has {len(scores)} entries for {environment.seats} seats")
    if any(score < environment.forfeit_score for score in scores):
        faults.append(
            f"a score of {min(scores)} is below forfeit_score {environment.forfeit_score}"
        )
    if any(not state.recap(seat).strip() for seat in range(environment.seats)):
        faults.append("recap() is empty")
    return faults


def golden(environment: Environment, games: int = 3, seed: int = 0) -> str:
    """A play-through as text: every observation, move and result of a few random games."""
    if environment.name not in (worlds := environment.inside()):
        return "\n".join(golden(world, games, seed) for world in worlds.values())
    lines = [f"# {environment.name}", environment.rules(), ""]
    for game in range(games):
        rng = random.Random(derive(seed, "golden", game))
        state = environment.start(derive(seed, "golden", game))
        lines.append(f"## game {game}")
        while (seat := state.turn()) is not None:
            action = rng.choice(state.legal())
            lines += [
                f"[{SEATS[seat]}] {state.observe(seat)}",
                f"anchor {state.anchor(seat)!r}, legal {', '.join(state.legal())} -> {action}",
            ]
            state.apply(action)
        lines += [
            f"scores {state.scores()}",
            *(f"[{SEATS[seat]}] {state.recap(seat)}" for seat in range(environment.seats)),
            "",
        ]
    return "\n".join(lines)
