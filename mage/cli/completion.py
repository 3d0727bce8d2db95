"""Shell completion: recipes and parts, environments, opponents, models, runs, and all options.

What a word may be follows from its metavar in the help, so a new command needs nothing here.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mage.config.describe import describe_recipe, describe_sections
from mage.config.errors import UserError
from mage.config.menus import find_item, menu
from mage.models.base import EMBEDDED, list_models, shipped_adapters


@dataclass(frozen=True, slots=True)
class Word:
    """A word that the shell offers, with the fields that typer reads."""

    value: str
    type: str = "plain"
    help: str | None = None


@cache  # once for each command, which is looked up several times
def add_completion(command: Any) -> Any:
    """Let the shell complete the words of a command."""
    for param in command.params:
        words = re.split(r"\W+", param.metavar or "")
        named = [_WORDS[word] for word in words if word in _WORDS]
        if named:
            param.shell_complete = _completer(named)
    if command.context_settings.get("ignore_unknown_options"):
        plain = command.shell_complete

        def complete(ctx: Any, incomplete: str) -> list[Word]:
            options = _options(ctx) if incomplete.startswith("--") else ()
            return plain(ctx, incomplete) + _fitting(options, incomplete)

        command.shell_complete = complete
    return command


def _completer(named: list[Callable[[str], Iterable[str]]]) -> Callable[[Any, str], list[Word]]:
    def complete(ctx: Any, incomplete: str) -> list[Word]:
        return _fitting((word for words in named for word in words(incomplete)), incomplete)

    return complete


def _fitting(words: Iterable[str], incomplete: str) -> list[Word]:
    found = dict.fromkeys(word for word in words if word.startswith(incomplete))
    return [Word(word) for word in found]


def _names(folder: str) -> list[str]:
    return [name for name, _ in menu(folder)]


def _recipes(incomplete: str) -> Iterator[str]:
    """Recipes, files, and after a plus the parts."""
    before, plus, _ = incomplete.rpartition("+")
    if plus:
        yield from (f"{before}+{part}" for part in _names("parts"))
        return
    yield from _names("recipes")
    here = Path(incomplete.rpartition("/")[0] or ".")
    files = (*here.glob("*.toml"), *here.glob("[!.]*/*.toml"))
    yield from (str(file) for file in files if file.name != "recipe.toml")


def _models(incomplete: str) -> list[str]:
    return [*EMBEDDED, *shipped_adapters(), *(model.name for model in list_models())]


def _runs(incomplete: str) -> Iterator[str]:
    """Run folders below the folder that is being written; by default those in `runs`."""
    folder = incomplete.rpartition("/")[0] or "runs"
    yield from (str(one.parent) for one in Path(folder).glob("*/recipe.toml"))


_WORDS: dict[str, Callable[[str], Iterable[str]]] = {
    "RECIPE": _recipes,
    "ENVIRONMENT": lambda incomplete: _names("environments"),
    "OPPONENT": lambda incomplete: [*_names("opponents"), "agent"],
    "MODEL": _models,
    "RUN": _runs,
}


def _options(ctx: Any) -> Iterator[str]:
    """`--section.option=` for every option of the named recipe or environment, and of any recipe.

    `--opponents.train.NAME=` names an opponent.
    """
    words = ctx.params
    if "environment" in words:  # the command takes options of an environment only
        world = words["environment"] or words.get("name")
        yield from (f"--environments.{key}=" for key in _fields(str(world)))
        return
    named = words.get("recipe") or words.get("what")
    try:
        sections: Any = describe_recipe(str(named))
    except UserError:
        sections = {name: options for name, (_, options) in describe_sections().items()}
    yield from (f"--{name}.{key}=" for name, options in sections.items() for key in options)
    pools = ("train", "test", "ood")
    yield from (f"--opponents.{pool}.{name}=" for pool in pools for name in _names("opponents"))


def _fields(world: str) -> list[str]:
    try:
        return list(find_item("environments", world).model_fields)
    except UserError:
        return []
