"""The household as an engine: what there is (`Game`, shared and never changed) and what has been done to it (`World`).

Text, admissible commands and the test for success are those of TextWorld on the same game file, peculiarities included:
objects are listed in the order of their internal names, so numbers fall; an object can be examined only while it is held;
`look` in the middle of the room sees nothing; `use` turns a lamp on and never off; what was carried from one receptacle to another at the
same place is seen "next to it"; heating, cooling and cleaning need no open door.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from mage.environments.alfworld.problem import Goal, Problem, read_problem

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
NOTHING_HAPPENS = "Nothing happens."
IDLE = (
    "examine",
    "help",
    "inventory",
    "look",
)  # commands that change nothing begin with these words
KEYS = ("pddl_problem", "walkthrough")  # what a game file cannot do without
_HELP = "You can look, examine, go to, open, close, take, move, use, clean, heat, cool and slice things; inventory tells what you carry."
_TASK = re.compile(r'"(Your task is to: (?:[^"\\]|\\.)*)"')
# Games answer `help` in one of two ways: in the action itself, or through a rule that it names.
_HELP_TEXTS = (
    re.compile(r'"help\.feedback"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*"((?:[^"\\]|\\.)*)"'),
    re.compile(r'action\s+help\s*\{[^}]*?feedback\s*::\s*"((?:[^"\\]|\\.)*)"'),
)
_APPLIANCES = {"sinkbasintype": "clean", "microwavetype": "heat", "fridgetype": "cool"}
_KNIVES = ("knifetype", "butterknifetype")

Action = tuple[str, int, int]  # a verb, and two things by number (-1 = none)


@dataclass(frozen=True)
class Game:
    """One game, all states of it: things are numbers in the order of their internal names.

    `inside[r]` are the objects that receptacle r holds at first, `places[o]` the locations an object is said to be at, `able[verb]`
    the objects that it works on, `accepts[r]` the types that r may hold.
    """

    task: str
    help: str
    goal: Goal
    walkthrough: tuple[str, ...]
    objects: tuple[str, ...]
    object_types: tuple[str, ...]
    receptacles: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    locations: tuple[int, ...]  # of the receptacles
    start: int
    openable: frozenset[int]
    opened: frozenset[int]
    inside: tuple[tuple[int, ...], ...]
    places: tuple[frozenset[int], ...]
    able: Mapping[str, frozenset[int]]
    done: Mapping[str, frozenset[int]]  # verb -> objects that it was done to before the game
    accepts: tuple[frozenset[str], ...]
    held_in: Mapping[int, tuple[int, ...]]  # an object that holds others -> those

    @cached_property
    def here(self) -> dict[int, tuple[int, ...]]:
        """The receptacles of every location."""
        return {
            place: tuple(r for r, where in enumerate(self.locations) if where == place)
            for place in {self.start, *self.locations}
        }

    @cached_property
    def ways(self) -> dict[int, dict[str, Action]]:
        """The commands that lead away from every location, and those that always work."""
        always: dict[str, Action] = {word: (word, -1, -1) for word in ("help", "inventory", "look")}
        ways = [
            (f"go to {name}", ("go", -1, r), self.locations[r])
            for r, name in enumerate(self.receptacles)
        ]
        return {
            place: always | {command: action for command, action, end in ways if end != place}
            for place in self.here
        }

    @cached_property
    def knives(self) -> frozenset[int]:
        return frozenset(o for o, kind in enumerate(self.object_types) if kind in _KNIVES)


class World:
    """A running game. Small: it holds what differs from its `Game` only."""

    __slots__ = ("_commands", "at", "done", "game", "gone", "held", "inside", "moved", "opened")

    def __init__(self, game: Game) -> None:
        self.game = game
        self.at = game.start
        self.held: int | None = None
        self.opened = game.opened
        self.inside = game.inside
        self.done = game.done
        self.moved: dict[
            int, frozenset[int]
        ] = {}  # object -> locations, where they are no longer those of the game
        self.gone: frozenset[tuple[int, int]] = (
            frozenset()
        )  # (object, receptacle it was taken from)
        self._commands: dict[str, Action] | None = None

    def copy(self) -> "World":
        """The same situation, to try something out in."""
        twin = World(self.game)
        for name in ("at", "held", "opened", "inside", "done", "gone"):
            setattr(twin, name, getattr(self, name))
        twin.moved = dict(self.moved)
        return twin

    # --- What can be done ------------------------------------------------------------------------------------------

    @property
    def commands(self) -> dict[str, Action]:
        """The admissible commands and what each means, in no order."""
        if self._commands is None:
            self._commands = self._find_commands()
        return self._commands

    def admissible(self) -> list[str]:
        return sorted(self.commands)

    def _find_commands(self) -> dict[str, Action]:
        game, held = self.game, self.held
        found = game.ways[self.at].copy()
        for r in game.here[self.at]:
            name = game.receptacles[r]
            found[f"examine {name}"] = ("examine receptacle", -1, r)
            if r in game.openable:
                found[f"close {name}" if r in self.opened else f"open {name}"] = (
                    "close" if r in self.opened else "open",
                    -1,
                    r,
                )
            for o in self.inside[r]:
                if o in game.able["use"]:
                    found[f"use {game.objects[o]}"] = ("use", o, r)
            if held is None:
                self._add_takes(found, r)
            else:
                self._add_uses(found, held, r)
        if held is not None:
            found[f"examine {game.objects[held]}"] = ("examine object", held, -1)
            if held in game.knives:
                for o in game.able["slice"]:
                    if self.at in self.moved.get(o, game.places[o]):
                        found[f"slice {game.objects[o]} with {game.objects[held]}"] = (
                            "slice",
                            o,
                            held,
                        )
        return found

    def _add_takes(self, found: dict[str, Action], r: int) -> None:
        if self.is_open(r):
            for o in self.inside[r]:
                if o in self.game.able["take"]:
                    found[f"take {self.game.objects[o]} from {self.game.receptacles[r]}"] = (
                        "take",
                        o,
                        r,
                    )

    def _add_uses(self, found: dict[str, Action], held: int, r: int) -> None:
        game = self.game
        if self.is_open(r) and game.object_types[held] in game.accepts[r]:
            found[f"move {game.objects[held]} to {game.receptacles[r]}"] = ("move", held, r)
        verb = _APPLIANCES.get(game.receptacle_types[r])
        if verb is not None and held in game.able[verb]:
            found[f"{verb} {game.objects[held]} with {game.receptacles[r]}"] = (verb, held, r)

    def is_open(self, r: int) -> bool:
        """Whether one can reach into it."""
        return r not in self.game.openable or r in self.opened

    # --- Doing it --------------------------------------------------------------------------------------------------

    def step(self, command: str) -> str:
        """Do it if it is admissible; the answer is what TextWorld says, "Nothing happens." to anything else."""
        action = self.commands.get(command.strip())
        if action is None:
            return NOTHING_HAPPENS
        self._do(action)
        return self._answer(action)

    def _do(self, action: Action) -> None:
        verb, o, r = action
        if verb == "go":
            self.at = self.game.locations[r]
        elif verb == "open":
            self.opened = self.opened | {r}
        elif verb == "close":
            self.opened = self.opened - {r}
        elif verb == "take":
            self._take(o, r)
        elif verb == "move":
            self._put(o, r)
        elif verb in ("use", "clean", "heat", "cool", "slice"):
            undone = {"heat": "cool", "cool": "heat"}.get(verb)
            changed = {verb: self.done[verb] | {o}} | (
                {undone: self.done[undone] - {o}} if undone else {}
            )
            self.done = {**self.done, **changed}
        else:
            return
        self._commands = None

    def _take(self, o: int, r: int) -> None:
        self.held = o
        self._fill(r, tuple(one for one in self.inside[r] if one != o))
        self.moved[o] = self.moved.get(o, self.game.places[o]) - {self.at}
        self.gone = self.gone | {(o, r)}

    def _put(self, o: int, r: int) -> None:
        self.held = None
        self._fill(r, tuple(sorted({*self.inside[r], o})))
        self.moved[o] = self.moved.get(o, self.game.places[o]) | {self.at}
        self.gone = self.gone - {(o, r)}

    def _fill(self, r: int, content: tuple[int, ...]) -> None:
        self.inside = (*self.inside[:r], content, *self.inside[r + 1 :])

    # --- What is said ----------------------------------------------------------------------------------------------

    def introduction(self) -> str:
        seen = self._look() if self.game.here[self.at] else _in_the_middle(self.game.receptacles)
        return f"{BANNER}\n\n{seen}\n\n{self.game.task}"

    def _answer(self, action: Action) -> str:
        verb, o, r = action
        game = self.game
        if verb == "go":
            return f"You arrive at {game.receptacles[r]}. {self._examine_receptacle(r)}"
        if verb == "open":
            return f"You open the {game.receptacles[r]}. {self._examine_receptacle(r)}"
        if verb == "close":
            return f"You close the {game.receptacles[r]}."
        if verb == "take":
            return f"You pick up the {game.objects[o]} from the {game.receptacles[r]}."
        if verb == "move":
            return f"You move the {game.objects[o]} to the {game.receptacles[r]}."
        if verb == "use":
            return f"You turn on the {game.objects[o]}."
        if verb == "slice":
            return f"You sliced the {game.objects[o]} with the {game.objects[r]}."
        if verb in ("clean", "heat", "cool"):
            return f"You {verb} the {game.objects[o]} using the {game.receptacles[r]}."
        return self._observe(verb, o, r)

    def _observe(self, verb: str, o: int, r: int) -> str:
        """Answers to commands that change nothing."""
        if verb == "look":
            return self._look()
        if verb == "help":
            return self.game.help
        if verb == "inventory":
            return (
                "You are not carrying anything."
                if self.held is None
                else f"You are carrying: a {self.game.objects[self.held]}."
            )
        return (
            self._examine_receptacle(r) if verb == "examine receptacle" else self._examine_object(o)
        )

    def _look(self) -> str:
        here = self.game.here[self.at]
        if not here:
            return _in_the_middle(())
        floor = sorted(
            (o, r)
            for o, r in self.gone
            if r in here and self.at in self.moved.get(o, self.game.places[o])
        )
        return f"You are facing the {_listed(self.game.receptacles[r] for r in here)}. Next to it, you see {_listed(self._a(o) for o, _ in floor)}."

    def _examine_receptacle(self, r: int) -> str:
        name, content = self.game.receptacles[r], _listed(self._a(o) for o in self.inside[r])
        if r not in self.game.openable:
            return f"On the {name}, you see {content}."
        return (
            f"The {name} is open. In it, you see {content}."
            if r in self.opened
            else f"The {name} is closed."
        )

    def _examine_object(self, o: int) -> str:
        name = self.game.objects[o]
        if o in self.game.held_in:
            return f"This is a normal {name}. In it, you see {_listed(self._a(one) for one in self.game.held_in[o])}."
        clean, hot, cool, sliced = (
            o in self.done[verb] for verb in ("clean", "heat", "cool", "slice")
        )
        warmth = "hot" if hot else ("cool" if clean or sliced else "cold") if cool else ""
        words = " and ".join(word for word in (warmth, "clean" if clean else "") if word)
        if words or sliced:
            return f"This is a {' '.join(word for word in (words, 'sliced' if sliced else '', name) if word)}."
        return (
            f"This {name} is on."
            if o in self.done["use"]
            else f"There's nothing special about {name}."
        )

    def _a(self, o: int) -> str:
        return f"a {self.game.objects[o]}"

    # --- Whether it is done ----------------------------------------------------------------------------------------

    @property
    def won(self) -> bool:
        game, goal = self.game, self.game.goal
        if goal.kind == "light":
            return (
                self.held is not None
                and game.object_types[self.held] == goal.object_type
                and any(self.shines(o) for o in self.done["use"])
            )
        done = self.done.get(goal.kind)
        wanted = 2 if goal.kind == "two" else 1
        for r, kind in enumerate(game.receptacle_types):
            if kind == goal.target:
                fitting = sum(
                    game.object_types[o] == goal.object_type and (done is None or o in done)
                    for o in self.inside[r]
                )
                if fitting >= wanted:
                    return True
        return False

    def shines(self, lamp: int) -> bool:
        """Whether a lamp of the goal's type stands where the agent does; one that was used is on for good."""
        return self.game.object_types[lamp] == self.game.goal.target and any(
            lamp in self.inside[r] for r in self.game.here[self.at]
        )


