"""Recipes in Python: load one, and change options by values, classes, objects or functions."""

from collections.abc import Mapping
from typing import Any

from mage.config.errors import ConfigError, Origin
from mage.config.loading import load_recipe as load_file
from mage.config.recipe import Recipe, build_recipe
from mage.environments.base import Environment
from mage.memory.base import Memory
from mage.opponents.base import Opponent


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by name, parts or path, with changes.

    Keys of `changes` are `section.option`, or the section of a menu with an item as the value: a
    class, an object (its fields are the options), or for `advantages` a function.

    >>> load_recipe("kuhn_poker", {"play.episodes": 2}).play.episodes
    2
    """
    recipe = load_file(name)
    if not changes:
        return recipe
    tables = recipe.tables()
    for key, value in changes.items():
        _change(tables, key, value)
    return build_recipe(tables, Origin("changes", tuple(changes), resolved=True))


def _change(tables: dict[str, Any], key: str, value: Any) -> None:
    section, _, option = key.partition(".")
    if section == "opponents" and isinstance(value, Mapping):
        value = {_opponent_name(one): weight for one, weight in value.items()}
    if option:
        tables.setdefault(section, {})[option] = value
    elif section == "opponents":
        tables[section] = {"train": value}
    elif isinstance(value, Mapping):
        tables[section] = dict(value)
    else:
        tables[section] = _item_table(section, value)


def _item_table(section: str, item: Any) -> dict[str, Any]:
    """The table of a section for a name, a class, an object or a function."""
    if isinstance(item, str):
        return {"name": item}
    if isinstance(item, Environment | Memory):
        return {"name": _path(type(item)), **item.model_dump()}
    if isinstance(item, type) or callable(item):
        return {"name": _path(item)}
    raise ConfigError(
        f"{section} = {item!r}: write section.option as the key, or give a name, a class, an "
        "object or a function of the menu"
    )


def _opponent_name(item: Any) -> str:
    """The name of an opponent in a recipe: its dotted path, with options after dashes."""
    if isinstance(item, str):
        return item
    kind = item if isinstance(item, type) else type(item)
    if not issubclass(kind, Opponent):
        raise ConfigError(f"{item!r} is not an opponent: give a name, a class or an object")
    options = [] if isinstance(item, type) else [str(one) for one in item.model_dump().values()]
    return "-".join([_path(kind), *options])


def _path(item: Any) -> str:
    return f"{item.__module__}.{item.__qualname__}"
