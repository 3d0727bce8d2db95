"""Game files: the content of a `game.tw-pddl` file, or of a generated game, as a `Game`."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mage.config.errors import UserError
from mage.environments.alfworld.engine import Game
from mage.environments.alfworld.problem import Problem, read_problem

_HELP = (
    "You can look, examine, go to, open, close, take, move, use, clean, heat, cool and slice "
    "things; inventory tells what you carry."
)
# A string is read from one place only: a pattern that may start anywhere has quadratic cost.
_TASK = "Your task is to: "
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# The answer to `help` is in a rule, or in the action itself.
_HELP_RULE = re.compile(r'"help\.feedback"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*(?=")')
_HELP_ACTION = re.compile(r"action\s+help\s*\{")
_FEEDBACK = re.compile(r'feedback\s*::\s*(?=")')


def read_game(data: Mapping[str, Any]) -> Game:
    """A game from the content of a `game.tw-pddl` file.

    Our own games have `task` instead of a grammar.
    """
    if "pddl_problem" not in data or not {"task", "grammar"} & data.keys():
        raise UserError("a game needs pddl_problem and grammar")
    return _build(read_problem(_text(data, "pddl_problem")), *_read_words(data))


def _text(data: Mapping[str, Any], key: str) -> str:
    if not isinstance(data[key], str):
        raise UserError(f"a game's {key} must be text")
    return str(data[key])


def _read_words(data: Mapping[str, Any]) -> tuple[str, str]:
    """The task sentence and the answer to `help`. Both are in the grammar of a game."""
    if "task" in data:
        return f"{_TASK}{_text(data, 'task')}", _HELP
    grammar = _text(data, "grammar")
    start = grammar.find(f'"{_TASK}')
    task = _STRING.match(grammar, start) if start >= 0 else None
    if task is None:
        raise UserError(f"a game's grammar must hold the sentence '{_TASK}..'")
    try:
        return json.loads(task[0]), _help_text(grammar).replace("\\n", "\n").lstrip()
    except json.JSONDecodeError:
        raise UserError("the sentence with the task in a game's grammar cannot be read") from None


def _help_text(grammar: str) -> str:
    rule = _HELP_RULE.search(grammar)
    if rule and (text := _STRING.match(grammar, rule.end())):
        return text[1]
    at = 0
    while action := _HELP_ACTION.search(grammar, at):
        end = grammar.find("}", action.end())
        at = len(grammar) if end < 0 else end
        found = _FEEDBACK.search(grammar, action.end(), at)
        if found and (text := _STRING.match(grammar, found.end())):
            return text[1]
    return _HELP


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


def _build(problem: Problem, task: str, told: str) -> Game:
    facts, kinds = problem.facts, problem.kinds
    names = _name_things(sorted({name for rows in facts.values() for row in rows for name in row}))
    objects, receptacles, locations = (
        [one for one in names if kinds[one] == kind]
        for kind in ("object", "receptacle", "location")
    )
    number = {
        one: at for group in (objects, receptacles, locations) for at, one in enumerate(group)
    }
    where = _map(facts["receptacleatlocation"])
    types = _map([*facts["objecttype"], *facts["receptacletype"]])
    if not facts["atlocation"] or any(r not in where for r in receptacles):
        raise UserError("the PDDL problem must say where the agent and all receptacles are")
    those = {
        fact: frozenset(number[row[0]] for row in rows)
        for fact, rows in facts.items()
        if rows and len(rows[0]) == 1
    }
    inside, holders, places = (
        _gather((number[thing], number[container]) for thing, container in rows)
        for rows in (
            facts["inreceptacle"],
            facts["inreceptacleobject"],
            [(place, o) for o, place in facts["objectatlocation"]],
        )
    )
    table = frozenset(facts["cancontain"])
    return Game(
        task=task,
        help=sys.intern(told),
        goal=problem.goal,
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
    """Internal names as displayed: `mug_bar_..` becomes "mug 2".

    The first name in order gets the highest number.

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
    """From (thing, container) pairs to container -> things, sorted and unique."""
    found: dict[int, set[int]] = {}
    for thing, container in pairs:
        found.setdefault(container, set()).add(thing)
    return {container: tuple(sorted(things)) for container, things in found.items()}


@lru_cache(maxsize=4096)
def _accepted(pairs: frozenset[tuple[str, ...]], kind: str) -> frozenset[str]:
    """The object types that a receptacle type may hold. Almost all games share one table."""
    return frozenset(b for a, b in pairs if a == kind)
