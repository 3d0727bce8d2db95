"""Who sits on the other side, and in what shares.

An opponent is stationary: what it does depends on the state it sees and on the random numbers it is given, never on
earlier games. It is named in recipes by one word, with its options behind dashes: `random`, `mcts-100`, `pattern-2`.
A file of this folder holds one or more of them; nothing is registered anywhere.
"""

import importlib
import pkgutil
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from mage.environments.base import Environment, State
from mage.seeds import derive
from mage.types import Split, Task

Knowledge = Literal["exact", "sampled", "unknown"]


class Opponent(BaseModel, ABC):
    """A stationary player. Its fields are its options, in the order in which dashes name them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    plays: ClassVar[tuple[str, ...] | None] = None  # the environments it knows; None = all
    policy_is: ClassVar[Knowledge] = (
        "exact"  # how well `policy` knows it; exact ceilings need "exact"
    )

    @abstractmethod
    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        """The chance of every move it may make here; exact for scripted players, estimated for search."""

    def act(self, state: State, seat: int, rng: random.Random) -> str:
        """Its move, decided by the state and the generator alone."""
        chances = self.policy(state, seat)
        return rng.choices(tuple(chances), tuple(chances.values()))[0]

    async def think(self, state: State, seat: int, rng: random.Random) -> str:
        """What play awaits. A model as opponent overrides this and awaits its own engine, batched like everybody."""
        return self.act(state, seat, rng)


def move_rng(task: Task, environment: Environment, episode: int, move: int) -> random.Random:
    """The random numbers of one move: same task, same episode, same number of moves before it, same luck.

    An opening is part of the instance, so `restart = "same"` replays it. Every later move is new luck in every episode: what
    stays the same in a meta-episode is whom one plays, not what the other side rolls; otherwise one won game could be replayed.
    """
    seed = (
        environment.episode_seed(task.seed, episode)
        if move == 0
        else derive(task.seed, "episode", episode)
    )
    return random.Random(derive(seed, "opponent", task.opponent, move))


class Population(BaseModel):
    """Weighted pools of opponents by split; the agent is never told whom it meets."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    train: dict[str, float] = {}
    test: dict[str, float] = {}
    ood: dict[str, float] = {}

    def pool(self, split: Split) -> dict[str, float]:
        """The shares of a split, summing to 1; `test` means the training pool unless it has its own."""
        chosen = getattr(self, split) or (self.train if split == "test" else {})
        total = sum(chosen.values())
        return {name: share / total for name, share in chosen.items()} if total else {}


def allocate(pool: Mapping[str, float], count: int, seed: int) -> list[str]:
    """`count` names in proportion to their shares, as even as whole numbers allow, in random order.

    Systematic sampling: shares .3/.3/.4 of 10 give exactly 3, 3 and 4, and over many draws every share is met exactly.
    """
    rng = random.Random(seed)
    offset, edge, names = rng.random(), 0.0, []
    for name, share in pool.items():
        first = edge
        edge += share * count
        names += [name] * (_ticks_below(edge, offset) - _ticks_below(first, offset))
    names += [list(pool)[-1]] * (count - len(names))
    rng.shuffle(names)
    return names[:count]


def _ticks_below(edge: float, offset: float) -> int:
    return max(0, int(-(-(edge - offset - 1e-9) // 1)))


@cache
def find(name: str) -> Opponent:
    """The opponent behind a name such as `mcts-100` or `my_lab.bots.Tight-3`."""
    word, *options = name.split("-")
    kinds = {word: _load(word)} if "." in word else known()
    if word not in kinds:
        raise ValueError(
            f"unknown opponent {name!r}; known are {', '.join(sorted(kinds))}, with options behind dashes (mcts-100)"
        )
    kind = kinds[word]
    fields = list(kind.model_fields)
    if len(options) > len(fields):
        raise ValueError(
            f"opponent {name!r} has {len(options)} options, but {word} takes {len(fields)} ({', '.join(fields)})"
        )
    try:
        return kind.model_validate(dict(zip(fields, options, strict=False)))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"opponent {name!r}: {'.'.join(map(str, first['loc']))} = {first['input']!r}: {first['msg']}"
        ) from None


@cache
def known() -> dict[str, type[Opponent]]:
    """Every opponent of this folder by the first word of its name."""
    import mage.opponents as menu

    modules = [
        importlib.import_module(f"{menu.__name__}.{module.name}")
        for module in pkgutil.iter_modules(menu.__path__)
    ]
    kinds = [
        item
        for module in modules
        for item in vars(module).values()
        if _is_opponent(item) and item.__module__ == module.__name__
    ]
    return {kind.name: kind for kind in kinds}


def _is_opponent(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, Opponent) and "name" in vars(item)


def _load(path: str) -> type[Opponent]:
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"opponent {path!r} cannot be loaded: {error}") from None