def _in_the_middle(receptacles: Sequence[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {_listed(f'a {name}' for name in receptacles)}."


def _listed(words: Iterable[str]) -> str:
    """As TextWorld lists: a comma stands before "and" even between two."""
    *first, last = [*words] or ["nothing"]
    return f"{', '.join(first)}, and {last}" if first else last


# --- Reading a game ----------------------------------------------------------------------------------------------------


def read_game(data: Mapping[str, Any]) -> Game:
    """The game behind the content of a `game.tw-pddl` file, or behind one of our own (with `task` instead of a grammar)."""
    missing = [key for key in KEYS if key not in data] + (
        [] if "task" in data or "grammar" in data else ["grammar"]
    )
    if missing:
        raise ValueError(f"a game needs {', '.join(missing)}")
    problem = read_problem(_text(data, "pddl_problem"))
    walkthrough = data["walkthrough"]
    if not isinstance(walkthrough, (list, tuple)) or not all(
        isinstance(command, str) for command in walkthrough
    ):
        raise ValueError("a game's walkthrough must be a list of commands")
    task, told = _read_words(data)
    return _build(problem, task, told, tuple(walkthrough))


def _text(data: Mapping[str, Any], key: str) -> str:
    if not isinstance(data[key], str):
        raise ValueError(f"a game's {key} must be text")
    return str(data[key])


def _read_words(data: Mapping[str, Any]) -> tuple[str, str]:
    """The sentence with the task, and the answer to `help`. Both stand in a game's own grammar."""
    if "task" in data:
        return f"Your task is to: {_text(data, 'task')}", _HELP
    grammar = _text(data, "grammar")
    task = _TASK.search(grammar)
    if task is None:
        raise ValueError("a game's grammar must hold the sentence 'Your task is to: ..'")
    told = next((found[1] for pattern in _HELP_TEXTS if (found := pattern.search(grammar))), _HELP)
    try:
        return json.loads(f'"{task[1]}"'), told.replace("\\n", "\n").lstrip()
    except json.JSONDecodeError:
        raise ValueError("the sentence with the task in a game's grammar cannot be read") from None


_ABLE = {
    "take": "pickupable",
    "use": "toggleable",
    "clean": "cleanable",
    "heat": "heatable",
    "cool": "coolable",
    "slice": "sliceable",
}
_DONE = {
    "use": "istoggled",
    "clean": "isclean",
    "heat": "ishot",
    "cool": "iscool",
    "slice": "issliced",
}


def _build(problem: Problem, task: str, told: str, walkthrough: tuple[str, ...]) -> Game:
    facts, kinds = problem.facts, problem.kinds
    names = _name_things(sorted({name for rows in facts.values() for row in rows for name in row}))
    objects, receptacles, locations = (
        [one for one in names if kinds[one] == kind]
        for kind in ("object", "receptacle", "location")
    )
    number = {
        one: at for group in (objects, receptacles, locations) for at, one in enumerate(group)
    }
    where, types = (
        _map(facts["receptacleatlocation"]),
        _map([*facts["objecttype"], *facts["receptacletype"]]),
    )
    if not facts["atlocation"] or any(r not in where for r in receptacles):
        raise ValueError("the PDDL problem must say where the agent and all receptacles are")
    those = {
        fact: frozenset(number[row[0]] for row in rows)
        for fact, rows in facts.items()
        if rows and len(rows[0]) == 1
    }
    pairs = {
        fact: [(number[a], number[b]) for a, b in facts[fact]]
        for fact in ("inreceptacle", "objectatlocation", "inreceptacleobject")
    }
    inside, around, holders = (
        _gather(pairs["inreceptacle"]),
        pairs["objectatlocation"],
        _gather(pairs["inreceptacleobject"]),
    )
    places = _gather([(place, o) for o, place in around])
    table = frozenset(facts["cancontain"])
    return Game(
        task=task,
        help=sys.intern(told),
        goal=problem.goal,
        walkthrough=walkthrough,
        objects=tuple(names[one] for one in objects),
        object_types=tuple(sys.intern(types.get(one, "")) for one in objects),
        receptacles=tuple(names[one] for one in receptacles),
        receptacle_types=tuple(sys.intern(types.get(one, "")) for one in receptacles),
        locations=tuple(number[where[one]] for one in receptacles),
        start=number[facts["atlocation"][0][1]],
        openable=those.get("openable", frozenset()),
        opened=those.get("opened", frozenset()),
        inside=tuple(inside.get(r, ()) for r in range(len(receptacles))),
        places=tuple(frozenset(places.get(o, ())) for o in range(len(objects))),
        able={verb: those.get(fact, frozenset()) for verb, fact in _ABLE.items()},
        done={verb: those.get(fact, frozenset()) for verb, fact in _DONE.items()},
        accepts=tuple(_accepted(table, types.get(one, "")) for one in receptacles),
        held_in={o: holders.get(o, ()) for o in those.get("isreceptacleobject", ())},
    )


def _map(rows: Iterable[tuple[str, ...]]) -> dict[str, str]:
    return {row[0]: row[1] for row in rows}


def _name_things(ids: Sequence[str]) -> dict[str, str]:
    """Internal names as a reader sees them: `mug_bar_..` becomes "mug 2"; the first in order gets the highest number.

    >>> _name_things(["mug_bar_a", "mug_bar_b", "sink_bar_c_bar_sinkbasin"])
    {'mug_bar_a': 'mug 2', 'mug_bar_b': 'mug 1', 'sink_bar_c_bar_sinkbasin': 'sinkbasin 1'}
    """
    bases = {
        one: one.split("_bar_", 1)[0] + ("basin" if "basin" in one else "")
        for one in ids
        if "_bar_" in one
    }
    left, names = Counter(bases.values()), {}
    for one in ids:
        base = bases.get(one)
        names[one] = one if base is None else sys.intern(f"{base} {left[base]}")
        left[base or ""] -= 1
    return names


def _gather(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """From (thing, container) to container -> things, in order and each once."""
    found: dict[int, set[int]] = {}
    for thing, container in pairs:
        found.setdefault(container, set()).add(thing)
    return {container: tuple(sorted(things)) for container, things in found.items()}


@lru_cache(maxsize=4096)
def _accepted(pairs: frozenset[tuple[str, ...]], kind: str) -> frozenset[str]:
    """The types that a type of receptacle may hold; almost all games share one table."""
    return frozenset(b for a, b in pairs if a == kind)
