"""The opponent contract and the weighted population.

An opponent is stationary: its move depends on the state of the running episode and on the random
numbers that it is given, never on earlier episodes. A recipe names an opponent by one word with
its options after dashes: `random`, `mcts-100`, `pattern-2`. A file or folder here holds one or
more opponents; no registration is needed.

A `Family` is an open population: `dirichlet-0.5` stands for endlessly many players, and the task
draws one of them. The draw depends on the task's seed and split only. Members of a group meet the
same player in all episodes, and no player of the test split is met in training.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mage.config import returned
from mage.config.errors import UserError, first_fault
from mage.config.menus import find_item, menu
from mage.config.recipe import Recipe
from mage.environments.base import Environment, State
from mage.seeds import derive
from mage.types import Split, Task

# How well `policy` knows the player. `drawn`: a family, whose players have exact policies.
Knowledge = Literal["exact", "sampled", "unknown", "drawn"]
Choice = TypeVar("Choice")


class Opponent(BaseModel, ABC):
    """A stationary player. Its fields are its options, in the order in which dashes name them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    plays_only: ClassVar[str] = ""  # the only environment that it plays; empty = every environment
    policy_is: ClassVar[Knowledge] = "exact"  # exact ceilings need "exact"
    trains_only: ClassVar[bool] = False  # a part of a training run: it plays in no evaluation
    has_weights: ClassVar[bool] = False  # a language model plays for it, in an engine of its own

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        returned.check_class(cls, _OPPONENT)

    @classmethod
    def named(cls, name: str) -> Self:
        """The opponent with the options after the dashes of its name, as in `mcts-100`."""
        word, *options = name.split("-")
        fields = option_names(cls)
        if len(options) > len(fields):
            raise UserError(
                f"opponent {name!r} has {len(options)} options, but {word} takes {len(fields)} "
                f"({', '.join(fields)})"
            )
        try:
            return cls.model_validate(dict(zip(fields, options, strict=False)))
        except ValidationError as error:
            where, fault, value = first_fault(error)
            raise UserError(f"opponent {name!r}: {where} = {value!r}: {fault}") from None

    @classmethod
    def plays(cls, environment: Environment) -> bool:
        """Whether it can play this environment."""
        return not cls.plays_only or is_kind_of(environment, cls.plays_only)

    @classmethod
    def players(cls) -> tuple[str, ...]:
        """The names of all players, if this is a fixed population such as `roshambo`."""
        return ()

    def in_world_of(self, task: Task) -> "Opponent":
        """The player in the world of a task; only a frozen agent depends on it."""
        return self

    def copies_at_once(self) -> int:
        """Copies of the agent that play for it in an update, each with weights of its own."""
        return 0

    def model_path(self) -> str:
        """The language model that plays for it, as `model.path` names it; empty for a program."""
        return ""

    @abstractmethod
    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        """The probability of every move that it may make here; search players estimate it."""

    def act(self, state: State, seat: int, rng: random.Random) -> str:
        """Its move; depends on the state and the generator only."""
        chances = self.policy(state, seat)
        try:
            return rng.choices(tuple(chances), tuple(chances.values()))[0]
        except (IndexError, TypeError, ValueError) as error:
            raise UserError(
                f"{type(self).__name__}.policy() returned {chances!r}, but must return the "
                f"probability of every move, and one of them must be above 0 ({error})"
            ) from None

    async def think(self, state: State, seat: int, rng: random.Random) -> str:
        """The call that play awaits; a model as opponent overrides it and awaits its own engine."""
        return self.act(state, seat, rng)


_OPPONENT = {
    "policy": returned.MAPPING,
    "act": returned.TEXT,
    "think": replace(returned.TEXT, awaited=True),
    "in_world_of": returned.instance_of(Opponent),
    "copies_at_once": returned.WHOLE,
    "model_path": returned.TEXT,
    "draw": returned.instance_of(Opponent),
}


class Family(Opponent):
    """An open population. The last option, `seed`, picks one player: `dirichlet-0.5-7`."""

    policy_is: ClassVar[Knowledge] = "drawn"
    seed: int | None = Field(None, ge=0, description="picks one player; unset: the task draws it")

    def draw(self, seed: int) -> Self:
        """The player with this seed; a family whose seed is set already is that player."""
        return self if self.seed is not None else self.model_copy(update={"seed": seed})

    def player_seed(self) -> int:
        """The seed of the drawn player; an error if nobody has drawn one."""
        if self.seed is None:
            raise UserError(
                f"{self.name} is a family of players; append a seed to name one player, "
                f"for example {self.name}-...-0"
            )
        return self.seed


