"""The training tasks of an update, drawn from the run's seed and the update's number."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from mage.config.recipe import Recipe
from mage.environments.base import Environment
from mage.opponents.base import Population, allocate, find, population_of
from mage.seeds import derive
from mage.types import Task

_SEATS = {"first": (0,), "second": (1,), "both": (0, 1)}


class _TaskKind(NamedTuple):
    """Tasks that differ in their seed only."""

    environment: str
    opponent: str
    seat: int


def draw_tasks(recipe: Recipe, update: int) -> list[list[Task]]:
    """One row of tasks per group. Worlds, opponents and seats occur in their exact shares."""
    shares = _shares(recipe, update)
    seed = derive(recipe.run.seed, "train", update)
    groups, members = recipe.play.groups, recipe.play.members
    if recipe.play.grouping == "mixed":
        rows = _mixed_rows(shares, groups, members, seed)
    else:
        rows = [[kind] * members for kind in allocate(shares, groups, seed)]
    return [[_task(kind, derive(seed, k)) for kind in row] for k, row in enumerate(rows)]


def _mixed_rows(
    shares: Mapping[_TaskKind, float], groups: int, members: int, seed: int
) -> list[list[_TaskKind]]:
    """Groups whose members meet different opponents, in one world."""
    worlds: dict[str, dict[_TaskKind, float]] = defaultdict(dict)
    for kind, share in shares.items():
        worlds[kind.environment][kind] = share
    counts = Counter(
        allocate({name: sum(own.values()) for name, own in worlds.items()}, groups, seed)
    )
    rows = []
    for name, own in worlds.items():
        # The shares of a single world sum to 1 already: dividing would only add rounding errors.
        total = sum(own.values()) if len(worlds) > 1 else 1.0
        within = {kind: share / total for kind, share in own.items()}
        drawn = allocate(within, counts[name] * members, seed)
        rows += [drawn[k * members : (k + 1) * members] for k in range(counts[name])]
    return rows


def _shares(recipe: Recipe, update: int) -> dict[_TaskKind, float]:
    """The share of every kind of task in an update."""
    environment, population = recipe.environment(), population_of(recipe)
    shares = environment.shares()
    found: dict[_TaskKind, float] = {}
    for name, world in environment.inside().items():
        seats = _SEATS[recipe.play.seats] if world.multi_agent else (0,)
        task_name = recipe.environments.name if world is environment else name
        for opponent, share in _pool(world, population, update).items():
            each = shares[name] * share / len(seats)
            found |= {_TaskKind(task_name, opponent, seat): each for seat in seats}
    return found


def _pool(world: Environment, population: Population, update: int) -> dict[str, float]:
    """The shares of the opponents of an update; a world with one agent has the opponent ""."""
    if not world.multi_agent:
        return {"": 1.0}
    pool = population.playing(world).pool("train")
    if update >= 0 or not any(find(name).has_weights for name in pool):
        return pool
    # Updates of a warm-up have negative numbers. No other model is loaded there.
    present = {name: share for name, share in pool.items() if not find(name).has_weights}
    present = present or {"random": 1.0}
    total = sum(present.values())
    return {name: share / total for name, share in present.items()}


def _task(kind: _TaskKind, seed: int) -> Task:
    return Task(kind.environment, seed, kind.seat, kind.opponent, "train")
