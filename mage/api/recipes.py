"""Recipes in Python: make or load one, and change options by values, classes, or objects."""

import warnings
from collections.abc import Mapping
from typing import Any

from mage.config.errors import ConfigError, Origin
from mage.config.loading import load_recipe as load_file
from mage.config.loading import read_start
from mage.config.recipe import Recipe, build_recipe, put_on
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
    keys = _change_all(tables, changes)
    return build_recipe(tables, Origin("changes", tuple(keys), resolved=True))


def recipe(
    environment: str | Environment | type[Environment],
    *,
    opponents: Any = None,
    model: str | None = None,
    **changes: Any,
) -> Recipe:
    """A recipe for an environment, without another recipe: `mage train my_lab.nim` uses the same.

    `environment` is a name, a dotted path, a class or an object (its fields are the options).
    `opponents` are names, classes or objects: one, several, or a mapping to their shares; without
    them the other seat plays at random. `model` is a value of `model.path`. Without one, or with
    an embedded model, a warm-up teaches the answer format first. Other keywords are sections, as in
    `run={"updates": 20}, memory="notes"`.

    >>> recipe("kuhn_poker", opponents="conservative", play={"episodes": 2}).play.episodes
    2
    """
    own = _item_table("environments", environment)
    tables = read_start(own["name"], model)
    pool = {} if opponents is None else {"opponents": opponents}
    keys = _change_all(tables, {"environments": own, **pool}) + _change_all(tables, changes)
    return build_recipe(tables, Origin("mage.recipe(...)", resolved=True, own=tuple(keys)))


def _change_all(tables: dict[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """Put changes into the tables; the options that they give."""
    return [one for key, value in changes.items() for one in _change(tables, key, value)]


def _change(tables: dict[str, Any], key: str, value: Any) -> list[str]:
    section, _, option = key.partition(".")
    if section == "opponents" and (option or not _is_by_split(value)):
        tables.setdefault(section, {})[option or "train"] = _pool(value)
        return [f"opponents.{option or 'train'}"]
    if option:
        tables.setdefault(section, {})[option] = value
        return [key]
    table = dict(value) if isinstance(value, Mapping) else _item_table(section, value)
    return put_on(tables, {section: table})


def _is_by_split(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) <= {"train", "test", "ood"}


def _pool(value: Any) -> Any:
    """Opponents as names: one, several, or a mapping to their shares."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {_opponent_name(one): share for one, share in value.items()}
    several = value if isinstance(value, list | tuple) else [value]
    return [_opponent_name(one) for one in several]


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
    """The dotted path by which a run finds an item again: after a stop, and in other processes."""
    if "<" in item.__qualname__:
        raise ConfigError(
            f"{item.__qualname__} is defined inside a function, so a stopped run could not find it "
            "again: define it at the top level of a file"
        )
    if item.__module__ == "__main__":
        warnings.warn(
            f"{item.__qualname__} is defined in this script or notebook. Only this program can "
            "resume and evaluate the run; move the class to a file and import it, and the mage "
            "command can too",
            stacklevel=6,
        )
    return f"{item.__module__}.{item.__qualname__}"