def sample_players(pool: Mapping[str, float], count: int) -> dict[str, float]:
    """A pool in which every family is replaced by `count` of its players, equally likely.

    The players are named by explicit seeds. Training never draws them: its seeds come from tasks.
    """
    found: dict[str, float] = {}
    for name, share in pool.items():
        opponent = find(name)
        if not isinstance(opponent, Family) or opponent.seed is not None:
            found[name] = share
            continue
        options = [str(getattr(opponent, field)) for field in option_names(type(opponent))[:-1]]
        for number in range(count):
            seed = derive("sampled player", name, number)
            found["-".join([opponent.name, *options, str(seed)])] = share / count
    return found


def is_kind_of(environment: Environment, *names: str) -> bool:
    """Whether the environment or one of its base classes has one of these names."""
    return any(vars(kind).get("name") in names for kind in type(environment).__mro__)


def fitting(environment: Environment) -> list[str]:
    """The first words of all opponents of this folder that play the environment."""
    return sorted(word for word, kind in known().items() if kind.plays(environment))


def meet(task: Task) -> Opponent:
    """The player on the other side of a task."""
    return draw_player(find(task.opponent), task)


def draw_player(opponent: Opponent, task: Task) -> Opponent:
    """The player of a family that this task meets; any other opponent is its own player.

    The split is part of the draw, so a task seed that two splits shared would still give two
    different players.
    """
    if not isinstance(opponent, Family):
        return opponent
    return _draw(opponent, task.seed, task.split)


@lru_cache(maxsize=8192)
def _draw(family: Family, seed: int, split: Split) -> Opponent:
    return family.draw(derive(seed, "drawn player", split))


def move_rng(task: Task, environment: Environment, episode: int, move: int) -> random.Random:
    """The random numbers of one move: a function of task, episode and number of moves before it.

    The opening move belongs to the instance, so `restart = "same"` replays it. Every later move
    gets new random numbers in every episode. Otherwise an agent could replay one won game.
    """
    seed = (
        environment.episode_seed(task.seed, episode)
        if move == 0
        else derive(task.seed, "episode", episode)
    )
    return random.Random(derive(seed, "opponent", task.opponent, move))


class Population(BaseModel):
    """Weighted pools of opponents by split. The agent is never told which opponent it plays."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    train: dict[str, float] = {}
    test: dict[str, float] = {}
    ood: dict[str, float] = {}

    def playing(self, world: Environment) -> "Population":
        """The opponents that play this world."""
        pools = self.model_dump()
        return Population(
            **{
                split: {name: share for name, share in pool.items() if find(name).plays(world)}
                for split, pool in pools.items()
            }
        )

    def pool(self, split: Split) -> dict[str, float]:
        """The shares of a split, which sum to 1.

        Unless it is set, `test` is the training pool without opponents that only train.
        """
        chosen: dict[str, float] = getattr(self, split) or (self.train if split == "test" else {})
        if split != "train":
            chosen = {name: share for name, share in chosen.items() if not find(name).trains_only}
        total = sum(chosen.values())
        return {name: share / total for name, share in chosen.items()} if total else {}


def allocate(pool: Mapping[Choice, float], count: int, seed: int) -> list[Choice]:
    """`count` keys in proportion to their shares, as even as possible, in random order.

    Systematic sampling: shares .3/.3/.4 of 10 give exactly 3, 3 and 4. Over many draws the mean of
    every share is exact.
    """
    rng = random.Random(seed)
    offset, edge, drawn = rng.random(), 0.0, list[Choice]()
    for choice, share in pool.items():
        first = edge
        edge += share * count
        drawn += [choice] * (_ticks_below(edge, offset) - _ticks_below(first, offset))
    drawn += [list(pool)[-1]] * (count - len(drawn))
    rng.shuffle(drawn)
    return drawn[:count]


def _ticks_below(edge: float, offset: float) -> int:
    return max(0, int(-(-(edge - offset - 1e-9) // 1)))


@cache
def find(name: str) -> Opponent:
    """The opponent with a name such as `mcts-100` or `my_lab.bots.Tight-3`."""
    opponent = find_item("opponents", name.split("-")[0]).named(name)
    assert isinstance(opponent, Opponent), "find_item checks the contract"
    return opponent


def members(population: str) -> tuple[str, ...]:
    """The players of a population: `roshambo` (all its programs), or names with commas between."""
    kinds = known()
    names = [
        one
        for name in population.split(",")
        for one in ((kinds[name].players() if name in kinds else ()) or (name,))
    ]
    for name in names:
        if isinstance(find(name), Family) and find(name).model_dump()["seed"] is None:
            raise UserError(f"{name} is a family; name players of it, for example {name}-0")
    return tuple(dict.fromkeys(names))


def option_names(kind: type[Opponent]) -> list[str]:
    """The options in the order of the dashes; a family's seed comes last."""
    return sorted(kind.model_fields, key=lambda field: field == "seed")


@cache
def known() -> dict[str, type[Opponent]]:
    """Every opponent of this folder by the first word of its name."""
    return {name: find_item("opponents", name) for name, _ in menu("opponents")}


def population_of(recipe: Recipe) -> Population:
    """The weighted pools of opponents of a recipe."""
    return Population(**recipe.opponents.model_dump())
