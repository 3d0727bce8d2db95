"""Fixed panels of tasks: the same for every method, checkpoint and machine, and never drawn from the training stream.

Seed namespaces: training derives from (run seed, "train", update, k); a panel derives from ("panel", version, name,
environment, split, ...) and from no run. So no training seed is ever a panel's, and "select" shares no task with "final":
checkpoints are chosen on the one and reported on the other.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Literal

from mage.environments.base import Environment
from mage.opponents.base import Population, allocate
from mage.seeds import derive
from mage.types import Split, Task

Seats = Literal["first", "second", "both"]
PanelName = Literal["select", "final"]

VERSION = 1
NOBODY = ""  # the opponent of a task in a world without one
_CONTROLLED = (
    3  # episodes whose deals are balanced; a search for more would take 6 times as long for each
)
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
) -> tuple[Task, ...]:
    """`size` tasks, stratified over opponent x seat x deal, in random order (so that a cut-off run is still a fair sample).

    Within an (opponent, seat) block every deal comes equally often in each of the first three episodes, to within one task
    where the block's size is no multiple of the number of deals; deals of two episodes are as little related as that allows.
    """
    environment = environment.for_split(split)
    if size < 1 or episodes < 1:
        raise ValueError(
            f"a panel needs at least one task and one episode, not size = {size} and episodes = {episodes}"
        )
    if seats not in _SEATS:
        raise ValueError(f"seats must be one of {', '.join(_SEATS)}, not {seats!r}")
    places = tuple(seat for seat in _SEATS[seats] if seat < environment.seats)
    if not places:
        raise ValueError(
            f"{environment.name} has one seat only; a panel for seats = {seats!r} is empty"
        )
    source = _Seeds(environment, (name, environment.name, split), _positions(environment, episodes))
    tasks = [
        Task(
            environment=environment.name,
            seed=source.take(deals),
            seat=seat,
            opponent=opponent,
            split=split,
        )
        for seat, count in zip(places, _halves(size, len(places)), strict=True)
        for opponent, block in _blocks(environment, population, split, count, source).items()
        for deals in _deals(
            environment.strata(), block, source.positions, source.derive("deals", opponent, seat)
        )
    ]
    random.Random(source.derive("order")).shuffle(tasks)
    return tuple(tasks)


def _positions(environment: Environment, episodes: int) -> int:
    return 1 if environment.restart == "same" else min(episodes, _CONTROLLED)


def _halves(size: int, parts: int) -> list[int]:
    return [size // parts + (part < size % parts) for part in range(parts)]


def _blocks(
    environment: Environment, population: Population, split: Split, count: int, source: "_Seeds"
) -> Mapping[str, int]:
    """How many tasks each opponent gets; the same in both seats, since the seed is."""
    if not environment.multi_agent:
        return {NOBODY: count}
    pool = population.pool(split)
    if not pool:
        raise ValueError(
            f"the population has no opponents for split {split!r}; name some under opponents.{split}"
        )
    drawn = Counter(allocate(pool, count, source.derive("opponents")))
    return {opponent: drawn[opponent] for opponent in pool}


def _deals(strata: int, count: int, positions: int, seed: int) -> list[tuple[int, ...]]:
    """`count` rows of one deal per episode position, with balanced columns.

    Rows come in runs of `strata`, and each run holds every deal once in every column: the second and third column are the
    first one shifted. The shifts of successive runs go through all pairs, so strata^2 rows hold every pair of deals of the
    first two episodes once and strata^3 rows are a full factorial. Relabelling the columns at random hides the pattern.
    """
    rng = random.Random(seed)
    labels = [rng.sample(range(strata), strata) for _ in range(positions)]
    # Evens before odds keeps the difference of both shifts, and so the pair of episodes 2 and 3, almost even as well.
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
    """Task seeds by the deals they lead to. Every candidate is kept until its deals are asked for, so few are wasted."""

    def __init__(self, environment: Environment, scope: tuple[str, ...], positions: int) -> None:
        self.environment, self.scope, self.positions = environment, scope, positions
        self.waiting: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self.candidates = 0

    def derive(self, *parts: int | str) -> int:
        return derive("panel", VERSION, *self.scope, *parts)

    def take(self, deals: tuple[int, ...]) -> int:
        """The next seed whose first episodes get exactly these deals."""
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
