"""The PDDL problem of a game as records: things, initial facts and the goal.

Only the problem is read, not the domain: the engine implements the 15 actions itself. Names are
lower-cased, as in TextWorld. Invalid content raises a ValueError that says what was expected.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mage.config.errors import UserError

TaskType = Literal["place", "light", "clean", "heat", "cool", "two"]
TASK_TYPES: tuple[TaskType, ...] = ("place", "light", "clean", "heat", "cool", "two")
Expression: TypeAlias = "str | list[Expression]"

_TOKENS = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")
_OF_OBJECTS = (
    "pickupable moveable toggleable istoggled ison isreceptacleobject cleanable isclean heatable "
    "ishot coolable iscool sliceable issliced"
)
# The predicates that the engine uses, with the kinds of their arguments.
_SIGNATURES: dict[str, tuple[str, ...]] = {
    "atlocation": ("agent", "location"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "inreceptacle": ("object", "receptacle"),
    "inreceptacleobject": ("object", "object"),
    "receptacletype": ("receptacle", "rtype"),
    "objecttype": ("object", "otype"),
    "cancontain": ("rtype", "otype"),
    **dict.fromkeys(("openable", "opened"), ("receptacle",)),
    **dict.fromkeys(_OF_OBJECTS.split(), ("object",)),
}
_LIGHT = (
    "objecttype objecttype toggleable istoggled receptacleatlocation atlocation inreceptacle holds"
)
_PLACE = ("inreceptacle", "objecttype", "receptacletype")
_SHAPES: dict[TaskType, tuple[str, ...]] = {
    "place": _PLACE,
    "clean": (*_PLACE, "cleanable", "isclean"),
    "heat": (*_PLACE, "heatable", "ishot"),
    "cool": (*_PLACE, "coolable", "iscool"),
    "two": (*_PLACE, *_PLACE, "="),
    "light": tuple(_LIGHT.split()),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """The task. `target` is the type of the receptacle, or of the lamp for `light`."""

    kind: TaskType
    object_type: str
    target: str


@dataclass(frozen=True, slots=True)
class Problem:
    """`kinds` maps a declared name to its kind, `facts` a predicate to its arguments."""

    kinds: dict[str, str]
    facts: dict[str, list[tuple[str, ...]]]
    goal: Goal


def read_problem(text: str) -> Problem:
    """Parse the PDDL problem of one game."""
    whole = _read(text)
    if not whole or whole[0] != "define":
        raise UserError("the PDDL problem does not begin with (define")
    sections = {
        part[0]: part[1:]
        for part in whole[1:]
        if isinstance(part, list) and part and isinstance(part[0], str)
    }
    missing = [name for name in (":objects", ":init", ":goal") if name not in sections]
    if missing:
        raise UserError(f"the PDDL problem has no {', '.join(missing)}")
    kinds = _read_kinds(sections[":objects"])
    return Problem(
        kinds, _read_facts(sections[":init"], kinds), _read_goal(sections[":goal"], kinds)
    )


def _read(text: str) -> list[Expression]:
    """Parse the single expression that a text holds."""
    stack: list[list[Expression]] = [[]]
    for token in _TOKENS.findall(_COMMENT.sub("", text.lower())):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) > 1:
            done = stack.pop()
            stack[-1].append(done)
        else:
            raise UserError("the PDDL problem closes a bracket that it did not open")
    if len(stack) > 1:
        raise UserError(f"the PDDL problem ends inside {len(stack) - 1} open brackets")
    outer = stack[0]
    if len(outer) != 1 or not isinstance(outer[0], list):
        raise UserError("the PDDL problem is not one expression in brackets")
    return outer[0]


def _read_kinds(words: list[Expression]) -> dict[str, str]:
    """`a b - kind` declares a and b."""
    kinds: dict[str, str] = {}
    waiting: list[str] = []
    tokens = iter(words)
    for token in tokens:
        if not isinstance(token, str):
            raise UserError("the PDDL problem has brackets among its objects")
        if token != "-":
            waiting.append(token)
            continue
        kind = next(tokens, None)
        if not isinstance(kind, str):
            raise UserError("the PDDL problem declares objects without a kind")
        kinds.update(dict.fromkeys(waiting, kind))
        waiting.clear()
    return kinds


def _read_facts(items: list[Expression], kinds: dict[str, str]) -> dict[str, list[tuple[str, ...]]]:
    facts: dict[str, list[tuple[str, ...]]] = {name: [] for name in _SIGNATURES}
    for item in items:
        if (
            not isinstance(item, list)
            or not item
            or not all(isinstance(word, str) for word in item[1:])
        ):
            if isinstance(item, list) and item and item[0] == "=":
                continue  # distances and costs are not used
            raise UserError(f"the PDDL problem has something else instead of a fact: {_show(item)}")
        name, names = str(item[0]), tuple(map(str, item[1:]))
        if unknown := [one for one in names if one not in kinds]:
            raise UserError(
                f"the PDDL problem states something about {unknown[0]}, which it does not declare"
            )
        if _SIGNATURES.get(name) != tuple(kinds[one] for one in names):
            raise UserError(
                f"the PDDL problem states {_show(item)}, which is not a fact of ALFWorld games"
            )
        facts[name].append(names)
    return facts


def _show(expression: Expression) -> str:
    text = f"({' '.join(map(_show, expression))})" if isinstance(expression, list) else expression
    return text if len(text) <= 80 else f"{text[:80]}.."


def _read_goal(items: list[Expression], kinds: dict[str, str]) -> Goal:
    """Each of the six task types is recognised by the predicates of its goal."""
    atoms = [atom for item in items for atom in _atoms(item)]
    named = sorted(atom[0] for atom in atoms)
    kind = next((kind for kind, shape in _SHAPES.items() if sorted(shape) == named), None)
    if kind is None:
        raise UserError("the PDDL problem's goal is not one of the six ALFWorld tasks")
    types = {
        atom[1]: atom[2]
        for atom in atoms
        if atom[0] in ("objecttype", "receptacletype") and len(atom) == 3
    }
    pick = (
        {"object": "holds", "target": "istoggled"}
        if kind == "light"
        else {"object": "inreceptacle", "target": "receptacletype"}
    )
    try:
        found = next(atom for atom in atoms if atom[0] == pick["object"])
        thing = types[found[2] if kind == "light" else found[1]]
        target = types[next(atom[1] for atom in atoms if atom[0] == pick["target"])]
    except (KeyError, IndexError):
        raise UserError("the PDDL problem's goal does not say what goes where") from None
    if unknown := [one for one in (thing, target) if one not in kinds]:
        raise UserError(f"the PDDL problem's goal asks for {unknown[0]}, which it does not declare")
    if kind == "two" and Counter(atom[2] for atom in atoms if atom[0] == "objecttype")[thing] != 2:
        raise UserError("the PDDL problem's goal asks for two objects of different types")
    return Goal(kind, thing, target)


def _atoms(expression: Expression) -> list[tuple[str, ...]]:
    """The plain statements under and, exists and not."""
    if not isinstance(expression, list) or not expression:
        return []
    if expression[0] in ("and", "exists", "not"):
        parts = expression[2:] if expression[0] == "exists" else expression[1:]
        return [atom for part in parts for atom in _atoms(part)]
    return [tuple(map(_show, expression))]
