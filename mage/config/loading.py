"""Read recipes: defaults <- TOML file <- parts <- `--a.b=c`.

A part (`mage/recipes/parts/`, or a file) holds what a method or an ablation changes in any recipe:
`kuhn_poker+mage+anchor_local`.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mage.config.errors import ConfigError, Origin, did_you_mean
from mage.config.menus import FILES, menu
from mage.config.recipe import Recipe, build_recipe, choose_item
from mage.config.retired import drop_retired
from mage.config.toml import Tables, show_key


def change_recipe(recipe: Recipe, overrides: Iterable[str]) -> Recipe:
    """The recipe with overrides of the command line: `mage evaluate RUN --play.episodes=2`."""
    tables = recipe.tables()
    keys = _override_all(tables, overrides)
    return build_recipe(tables, Origin("the run's recipe", tuple(keys), resolved=True))


def load_recipe(path_or_name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe by path or by its name in `mage/recipes/`, then apply parts and overrides.

    >>> load_recipe("kuhn_poker+mage", ["--play.episodes=2"])  # doctest: +SKIP
    """
    return load_layers(path_or_name, overrides).recipe


@dataclass(frozen=True, slots=True)
class Layers:
    """A recipe and the source of every option that is given: (section, option) -> source.

    A source is `recipe`, `part NAME` or `command line`. Other options have their defaults.
    """

    recipe: Recipe
    sources: dict[tuple[str, str], str]


def load_layers(path_or_name: str | Path, overrides: Iterable[str] = ()) -> Layers:
    """Read a recipe as `load_recipe` does and record the sources of its options."""
    name = str(path_or_name)
    base, *parts = [name] if Path(name).is_file() else name.split("+")
    path = _locate(base)
    tables = _read_toml(path)
    sources = dict.fromkeys(_options(tables), "recipe")
    if parts:
        # Report errors of the file itself here. Below, a part may remove the effect of an option.
        build_recipe(tables, Origin(str(path)))
    changed: list[str] = []
    for part in parts:
        changed += (keys := _put_on(tables, _read_toml(_locate(part, "parts"))))
        sources = _find_sources(sources, tables, keys, f"part {Path(part).stem}")
    changed += (keys := _override_all(tables, overrides))
    sources = _find_sources(sources, tables, keys, "command line")
    origin = Origin(name if parts else str(path), tuple(changed), resolved=bool(parts))
    return Layers(build_recipe(tables, origin), sources)


def _find_sources(
    before: Mapping[tuple[str, str], str], tables: Tables, changed: Iterable[str], source: str
) -> dict[tuple[str, str], str]:
    """The sources after a layer. Options that the layer removed from the tables are dropped."""
    new = {(path[0], path[1]) for path in map(_key_path, changed)}
    return {key: source if key in new else before[key] for key in _options(tables)}


def _options(tables: Tables) -> list[tuple[str, str]]:
    """Section and name of every option in the tables."""
    return [
        (section, option)
        for section, options in tables.items()
        if isinstance(options, dict)
        for option in options
    ]


# --- Reading --------------------------------------------------------------------------------------


def _locate(name: str, folder: str = "recipes") -> Path:
    path = Path(name).expanduser() if name.endswith(".toml") else FILES[folder] / f"{name}.toml"
    if path.is_file():
        return path
    known = [title for title, _ in menu(folder)]
    if folder == "recipes" and name in dict(menu("parts")):
        raise ConfigError(
            f"{name} is a part of a recipe: write it after a recipe, as in kuhn_poker+{name}"
        )
    advice = (
        "check the path"
        if name.endswith(".toml")
        else f"mage/{folder}/ has {', '.join(known) or 'none'}; a file of your own ends with .toml"
    )
    raise ConfigError(
        f"there is no {folder.removesuffix('s')} {name!r}{did_you_mean(name, known)}: {advice}"
    )


def _put_on(tables: Tables, part: Tables) -> list[str]:
    """Put a part's options into the tables and return their keys.

    A table with a `name` or a `kind` replaces the whole section. A value that is not a table is
    kept: the check of the whole recipe reports it.
    """
    for section, options in part.items():
        replaces = not isinstance(options, dict) or bool({"name", "kind"} & set(options))
        tables[section] = options if replaces else tables.get(section, {}) | options
    return [f"{show_key(section)}.{show_key(option)}" for section, option in _options(part)]


def _read_toml(path: Path) -> Tables:
    try:
        return drop_retired(tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _override_all(tables: Tables, texts: Iterable[str]) -> list[str]:
    """Put overrides into the tables and return their keys.

    If an override chooses another item of a menu, the options of the previous item are dropped.
    """
    texts = list(texts)
    for text in texts:
        section, _, name = text.removeprefix("--").partition(".name=")
        if name:
            choose_item(tables, section, _parse_value(name))
    return [_override(tables, text) for text in texts]


def _override(tables: Tables, text: str) -> str:
    """Put one `--a.b=c` into the tables and return its key. An empty value restores the default."""
    key, equals, value = text.removeprefix("--").partition("=")
    path = _key_path(key)
    if not equals or len(path) < 2:
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise ConfigError(
            f"{shown!r} is not an override: write --section.option=value, as in --play.episodes=3"
        )
    table = tables
    for depth, part in enumerate(path[:-1], start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            key = ".".join(path[:depth])
            raise ConfigError(f"{text!r}: {key} is a value, not a table with options of its own")
    if value:
        table[path[-1]] = _parse_value(value)
    else:
        table.pop(path[-1], None)
    return ".".join(map(show_key, path))


def _key_path(key: str) -> list[str]:
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    path = []
    while isinstance(table, dict):
        if not table:  # the key is a comment
            return []
        name, table = next(iter(table.items()))
        path.append(name)
    return path


def _parse_value(text: str) -> Any:
    """The text as a TOML value (`0.5`, `true`, `[0, 0, 1]`), or the text itself (`kuhn_poker`)."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"'{text[:40]}...' is not a valid value: {error}") from None
    return parsed["value"] if len(parsed) == 1 else text
