"""Options and arguments that several commands share, and their JSON output."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError

from mage.api.menus import names
from mage.cli.terminal import UsageError
from mage.config.describe import describe_sections
from mage.config.errors import did_you_mean, nearest
from mage.config.menus import find_item
from mage.environments.base import SEATS, Environment
from mage.opponents.base import find, fitting

if TYPE_CHECKING:
    from mage.memory.base import Memory

Seat = Literal["first", "second"]
Keep = Literal["none", "reflections", "history", "both"]
Control = Literal["none", "reflections", "history", "both", "swapped"]  # memories of an evaluation
AGENT = "agent"
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")
]
RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="A name of `mage list recipes`, with parts: kuhn_poker+mage; or a file.",
    ),
]
World = Annotated[
    str, typer.Argument(metavar="ENVIRONMENT", help="A name of `mage list environments`.")
]


def split_words(
    first: str | None, others: Sequence[str], command: Any = None
) -> tuple[str | None, list[str]]:
    """The name and the overrides of a command line, in any order.

    `--learn.lr=0.1` and `--learn.lr 0.1` mean the same. `command` is the one that was called.
    """
    words = _join_values([word for word in (first, *others) if word is not None])
    for place, word in enumerate(words):
        option = word.partition("=")[0]
        if option.startswith("-") and "." not in option and option != "--stages":
            raise _unknown_option(word, words[place + 1 :], command)
    names = [word for word in words if not word.startswith("-")]
    if len(names) > 1:
        raise UsageError(
            f"expected one name, got {', '.join(names)}. "
            "To change an option of the recipe, write --section.option=value."
        )
    return (names[0] if names else None), [word for word in words if word.startswith("-")]


def _join_values(words: Sequence[str]) -> list[str]:
    """Join `--section.option` and a value in the next word by an equals sign."""
    joined: list[str] = []
    for word in words:
        waits = bool(joined) and joined[-1].startswith("--") and "=" not in joined[-1]
        if waits and "." in joined[-1] and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _unknown_option(word: str, behind: Sequence[str], command: Any) -> UsageError:
    """The message for an option that neither the command nor the recipe has.

    It suggests an option of the command, or one of the recipe with its section. The value may be
    the first of the words `behind`.
    """
    option, equals, value = word.partition("=")
    sections = [(name, key) for name, (_, keys) in describe_sections().items() for key in keys]
    if keys := [key for name, key in sections if f"--{name}" == option]:
        return UsageError(
            f"{option} is a section of the recipe: write {option}.OPTION=VALUE. Its options are "
            f"{', '.join(keys)}."
        )
    close = nearest(option, [*_options_of(command), *(f"--{key}" for _, key in sections)])
    if close is not None and close not in _options_of(command):
        if not equals:
            value = next((one for one in behind[:1] if one[:1].isdigit()), "...")
        found = [f"--{name}.{key}={value}" for name, key in sections if f"--{key}" == close]
        close = " or ".join(found)
    advice = "--help lists the options of the command; an option of the recipe is "
    meant = f" (did you mean {close}?)" if close else ""
    return UsageError(f"{option} is not an option{meant}. {advice}--section.option=value.")


def _options_of(command: Any) -> list[str]:
    """The options of a command, as they are written."""
    return [name for one in getattr(command, "params", ()) for name in one.opts if name[0] == "-"]


def need_recipe(name: str | None, advice: str = "") -> str:
    """The name of the recipe; an error if none is given."""
    if name is None:
        raise UsageError(
            f"no recipe is given. Name one of {names('recipes')}, or a .toml file. {advice}".strip()
        )
    return name


def read_world(
    first: str, others: Sequence[str], command: Any = None
) -> tuple[str, dict[str, str]]:
    """The name of an environment or opponent and the options `--environments.KEY=VALUE`."""
    section = "--environments."
    for word in (first, *others):
        if word.startswith("-") and not word.startswith(section):
            meant = did_you_mean(word.partition("=")[0], _options_of(command))
            raise UsageError(
                f"{word} is not an option of this command{meant}. --help lists them; an option of "
                f"the environment is {section}key=value."
            )
    name, words = split_words(first, others)
    if name is None:
        raise UsageError("no name is given. `mage list` shows the environments and opponents.")
    given = [word.removeprefix(section) for word in words]
    return name, read_pairs(given, section + "key=value:")


def read_pairs(texts: Sequence[str] | None, flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value or key in found:
            raise UsageError(
                f"{flag} {text} is not valid. Write name=value, and each name only once."
            )
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
                f"--environments.{key} is unknown{did_you_mean(key, kind.model_fields)}. "
                f"{name} has {', '.join(kind.model_fields)}."
            ) from None
        given = {key: fault["input"]} if key else options
        shown = " ".join(f"--environments.{one}={value}" for one, value in given.items())
        raise UsageError(f"{shown}: {fault['msg'].removeprefix('Value error, ')}") from None


def check_opponent_of(world: Environment, name: str | None) -> str:
    """The name of an opponent that plays this environment; empty if it has no opponents."""
    if not world.multi_agent:
        if name is not None:
            raise UsageError(f"{world.name} has no opponents. Leave out {name}.")
        return ""
    names = ", ".join(fitting(world))
    if name is None:
        raise UsageError(f"no opponent is given. --against takes {names}, or {AGENT}.")
    if not find(name).plays(world):
        raise UsageError(f"{name} does not play {world.name}. Opponents for {world.name}: {names}.")
    return name


def find_seat(world: Environment, seat: Seat) -> int:
    if SEATS.index(seat) >= world.seats:
        raise UsageError(f"--seat {seat} does not exist: {world.name} has one seat")
    return SEATS.index(seat)


def make_notes(keep: str) -> "Memory":
    return find_item("memory", "notes")(keep=keep)


def check_writable(flag: str, path: Path) -> None:
    """Raise an error if this file or folder cannot be made, before the work for it begins."""
    here = next(one for one in path.absolute().parents if one.exists())
    try:
        with tempfile.TemporaryFile(dir=here):
            pass
    except OSError as error:
        raise UsageError(
            f"{flag} {path}: cannot write there ({here}: {error.strerror}). "
            f"Name another place with {flag}."
        ) from None


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))
