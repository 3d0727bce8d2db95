"""Fixed panels of tasks: the same for every method, checkpoint and machine.

Seeds of training tasks derive from (run seed, "train", update, k). Seeds of a panel derive from
("panel", version, name, environment, split, ...). So no panel contains a training seed. Checkpoints
are chosen on the panel "select" and reported on the panel "final"; their seeds differ.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

from mage.config.errors import UserError
from mage.config.recipe import Recipe
from mage.config.sections import Seats
from mage.environments.base import Environment
from mage.opponents.base import Population, allocate, population_of
from mage.seeds import derive
from mage.types import Split, Task

PanelName = Literal["select", "final"]

VERSION = 1
NOBODY = ""  # the opponent of a task in an environment without opponents
# Episodes whose deals are balanced. Each further episode makes the search 6 times longer.
_BALANCED_EPISODES = 3
_REJECTIONS = 30  # taken instances in a row after which a stratum counts as full
_SEATS = {"first": (0,), "second": (1,), "both": (0, 1)}


def make_panel(
    environment: Environment,
    population: Population,
    split: Split,
    *,
    size: int,
    seats: Seats = "both",
    name: PanelName = "final",
    episodes: int = 3,
    final_size: int = 0,
) -> tuple[Task, ...]:
    """`size` tasks, stratified over opponent x seat x deal.

    The order is random, so the tasks of an interrupted evaluation are a fair sample. Within an
    (opponent, seat) block, the numbers of deals in each of the first three episodes differ by at
    most one. Deals of different episodes are as independent as the block size allows. Where the
    environment has `fixed_deals`, the final panel has these.

    In a single-agent environment, a select panel has no instance of the final panel of
    `final_size` tasks. Then strata without free instances are replaced by others.
    """
    environment = environment.for_split(split)
    places = _check_arguments(environment, size, seats, episodes)
    taken: set[Hashable] = set()
    if name == "select" and final_size and not environment.multi_agent:
        taken = _final_instances(environment, population, split, final_size, episodes)
        _check_instances(environment, split, size, len(taken))
    source = _Seeds(environment, (name, environment.name, split), episodes, taken)
    if name == "final" and (fixed := environment.fixed_deals(size)) is not None:
        return _fixed_panel(environment, population.pool(split), split, fixed, places, source)
    tasks = [
        Task(environment.name, source.take(deals), seat, opponent, split)
        for seat, count in zip(places, _halves(size, len(places)), strict=True)
        for opponent, block in _blocks(environment, population, split, count, source).items()
        for deals in _deals(
            environment.strata(), block, source.positions, source.derive("deals", opponent, seat)
        )
    ]
    random.Random(source.derive("order")).shuffle(tasks)
    return tuple(tasks)


def _fixed_panel(
    environment: Environment,
    pool: Mapping[str, float],
    split: Split,
    deals: Sequence[int],
    places: tuple[int, ...],
    source: "_Seeds",
) -> tuple[Task, ...]:
    """Tasks with given deals, in order. Each opponent has its rounded share, the last the rest."""
    names = [name for name, share in pool.items() for _ in range(round(share * len(deals)))]
    names += [list(pool)[-1]] * (len(deals) - len(names))
    return tuple(
        Task(environment.name, source.take((deal,)), places[k % len(places)], names[k], split)
        for k, deal in enumerate(deals)
    )


def recipe_panel(
    recipe: Recipe, split: Split, name: PanelName, size: int | None = None
) -> tuple[Task, ...]:
    """A panel of a recipe; `size` replaces its number of tasks.

    Every world of a mix has its own panel, the same as in a recipe of this world alone. Their tasks
    are shuffled together.
    """
    environment, population = recipe.environment(), population_of(recipe)
    sizes = _sizes(environment, size or recipe.panel_size(name))
    finals = _sizes(environment, recipe.final_tasks(split))
    panels = [
        make_panel(
            world,
            population.playing(world),
            split,
            size=sizes[one],
            seats=recipe.evaluation_seats(split) if world.multi_agent else "both",
            name=name,
            episodes=recipe.evaluation_episodes(),
            final_size=finals[one],
        )
        for one, world in environment.inside().items()
    ]
    if len(panels) == 1:
        return panels[0]
    tasks = [task for panel in panels for task in panel]
    random.Random(derive("panel", VERSION, name, environment.name, split, "order")).shuffle(tasks)
    return tuple(tasks)


def _sizes(environment: Environment, size: int) -> dict[str, int]:
    """How many of `size` tasks each world gets: at least one, otherwise by its share."""
    shares = environment.shares()
    if not size:
        return dict.fromkeys(shares, 0)
    if size < len(shares):
        raise UserError(
            f"a panel of {size} tasks is too small for a mix of {len(shares)} worlds: raise "
            "evaluate.size and evaluate.final_size"
        )
    free = size - len(shares)
    exact = {name: share * free for name, share in shares.items()}
    found = {name: 1 + int(value) for name, value in exact.items()}
    rest = sorted(exact, key=lambda name: int(exact[name]) - exact[name])  # largest remainder first
    for name in rest[: size - sum(found.values())]:
        found[name] += 1
    return found


def _check_arguments(
    environment: Environment, size: int, seats: Seats, episodes: int
) -> tuple[int, ...]:
    """The seats of the agent, or an error."""
    if size < 1 or episodes < 1:
        raise UserError(
            "a panel needs at least one task and one episode, "
            f"not size = {size} and episodes = {episodes}"
        )
    if seats not in _SEATS:
        raise UserError(f"seats must be one of {', '.join(_SEATS)}, not {seats!r}")
    places = tuple(seat for seat in _SEATS[seats] if seat < environment.seats)
    if not places:
        raise UserError(
            f"{environment.name} has one seat only; a panel for seats = {seats!r} is empty"
        )
    return places


def check_panel_sizes(environment: Environment, split: Split, size: int, final_size: int) -> None:
    """Raise a ValueError if a split has too few instances for both panels."""
    sizes, finals = _sizes(environment, size), _sizes(environment, final_size)
    for name, world in environment.inside().items():
        if not world.multi_agent:
            _check_instances(world.for_split(split), split, sizes[name], finals[name])


def _check_instances(environment: Environment, split: Split, size: int, taken: int) -> None:
    count = environment.instances()
    if count is not None and size + taken > count:
        raise UserError(
            f"{environment.name} has {count} instances in split {split!r}, but the select panel "
            f"needs {size} and the final panel {taken} others; lower evaluate.size or "
            "evaluate.final_size, or set evaluate.select_split to another split"
        )


def _final_instances(
    environment: Environment, population: Population, split: Split, size: int, episodes: int
) -> set[Hashable]:
    """The instances of the final panel."""
    final = make_panel(environment, population, split, size=size, episodes=episodes)
    return {key for task in final for key in _instances_of(environment, task.seed, episodes)}


def _instances_of(environment: Environment, seed: int, episodes: int) -> set[Hashable]:
    """The instances of all episodes of a task."""
    different = 1 if environment.restart == "same" else episodes
    return {
        environment.instance_key(environment.episode_seed(seed, episode))
        for episode in range(different)
    }


def _halves(size: int, parts: int) -> list[int]:
    return [size // parts + (part < size % parts) for part in range(parts)]


def _blocks(
    environment: Environment, population: Population, split: Split, count: int, source: "_Seeds"
) -> Mapping[str, int]:
    """Number of tasks of each opponent, the same in both seats because the seed is the same."""
    if not environment.multi_agent:
        return {NOBODY: count}
    pool = population.pool(split)
    if not pool:
        raise UserError(
            f"the population has no opponents for split {split!r}; add some to opponents.{split}"
        )
    drawn = Counter(allocate(pool, count, source.derive("opponents")))
    return {opponent: drawn[opponent] for opponent in pool}


def _deals(strata: int, count: int, positions: int, seed: int) -> list[tuple[int, ...]]:
    """`count` rows of one deal per episode position, with balanced columns.

    Rows come in runs of `strata`. A run holds every deal once in every column: the second and third
    column are the first one, shifted. The shifts of successive runs go through all pairs. So
    strata^2 rows hold every pair of deals of the first two episodes once, and strata^3 rows are a
    full factorial. A random relabelling of each column hides the pattern.
    """
    rng = random.Random(seed)
    labels = [rng.sample(range(strata), strata) for _ in range(positions)]
    # Even shifts before odd ones: the pairs of episodes 2 and 3 are then almost balanced too.
    order = [*range(0, strata, 2), *range(1, strata, 2)]
    rows = []
    for row in range(count):
        run = row // strata
        shifts = (0, run % strata, order[run % strata] + run // strata)
        rows.append(
            tuple(
                label[(row + shift) % strata] for label, shift in zip(labels, shifts, strict=False)
            )
        )
    return rows


class _Seeds:
    """Task seeds by their deals. A candidate is kept until a task needs its deals.

    Seeds whose instances are `taken` are skipped. If a split has a known number of instances, the
    panel uses each of them at most once.
    """

    def __init__(
        self, environment: Environment, scope: tuple[str, ...], episodes: int, taken: set[Hashable]
    ) -> None:
        self.environment, self.scope, self.episodes = environment, scope, episodes
        self.positions = 1 if environment.restart == "same" else min(episodes, _BALANCED_EPISODES)
        self.waiting: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self.candidates = 0
        self.taken = taken
        self.full: set[tuple[int, ...]] = set()  # deals without free instances
        self.takes_once = bool(taken) and environment.instances() is not None

    def derive(self, *parts: int | str) -> int:
        return derive("panel", VERSION, *self.scope, *parts)

    def take(self, deals: tuple[int, ...]) -> int:
        """The next free seed whose first episodes have these deals; else the next deals."""
        strata = self.environment.strata()
        for shift in range(strata):
            shifted = tuple((deal + shift) % strata for deal in deals)
            if shifted not in self.full and (seed := self._find(shifted)) is not None:
                return seed
            self.full.add(shifted)
        raise UserError(
            f"{self.environment.name} has too few instances for the select panel: all instances "
            f"that were found are in the final panel ({len(self.taken)}); lower evaluate.size or "
            "evaluate.final_size"
        )

    def _find(self, deals: tuple[int, ...]) -> int | None:
        """A seed with these deals whose instances are free; None after many that are taken."""
        for _ in range(_REJECTIONS):
            seed = self._next(deals)
            if not self.taken:
                return seed
            keys = _instances_of(self.environment, seed, self.episodes)
            if not keys & self.taken:
                if self.takes_once:
                    self.taken |= keys
                return seed
        return None

    def _next(self, deals: tuple[int, ...]) -> int:
        while not self.waiting[deals]:
            seed = self.derive("task", self.candidates)
            self.candidates += 1
            self.waiting[self._deals_of(seed)].append(seed)
        return self.waiting[deals].pop(0)

    def _deals_of(self, seed: int) -> tuple[int, ...]:
        world = self.environment
        return tuple(
            world.stratum(world.episode_seed(seed, episode)) for episode in range(self.positions)
        )
