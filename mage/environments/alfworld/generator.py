"""Generated games of all six types: a room, objects, a task and a walkthrough.

A game is a dictionary with the content of a `game.tw-pddl` file, without domain and grammar
(`export.py` adds these from the alfworld package). Splits do not overlap: the content of a game
decides its split, and games out of domain use rooms that the other splits never have.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mage.config.errors import UserError
from mage.environments.alfworld.engine import World
from mage.environments.alfworld.game_file import read_game
from mage.environments.alfworld.planner import plan
from mage.environments.alfworld.problem import TaskType
from mage.environments.alfworld.rooms import (
    APPLIANCE,
    CLOSED,
    LAMP,
    LAMP_STANDS,
    SEEN,
    THINGS,
    UNSEEN,
    Layout,
)
from mage.seeds import derive
from mage.types import Split

_TRIES = 1_000
_TEST_SHARE = 5  # one game in five is held out
_SENTENCES: dict[TaskType, tuple[str, str]] = {
    "place": ("put a {thing} in {target}.", "put some {thing} on {target}."),
    "light": ("look at {thing} under the {target}.", "examine the {thing} with the {target}."),
    "clean": ("put a clean {thing} in {target}.", "clean some {thing} and put it in {target}."),
    "heat": ("put a hot {thing} in {target}.", "heat some {thing} and put it in {target}."),
    "cool": ("put a cool {thing} in {target}.", "cool some {thing} and put it in {target}."),
    "two": ("put two {thing} in {target}.", "find two {thing} and put them in {target}."),
}
SHORTEST: dict[TaskType, int] = {
    "place": 4,
    "light": 3,
    "clean": 5,
    "heat": 6,
    "cool": 6,
    "two": 8,
}  # fewest commands
_DONE = {"clean": "cleanable", "heat": "heatable", "cool": "coolable", "slice": "sliceable"}
_STATES = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}
# The PDDL domain names these types, so every problem must declare them.
_ALWAYS = {"rtype": ("SinkBasin", "Microwave", "Fridge"), "otype": ("Knife", "ButterKnife")}


@dataclass(frozen=True, slots=True)
class Plot:
    """A game before it is written: receptacle types, and (object type, receptacle number) pairs."""

    kind: TaskType
    receptacles: tuple[str, ...]
    things: tuple[tuple[str, int], ...]
    thing: str
    target: str


def generate(
    kind: TaskType, split: Split, seed: int, *, receptacles: int, objects: int, longest: int = 10
) -> dict[str, Any]:
    """A game of this type that can be won in `longest` commands. The seed determines it."""
    for attempt in range(_TRIES):
        rng = random.Random(derive("alfworld", seed, attempt))
        plot = _draw(kind, UNSEEN if split == "ood" else SEEN, receptacles, objects, rng)
        if plot is not None and _belongs(plot, split):
            game = _write(plot, rng.choice(_SENTENCES[kind]))
            if len(game["walkthrough"]) <= longest:
                return game
    found = f"{receptacles} receptacles and {objects} objects that {longest} commands can win"
    raise UserError(
        f"no game of type {kind!r} with {found} was found: allow more of them, or leave "
        f"{kind!r} out of task_types"
    )


def _belongs(plot: Plot, split: Split) -> bool:
    """Whether a game belongs to a split.

    A hash of the content decides whether a game is held out; its wording and numbers do not matter.
    Out of domain no seen room may contain the same furniture.
    """
    if split == "ood":
        return not any(Counter(plot.receptacles) <= Counter(layout.receptacles) for layout in SEEN)
    lying = sorted((name, plot.receptacles[at]) for name, at in plot.things)
    content = repr((plot.kind, sorted(plot.receptacles), lying, plot.thing, plot.target))
    held_out = hashlib.blake2b(content.encode(), digest_size=4).digest()[0] % _TEST_SHARE == 0
    return held_out == (split == "test")


# --- Random rooms -------------------------------------------------------------------------------


def _draw(
    kind: TaskType, layouts: tuple[Layout, ...], receptacles: int, objects: int, rng: random.Random
) -> Plot | None:
    """A room with a task, or None if this draw does not fit."""
    layout = rng.choice(layouts)
    stands = [one for one in layout.receptacles if one in LAMP_STANDS and layout.has_lamps]
    needed = {"light": rng.choice(stands) if stands else None, **APPLIANCE}.get(kind, "")
    if needed is None or (needed and needed not in layout.receptacles):
        return None
    furniture = _furnish(layout, needed, receptacles, rng)
    task = _choose_task(kind, layout.things, furniture, rng)
    if task is None:
        return None
    thing, target = task
    things = _place_target(kind, thing, target, furniture, rng)
    if things is None:
        return None
    if kind == "light":
        things.append(
            (LAMP, rng.choice([at for at, one in enumerate(furniture) if one in LAMP_STANDS]))
        )
    things += _scatter(
        [name for name in layout.things if name != thing], furniture, objects - len(things), rng
    )
    return Plot(kind, tuple(furniture), tuple(things), thing, target)


def _furnish(layout: Layout, needed: str, count: int, rng: random.Random) -> list[str]:
    """`count` receptacles of a room including the needed one, in the order of the room."""
    places = range(len(layout.receptacles))
    first = [at for at in places if layout.receptacles[at] == needed][:1]
    others = [at for at in places if at not in first]
    chosen = first + rng.sample(others, min(count, len(layout.receptacles)) - len(first))
    return [layout.receptacles[at] for at in sorted(chosen)]


def _choose_task(
    kind: TaskType, things: Sequence[str], furniture: list[str], rng: random.Random
) -> tuple[str, str] | None:
    """An object type and its target (for `light`, the lamp).

    The object must also be able to start somewhere else.
    """
    able = [name for name in things if kind not in APPLIANCE or kind in THINGS[name].verbs]
    if kind == "light":
        fitting = [name for name in able if THINGS[name].fits & set(furniture)]
        return (rng.choice(fitting), LAMP) if fitting else None
    pairs = [
        (name, target)
        for name in able
        for target in sorted(THINGS[name].fits & set(furniture))
        if target != APPLIANCE.get(kind) and THINGS[name].fits & (set(furniture) - {target})
    ]
    return rng.choice(pairs) if pairs else None


def _place_target(
    kind: TaskType, thing: str, target: str, furniture: list[str], rng: random.Random
) -> list[tuple[str, int]] | None:
    """The objects of the task, none of them at the target."""
    free = [at for at, one in enumerate(furniture) if one in THINGS[thing].fits and one != target]
    return [(thing, rng.choice(free)) for _ in range(2 if kind == "two" else 1)] if free else None


def _scatter(
    things: Sequence[str], furniture: list[str], count: int, rng: random.Random
) -> list[tuple[str, int]]:
    """Objects that the task does not need."""
    others = [name for name in things if THINGS[name].fits & set(furniture)]
    drawn = [rng.choice(others) for _ in range(max(0, count))] if others else []
    return [
        (name, rng.choice([at for at, one in enumerate(furniture) if one in THINGS[name].fits]))
        for name in drawn
    ]


# --- PDDL ------------------------------------------------------------------------------


def _write(plot: Plot, sentence: str) -> dict[str, Any]:
    game: dict[str, Any] = {
        "pddl_problem": _problem(plot),
        "task": sentence.format(thing=plot.thing.lower(), target=plot.target.lower()),
        "solvable": True,
    }
    steps = plan(World(read_game(game)))
    assert steps, "a game is drawn such that its task is not done yet and can be"
    return game | {"walkthrough": steps}


_Place = tuple[str, str, str]  # internal name, type and location of a receptacle


def _problem(plot: Plot) -> str:
    """The room as a PDDL problem."""
    places = [
        (_receptacle_id(one, at), one, f"loc_bar_{at + 1}")
        for at, one in enumerate(plot.receptacles)
    ]
    things = [
        (f"{name}_bar_{number}", name, places[at]) for number, (name, at) in enumerate(plot.things)
    ]
    object_types = sorted({name for name, _ in plot.things} | set(_ALWAYS["otype"]))
    receptacle_types = sorted(set(plot.receptacles) | set(_ALWAYS["rtype"]))
    declared = [
        "agent1 - agent",
        *(f"{name}Type - otype" for name in object_types),
        *(f"{name}Type - rtype" for name in receptacle_types),
        *(f"{one} - object" for one, _, _ in things),
        *(f"{one} - receptacle" for one, _, _ in places),
        *(f"loc_bar_{number} - location" for number in range(len(places) + 1)),
    ]
    fitting = [
        f"canContain {r}Type {o}Type"
        for r in receptacle_types
        for o in object_types
        if o in THINGS and r in THINGS[o].fits
    ]
    facts = ["atLocation agent1 loc_bar_0", *_receptacle_facts(places), *_object_facts(things)]
    begin = ["(define (problem household)", "(:domain alfred)", "(:objects", *declared, ")"]
    init = ["(:init", *(f"({fact})" for fact in (*facts, *fitting)), ")"]
    return "\n".join([*begin, *init, f"(:goal {_goal(plot)})", ")"])


def _receptacle_facts(places: list[_Place]) -> Iterator[str]:
    for one, name, place in places:
        yield f"receptacleType {one} {name}Type"
        yield f"receptacleAtLocation {one} {place}"
        if name in CLOSED:
            yield f"openable {one}"


def _object_facts(things: list[tuple[str, str, _Place]]) -> Iterator[str]:
    for one, name, (where, _, place) in things:
        yield f"objectType {one} {name}Type"
        yield f"inReceptacle {one} {where}"
        yield f"objectAtLocation {one} {place}"
        verbs = () if name == LAMP else THINGS[name].verbs
        able = [fact for verb, fact in _DONE.items() if verb in verbs]
        for fact in ("toggleable" if name == LAMP else "pickupable", *able):
            yield f"{fact} {one}"


def _receptacle_id(name: str, number: int) -> str:
    """The internal name of a receptacle. TextWorld reads basins from both ends of it."""
    base = name.removesuffix("Basin")
    return f"{base}_bar_{number}_bar_{name}" if base != name else f"{name}_bar_{number}"


def _goal(plot: Plot) -> str:
    thing, target = f"{plot.thing}Type", f"{plot.target}Type"
    if plot.kind == "light":
        shines = (
            f"(objectType ?t {target}) (toggleable ?t) (isToggled ?t) (receptacleAtLocation ?r "
            "?l) (atLocation ?a ?l) (inReceptacle ?t ?r)"
        )
        holds = f"(exists (?o - object ?a - agent) (and (objectType ?o {thing}) (holds ?a ?o)))"
        return (
            "(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and "
            f"{shines})) {holds})"
        )

    def there(one: str) -> str:
        return f"(inReceptacle {one} ?r) (objectType {one} {thing}) (receptacleType ?r {target})"

    if plot.kind == "two":
        another = f"(exists (?p - object) (and (not (= ?o ?p)) {there('?p')}))"
        return f"(exists (?r - receptacle) (exists (?o - object) (and {there('?o')} {another})))"
    done = f" ({_DONE[plot.kind]} ?o) ({_STATES[plot.kind]} ?o)" if plot.kind in _STATES else ""
    return f"(exists (?r - receptacle) (exists (?o - object) (and {there('?o')}{done})))"
