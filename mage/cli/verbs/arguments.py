"""What several verbs take and read: their common options, names of items, and JSON as the answer."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError

from mage.cli.terminal import UsageError
from mage.config.menus import find_item
from mage.environments.base import SEATS, Environment
from mage.opponents.base import find, fitting

if TYPE_CHECKING:
    from mage.memory.base import Memory

Seat = Literal["first", "second"]
Keep = Literal["none", "reflections", "history", "both"]
AGENT = "agent"
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="An option of the environment; may be repeated."
    ),
]


def split_words(first: str | None, others: Sequence[str]) -> tuple[str | None, list[str]]:
    """The one name and the overrides of a command line, in whatever order they came."""
    words = [word for word in (first, *others) if word is not None]
    names = [word for word in words if not word.startswith("-")]
    if len(names) > 1:
        raise UsageError(
            f"one name is enough, not {', '.join(names)}; an option is changed by --section.option=value, with an equals sign"
        )
    return (names[0] if names else None), [word for word in words if word.startswith("-")]


def read_pairs(texts: Sequence[str] | None, flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value or key in found:
            raise UsageError(f"{flag} {text}: write name=value, each name once")
        found[key] = value
    return found


def make_environment(name: str, options: dict[str, str]) -> Environment:
    kind = find_item("environments", name)
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] == "extra_forbidden":
            raise UsageError(
                f"--option {key} is unknown; {name} takes {', '.join(kind.model_fields)}"
            ) from None
        given = (
            f"{key}={fault['input']}"
            if key
            else " ".join(f"{one}={value}" for one, value in options.items())
        )
        raise UsageError(
            f"--option {given}: {fault['msg'].removeprefix('Value error, ')}"
        ) from None


def check_opponent_of(world: Environment, name: str | None) -> str:
    """The name of an opponent that plays this; empty where nobody sits on the other side."""
    if not world.multi_agent:
        if name is not None:
            raise UsageError(f"{world.name} has no opponents, so {name} has nobody to play against")
        return ""
    names = ", ".join(fitting(world))
    if name is None:
        raise UsageError(f"against whom? --against takes {names}, or {AGENT}")
    if not find(name).plays(world):
        raise UsageError(f"{name} does not play {world.name}; opponents for {world.name}: {names}")
    return name


def find_seat(world: Environment, seat: Seat) -> int:
    if SEATS.index(seat) >= world.seats:
        raise UsageError(f"--seat {seat}: {world.name} has one seat only")
    return SEATS.index(seat)


def make_notes(keep: str) -> "Memory":
    return find_item("memory", "notes")(keep=keep)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))
