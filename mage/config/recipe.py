"""A recipe: one validated tree of options. It is checked whenever it is made or changed."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mage.config.conflicts import find_conflicts, find_unused
from mage.config.errors import NOWHERE, ConfigError, Origin, explain, unknown_option
from mage.config.menus import (
    check_name,
    check_options,
    engine_fields,
    find_item,
    is_foreign,
    options_model,
)
from mage.config.options import Options, make_item
from mage.config.sections import Choice, Stage
from mage.config.toml import Tables, dump_toml, show_key, without_none
from mage.config.warmup_options import WarmupOptions

# Options that a table with another `kind` keeps, with their defaults: a method changes what is
# paid, not how it counts.
_OF_EVERY_KIND: dict[str, Tables] = {"returns": {"propagation": "code", "penalties": True}}
# Options of an adapter that belong to the game which another option names.
_OF_A_GAME = ("arguments", "moves", "formatter", "about", "players")


class Recipe(Options):
    """The whole tree. `load_recipe` and `build_recipe` make it and check sections together."""

    def flat(self) -> Tables:
        """`tables` with one level: `section.option` -> value."""
        tables = self.tables().items()
        return {f"{section}.{key}": value for section, one in tables for key, value in one.items()}

    def tables(self) -> Tables:
        """Every option that has an effect, as plain values. Loading them gives an equal recipe."""
        fields = self.sections().items()
        tables = {field.alias or name: getattr(self, name).model_dump() for name, field in fields}
        for section, option in find_unused(self):
            tables[section].pop(option)
        tables["opponents"] = {split: pool for split, pool in tables["opponents"].items() if pool}
        if self.warmup == WarmupOptions():  # no warm-up
            tables["warmup"] = {}
        plain: Tables = {name: without_none(table) for name, table in tables.items() if table}
        if self.stages:
            plain["stages"] = [stage.model_dump() for stage in self.stages]
        return plain

    def toml(self) -> str:
        """The text of a recipe file with every option that has an effect."""
        return dump_toml(self.tables())

    def changed(self, **sections: Mapping[str, Any]) -> "Recipe":
        """The recipe with other options; None restores a default.

        A recipe names every option, so only these count as given by the user: options that lose
        their effect through them are dropped without an error.

        >>> recipe.changed(play={"episodes": 2}, run={"name": None})  # doctest: +SKIP
        """
        tables = self.tables()
        for section, options in sections.items():
            if "name" in options:
                choose_item(tables, section, options["name"])
            known = without_old_game(tables.get(section, {}), options)
            tables[section] = without_none({**known, **options})
        keys = [f"{name}.{show_key(key)}" for name, table in sections.items() for key in table]
        return build_recipe(tables, Origin("the run's recipe", tuple(keys), resolved=True))

    def in_world(self, name: str) -> "Recipe":
        """The recipe of one world of a mix, with the opponents that play it."""
        found = self.environments.options.get("worlds", {}).get(name)
        if found is None:
            known = ", ".join(_worlds_of(self.environments)) or self.environments.name
            raise ConfigError(f"{name} is none of the worlds of this recipe: {known}")
        options = {key: value for key, value in found.items() if key != "share"}
        world = make_item("environments", name, options)
        pools = {
            split: {one: share for one, share in pool.items() if _plays(one, world)}
            for split, pool in self.opponents.model_dump().items()
        }
        return self.changed(environments={"name": name, **options}, opponents=pools)

    def in_stages(self) -> "dict[str, Recipe]":
        """Name -> recipe of every stage, in order; empty for a recipe without stages."""
        return {stage.name: self._in_stage(stage) for stage in self.stages}

    def _in_stage(self, stage: Stage) -> "Recipe":
        tables = {name: table for name, table in self.tables().items() if name != "stages"}
        keys = put_on(tables, stage.changes)
        origin = Origin(f"stage {stage.name!r}", resolved=True, own=tuple(keys))
        try:
            return build_recipe(tables, origin)
        except ConfigError as error:
            lines = [f"stage {stage.name!r}: {line}" for line in str(error).splitlines()]
            raise ConfigError("\n".join(lines)) from None


def put_on(tables: Tables, changes: Tables) -> list[str]:
    """Put the options of a part, a base's recipe or a stage into the tables; return their keys.

    A table that chooses an item or a kind replaces the whole section, except options that say how
    every kind is counted. A value that is not a table is kept: the check of the whole recipe
    reports it.
    """
    for section, options in changes.items():
        new = not isinstance(options, dict) or "kind" in options
        new = new or ("name" in options and section != "run")
        known = tables.get(section, {})
        if not isinstance(options, dict) or not isinstance(known, dict):
            tables[section] = options
        elif new:
            kept = _OF_EVERY_KIND.get(section, {})
            own = {key: known[key] for key in kept if known.get(key, kept[key]) != kept[key]}
            tables[section] = own | options
        else:
            tables[section] = without_old_game(known, options) | options
    return [f"{show_key(section)}.{show_key(option)}" for section, option in list_options(changes)]


def list_options(tables: Tables) -> list[tuple[str, str]]:
    """Section and name of every option in the tables."""
    return [
        (section, option)
        for section, options in tables.items()
        if isinstance(options, dict)
        for option in options
    ]


def without_old_game(known: Tables, options: Mapping[str, Any]) -> Tables:
    """The options of an adapter without those of its present game, if another one is chosen."""
    if options.get("game", known.get("game")) == known.get("game"):
        return known
    return {key: value for key, value in known.items() if key not in _OF_A_GAME}


def choose_item(tables: Tables, section: str, name: Any) -> None:
    """Drop the options of the present item of a menu section if another item is chosen."""
    kinds = {field.alias or key: field.annotation for key, field in Recipe.sections().items()}
    kind, given = kinds.get(section), tables.get(section, {})
    if isinstance(kind, type) and issubclass(kind, Choice) and isinstance(given, dict):
        known = given.get("name", kind.model_fields["name"].default)
        tables[section] = given if name == known else {}


def build_recipe(tables: Mapping[str, Any], origin: Origin | None = None) -> Recipe:
    """Check plain tables as a whole recipe and resolve the options of its menu items."""
    origin = origin or NOWHERE
    try:
        recipe = Recipe.model_validate(dict(tables))
    except ValidationError as error:
        raise ConfigError("\n".join(explain(error, Recipe, (), origin))) from None
    choices = {
        name: field.alias or name
        for name, field in Recipe.sections().items()
        if isinstance(getattr(recipe, name), Choice)
    }
    recipe = recipe.model_copy(
        update={
            name: _resolve(section, getattr(recipe, name), origin)
            for name, section in choices.items()
        }
    )
    if origin.stored and _has_foreign_items(recipe):
        return recipe  # the checks need the code of the items
    if mistakes := find_conflicts(recipe, origin):
        raise ConfigError("\n".join(mistakes))
    _check_stages(recipe, "stages" in tables)
    return recipe


def _has_foreign_items(recipe: Recipe) -> bool:
    pools = recipe.opponents.model_dump().values()
    chosen = (recipe.environments, recipe.memory_choice, recipe.advantages, recipe.engines)
    opponents = (name for pool in pools for name in pool)
    names = (*(choice.name for choice in chosen), *opponents, *_worlds_of(recipe.environments))
    return bool(recipe.play.rewards) or any(map(is_foreign, names))


def _plays(opponent: str, world: Any) -> bool:
    kind = find_item("opponents", opponent.split("-")[0])
    return world.multi_agent and bool(kind.plays(world))


def _worlds_of(choice: Choice) -> tuple[str, ...]:
    """The worlds of a mix; nothing for other items."""
    worlds = choice.options.get("worlds")
    return tuple(worlds) if isinstance(worlds, dict) else ()


def _check_stages(recipe: Recipe, are_given: bool) -> None:
    names = [stage.name for stage in recipe.stages]
    if are_given and not names:
        raise ConfigError("stages is empty: write [[stages]] with a name, or leave it out")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two stages are called {name!r}: every stage needs its own name")
    recipe.in_stages()  # reports the errors of every stage


def _resolve(section: str, choice: Choice, origin: Origin) -> Choice:
    """The choice with all options of its item, defaults included.

    An engine is not imported, because that is slow: only the names of its options are checked.
    """
    if origin.stored and any(map(is_foreign, (choice.name, *_worlds_of(choice)))):
        return choice  # a stored recipe names every option, so no code is needed to read it
    try:
        check_name(section, choice.name)
        item = None if section == "engines" else find_item(section, choice.name)
    except ConfigError as error:
        raise ConfigError(origin.mistake(f"{section}.name", choice.name, str(error))) from None
    if item is None:
        _check_engine_options(choice, origin)
        return choice
    model = item if isinstance(item, type) else options_model(item, required=True)
    return type(choice).model_validate(
        {"name": choice.name, **check_options(section, model, choice.options, origin)}
    )


def _check_engine_options(choice: Choice, origin: Origin) -> None:
    known = engine_fields(choice.name)
    for name in choice.options:
        if known is not None and name not in known:
            raise ConfigError(unknown_option("engines", name, known, origin))
