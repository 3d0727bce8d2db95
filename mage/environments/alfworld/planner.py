"""The expert: the shortest plan to the end of a game, from any situation, with full knowledge.

The six tasks are simple, so all sensible plans (which object, which receptacle, which order) are
listed and the shortest is taken.
"""

from collections.abc import Iterator
from itertools import permutations, product

from mage.environments.alfworld.engine import World

_APPLIANCE = {"clean": "sinkbasintype", "heat": "microwavetype", "cool": "fridgetype"}


def plan(world: World) -> list[str] | None:
    """The commands of the shortest plan; [] if the task is done, None if there is no plan."""
    if world.won:
        return []
    drafts = _light_drafts(world) if world.game.goal.kind == "light" else _place_drafts(world)
    return min((draft.commands for draft in drafts if draft.possible), key=len, default=None)


class _Draft:
    """A plan under construction: its position and what it opened, without executing it."""

    __slots__ = ("at", "commands", "held", "opened", "possible", "world")

    def __init__(self, world: World) -> None:
        self.world, self.at, self.held = world, world.at, world.held
        self.opened: set[int] = set()
        self.commands: list[str] = []
        self.possible = True

    def go(self, r: int) -> None:
        if self.at != self.world.game.locations[r]:
            self.commands.append(f"go to {self.world.game.receptacles[r]}")
            self.at = self.world.game.locations[r]

    def reach_into(self, r: int) -> None:
        self.go(r)
        if not self._is_open(r):
            self.commands.append(f"open {self.world.game.receptacles[r]}")
            self.opened.add(r)

    def fetch(self, o: int, source: int) -> None:
        """Hold this object, whatever is held now. It lies in `source` unless already held."""
        game = self.world.game
        if self.held == o:
            return
        if o not in game.able["take"]:
            self.possible = False
            return
        if self.held is not None:
            self._drop(game.locations[source])
        self.reach_into(source)
        self.commands.append(f"take {game.objects[o]} from {game.receptacles[source]}")
        self.held = o

    def put(self, r: int) -> None:
        game = self.world.game
        if self.held is None or game.object_types[self.held] not in game.accepts[r]:
            self.possible = False
            return
        self.reach_into(r)
        self.commands.append(f"move {game.objects[self.held]} to {game.receptacles[r]}")
        self.held = None

    def treat(self, verb: str) -> None:
        """Clean, heat or cool the held object at the nearest appliance."""
        game = self.world.game
        there = [r for r, kind in enumerate(game.receptacle_types) if kind == _APPLIANCE[verb]]
        if self.held is None or not there or self.held not in game.able[verb]:
            self.possible = False
            return
        r = min(there, key=lambda one: game.locations[one] != self.at)
        self.go(r)
        self.commands.append(f"{verb} {game.objects[self.held]} with {game.receptacles[r]}")

    def _drop(self, next_stop: int) -> None:
        """Put down the held object: here, at the next stop, or wherever it fits."""
        assert self.held is not None, "only what is held can be put down"
        game, kind = self.world.game, self.world.game.object_types[self.held]
        fitting = [r for r in range(len(game.receptacles)) if kind in game.accepts[r]]
        if fitting:
            self.put(min(fitting, key=lambda r: (self._effort(r), game.locations[r] != next_stop)))
        else:
            self.possible = False

    def _effort(self, r: int) -> int:
        return (self.world.game.locations[r] != self.at) + (not self._is_open(r))

    def _is_open(self, r: int) -> bool:
        return r in self.opened or self.world.is_open(r)


_IN_HAND = -1


def _sources(world: World, o: int) -> list[int]:
    """Where an object can be taken. In official games some are in two receptacles at once."""
    if world.held == o:
        return [_IN_HAND]
    return [r for r, content in enumerate(world.inside) if o in content]


def _place_drafts(world: World) -> Iterator[_Draft]:
    """Every choice of objects, order, sources and target receptacle."""
    game, goal = world.game, world.game.goal
    alike = [o for o, kind in enumerate(game.object_types) if kind == goal.object_type]
    for r in (r for r, kind in enumerate(game.receptacle_types) if kind == goal.target):
        there = [o for o in alike if o in world.inside[r]] if goal.kind == "two" else []
        others = [o for o in alike if o not in there]
        for chosen in permutations(others, 2 - len(there) if goal.kind == "two" else 1):
            for sources in product(*(_sources(world, o) for o in chosen)):
                yield _place_draft(world, list(zip(chosen, sources, strict=True)), r)


def _place_draft(world: World, chosen: list[tuple[int, int]], r: int) -> _Draft:
    draft, kind = _Draft(world), world.game.goal.kind
    for o, source in chosen:
        draft.fetch(o, source)
        if kind in _APPLIANCE and o not in world.done[kind]:
            draft.treat(kind)
        if (
            o not in world.inside[r] or source == r
        ):  # an object in two places stays in the second one when taken
            draft.put(r)
    return draft


def _light_drafts(world: World) -> Iterator[_Draft]:
    """Every object of the type with every lamp."""
    game, goal = world.game, world.game.goal
    lamps = [
        (o, r)
        for r, content in enumerate(world.inside)
        for o in content
        if game.object_types[o] == goal.target and o in game.able["use"]
    ]
    for o in (o for o, kind in enumerate(game.object_types) if kind == goal.object_type):
        for source, (lamp, r) in product(_sources(world, o), lamps):
            draft = _Draft(world)
            draft.fetch(o, source)
            draft.go(r)
            if lamp not in world.done["use"]:
                draft.commands.append(f"use {game.objects[lamp]}")
            yield draft
