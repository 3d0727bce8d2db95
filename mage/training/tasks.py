"""The training tasks of an update, drawn from the run's seed and the update's number."""

from mage.config.errors import UserError
from mage.config.recipe import Recipe
from mage.opponents.base import allocate, find, population_of
from mage.seeds import derive
from mage.types import Task

_SEATS = {"first": (0,), "second": (1,), "both": (0, 1)}


def draw_tasks(recipe: Recipe, update: int) -> list[list[Task]]:
    """One row of tasks per group. Opponents and seats occur in their exact shares."""
    pool = _pool(recipe, update)
    seats = _SEATS[recipe.play.seats][: recipe.environment().seats]
    shares = {(name, seat): share / len(seats) for name, share in pool.items() for seat in seats}
    seed = derive(recipe.run.seed, "train", update)
    groups, members = recipe.play.groups, recipe.play.members
    if recipe.play.grouping == "mixed":
        drawn = allocate(shares, groups * members, seed)
        rows = [drawn[k * members : (k + 1) * members] for k in range(groups)]
    else:
        rows = [[player] * members for player in allocate(shares, groups, seed)]
    return [
        [_task(recipe, player, derive(seed, k)) for player in row] for k, row in enumerate(rows)
    ]


def _pool(recipe: Recipe, update: int) -> dict[str, float]:
    """The shares of the opponents of an update; a world with one agent has the opponent ""."""
    pool = population_of(recipe).pool("train") or {"": 1.0}
    present = {name: share for name, share in pool.items() if not _is_absent(name, update)}
    if not present:
        raise UserError(
            f"a warm-up cannot play against {', '.join(pool)}: add another opponent to "
            "opponents.train"
        )
    if len(present) == len(pool):
        return pool
    total = sum(present.values())
    return {name: share / total for name, share in present.items()}


def _is_absent(name: str, update: int) -> bool:
    """Whether an opponent has not joined yet. Updates of a warm-up have negative numbers."""
    if not name:
        return False
    if update < 0:
        return find(name).trains_only  # a league has no copies before training
    return 0 < update <= find(name).updates_before()


def _task(recipe: Recipe, player: tuple[str, int], seed: int) -> Task:
    opponent, seat = player
    return Task(recipe.environments.name, seed, seat, opponent, "train")
