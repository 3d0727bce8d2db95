"""The text engine: `Game` (immutable, shared) and `World` (the state of one episode).

Texts, admissible commands and success are those of TextWorld on the same game file, including its
peculiarities. Objects are listed in the order of their internal names, so their numbers descend. An
object can be examined only while it is held. `look` in the middle of the room shows nothing. `use`
turns a lamp on and never off. An object that was moved between two receptacles at the same place is
listed as "next to it". Heating, cooling and cleaning need no open door.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mage.environments.alfworld.problem import Goal

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
NOTHING_HAPPENS = "Nothing happens."
IDLE = ("examine", "help", "inventory", "look")  # first words of commands that change nothing
_APPLIANCES = {"sinkbasintype": "clean", "microwavetype": "heat", "fridgetype": "cool"}
_KNIVES = ("knifetype", "butterknifetype")
_ANSWERS = {
    "go": "You arrive at {place}.",
    "open": "You open the {place}.",
    "close": "You close the {place}.",
    "take": "You pick up the {thing} from the {place}.",
    "move": "You move the {thing} to the {place}.",
    "use": "You turn on the {thing}.",
    "slice": "You sliced the {thing} with the {place}.",
    **dict.fromkeys(("clean", "heat", "cool"), "You {verb} the {thing} using the {place}."),
}

Action = tuple[str, int, int]  # a verb, and two things by number (-1 = none)


@dataclass(frozen=True)
class Game:
    """One game. Things are numbered in the order of their internal names.

    `inside[r]` are the initial objects of receptacle r, `places[o]` the locations of an object,
    `able[verb]` the objects that a verb works on, `accepts[r]` the object types that r may hold.
    """

    task: str
    help: str
    goal: Goal
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
    done: Mapping[str, frozenset[int]]  # verb -> objects already treated at the start
    accepts: tuple[frozenset[str], ...]
    held_in: Mapping[int, tuple[int, ...]]  # a container object -> its contents

    @cached_property
    def here(self) -> dict[int, tuple[int, ...]]:
        """The receptacles of every location."""
        return {
            place: tuple(r for r, where in enumerate(self.locations) if where == place)
            for place in {self.start, *self.locations}
        }

    @cached_property
    def ways(self) -> dict[int, dict[str, Action]]:
        """For every location: the commands that lead away, and those that always work."""
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
    """A running game. It stores only what differs from its `Game`."""

    __slots__ = ("_commands", "at", "done", "game", "gone", "held", "inside", "moved", "opened")

    def __init__(self, game: Game) -> None:
        self.game = game
        self.at = game.start
        self.held: int | None = None
        self.opened = game.opened
        self.inside = game.inside
        self.done = game.done
        self.moved: dict[int, frozenset[int]] = {}  # object -> its new locations
        # (object, receptacle it was taken from)
        self.gone: frozenset[tuple[int, int]] = frozenset()
        self._commands: dict[str, Action] | None = None

    # --- Admissible commands ----------------------------------------------------------------------

    @property
    def commands(self) -> dict[str, Action]:
        """The admissible commands and their actions, unordered."""
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
                verb = "close" if r in self.opened else "open"
                found[f"{verb} {name}"] = (verb, -1, r)
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
                        command = f"slice {game.objects[o]} with {game.objects[held]}"
                        found[command] = ("slice", o, held)
        return found

    def _add_takes(self, found: dict[str, Action], r: int) -> None:
        if self.is_open(r):
            for o in self.inside[r]:
                if o in self.game.able["take"]:
                    command = f"take {self.game.objects[o]} from {self.game.receptacles[r]}"
                    found[command] = ("take", o, r)

    def _add_uses(self, found: dict[str, Action], held: int, r: int) -> None:
        game = self.game
        if self.is_open(r) and game.object_types[held] in game.accepts[r]:
            found[f"move {game.objects[held]} to {game.receptacles[r]}"] = ("move", held, r)
        verb = _APPLIANCES.get(game.receptacle_types[r])
        if verb is not None and held in game.able[verb]:
            found[f"{verb} {game.objects[held]} with {game.receptacles[r]}"] = (verb, held, r)

    def is_open(self, r: int) -> bool:
        """Whether objects can be taken from and put into the receptacle."""
        return r not in self.game.openable or r in self.opened

    # --- Execution --------------------------------------------------------------------------------

    def step(self, command: str) -> str:
        """Execute a command and return TextWorld's answer; "Nothing happens." if inadmissible."""
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

    # --- Texts -----------------------------------------------------------------------------

    def introduction(self) -> str:
        seen = self._look() if self.game.here[self.at] else _in_the_middle(self.game.receptacles)
        return f"{BANNER}\n\n{seen}\n\n{self.game.task}"

    def _answer(self, action: Action) -> str:
        verb, o, r = action
        game = self.game
        if verb not in _ANSWERS:
            return self._observe(verb, o, r)
        thing = game.objects[o] if o >= 0 else ""
        place = (game.objects if verb == "slice" else game.receptacles)[r]
        text = _ANSWERS[verb].format(verb=verb, thing=thing, place=place)
        return f"{text} {self._examine_receptacle(r)}" if verb in ("go", "open") else text

    def _observe(self, verb: str, o: int, r: int) -> str:
        """Answers to commands that change nothing."""
        if verb == "look":
            return self._look()
        if verb == "help":
            return self.game.help
        if verb == "inventory":
            if self.held is None:
                return "You are not carrying anything."
            return f"You are carrying: a {self.game.objects[self.held]}."
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
        return (
            f"You are facing the {_listed(self.game.receptacles[r] for r in here)}. Next to it, "
            f"you see {_listed(self._a(o) for o, _ in floor)}."
        )

    def _examine_receptacle(self, r: int) -> str:
        name, content = self.game.receptacles[r], _listed(self._a(o) for o in self.inside[r])
        if r not in self.game.openable:
            return f"On the {name}, you see {content}."
        if r in self.opened:
            return f"The {name} is open. In it, you see {content}."
        return f"The {name} is closed."

    def _examine_object(self, o: int) -> str:
        name = self.game.objects[o]
        if o in self.game.held_in:
            return (
                f"This is a normal {name}. In it, you see "
                f"{_listed(self._a(one) for one in self.game.held_in[o])}."
            )
        clean, hot, cool, sliced = (
            o in self.done[verb] for verb in ("clean", "heat", "cool", "slice")
        )
        warmth = "hot" if hot else ("cool" if clean or sliced else "cold") if cool else ""
        words = " and ".join(word for word in (warmth, "clean" if clean else "") if word)
        if words or sliced:
            return (
                "This is a "
                f"{' '.join(word for word in (words, 'sliced' if sliced else '', name) if word)}."
            )
        if o in self.done["use"]:
            return f"This {name} is on."
        return f"There's nothing special about {name}."

    def _a(self, o: int) -> str:
        return f"a {self.game.objects[o]}"

    # --- Success -----------------------------------------------------------------------

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
        """Whether a lamp of the goal's type is at the agent's location. A used lamp stays on."""
        return self.game.object_types[lamp] == self.game.goal.target and any(
            lamp in self.inside[r] for r in self.game.here[self.at]
        )


def _in_the_middle(receptacles: Sequence[str]) -> str:
    return (
        "You are in the middle of a room. Looking quickly around you, you see "
        f"{_listed(f'a {name}' for name in receptacles)}."
    )


def _listed(words: Iterable[str]) -> str:
    """Join words as TextWorld does: with a comma before "and", even between two."""
    *first, last = [*words] or ["nothing"]
    return f"{', '.join(first)}, and {last}" if first else last
