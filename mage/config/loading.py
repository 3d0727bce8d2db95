"""Read recipes: defaults <- base <- TOML file <- parts <- `--a.b=c`.

`base = "NAME"` at the top of a file names the recipe whose options it changes. A part
(`mage/recipes/parts/`, or a file) holds what a method or an ablation changes in any recipe:
`kuhn_poker+mage+anchor_local`. Its tables `[when.sokoban.play]` hold in Sokoban only,
`[when.published.advantages]` in recipes with the estimator `published` only.

An environment without a recipe of its own is a recipe too: `mage train my_lab.nim`. It is based on
`start`, or on `start_model` if the model is not an embedded one.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mage.config.errors import ConfigError, Origin, did_you_mean
from mage.config.menus import FILES, menu
from mage.config.recipe import (
    Recipe,
    build_recipe,
    choose_item,
    list_options,
    put_on,
    without_old_game,
)
from mage.config.retired import PARTS, drop_retired
from mage.config.toml import Tables, show_key

_CASES = ("environments", "advantages")  # sections whose items [when.NAME] may name


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


def read_stored(path: Path) -> Recipe:
    """The recipe of a run folder, perhaps a stranger's: no code outside of this package runs."""
    tables, own, sources = _read_chain(path, _read_toml(path))
    is_based = any(source != "recipe" for source in sources.values())
    return build_recipe(tables, Origin(str(path), resolved=is_based, own=own, stored=True))


@dataclass(frozen=True, slots=True)
class Layers:
    """A recipe and the source of every option that is given: (section, option) -> source.

    A source is `base NAME`, `recipe`, `part NAME` or `command line`. Other options have their
    defaults.
    """

    recipe: Recipe
    sources: dict[tuple[str, str], str]


def load_layers(path_or_name: str | Path, overrides: Iterable[str] = ()) -> Layers:
    """Read a recipe as `load_recipe` does and record the sources of its options."""
    name, overrides = str(path_or_name), list(overrides)
    file, *parts = [name] if Path(name).is_file() else name.split("+")
    if is_environment(file):
        path, first = Path(file), start_from(file, _given_model(overrides))
    else:
        path = _locate(file)
        first = _read_toml(path)
    tables, own, sources = _read_chain(path, first)
    is_based = any(source != "recipe" for source in sources.values())
    if parts:
        # Report errors of the file itself here. Below, a part may remove the effect of an option.
        build_recipe(tables, Origin(str(path), resolved=is_based, own=own))
    changed: list[str] = []
    contents = _read_parts(parts, tables)
    _keep_earlier_stages(tables, {section for content in contents for section in content})
    for part, content in zip(parts, contents, strict=True):
        changed += (keys := put_on(tables, content))
        sources = _find_sources(sources, tables, keys, f"part {Path(part).stem}")
    changed = [key for key in changed if _says_more_than_the_default(tables, key)]
    changed += (keys := _override_all(tables, overrides))
    sources = _find_sources(sources, tables, keys, "command line")
    origin = Origin(
        name if parts else str(path),
        tuple(changed),
        resolved=bool(parts) or is_based,
        own=() if parts else own,
    )
    return Layers(build_recipe(tables, origin), sources)


def is_environment(name: str) -> bool:
    """Whether a name is an environment without a recipe of the same name."""
    dotted = re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name) and not name.endswith(".toml")
    is_recipe = (FILES["recipes"] / f"{name}.toml").is_file()  # a menu is slower to read
    return bool(dotted) or (not is_recipe and name in dict(menu("environments")))


def title_of(name: str) -> str:
    """What a run of this recipe is called: `nim` for `my_lab/nim.toml` and for `my_lab.nim`."""
    return Path(name).stem if name.endswith(".toml") else Path(name).name.rpartition(".")[2]


def start_from(environment: str, model: str | None) -> Tables:
    """The options of a recipe that names an environment and perhaps a model."""
    is_small = model is None or model.startswith("embedded")
    return {
        "base": "start" if is_small else "start_model",
        "environments": {"name": environment},
        **({} if model is None else {"model": {"path": model}}),
    }


def read_start(environment: str, model: str | None) -> Tables:
    """All options that are given for an environment without a recipe, bases included."""
    return _read_chain(Path(environment), start_from(environment, model))[0]


def _given_model(overrides: Iterable[str]) -> str | None:
    given = [text.partition("=")[2] for text in overrides if text.startswith("--model.path=")]
    return str(_parse_value(given[-1])) if given and given[-1] else None


def _read_chain(
    path: Path, first: Tables
) -> tuple[Tables, tuple[str, ...], dict[tuple[str, str], str]]:
    """The options of a file on top of those of its base, the keys of the file, and all sources."""
    files = [path]
    layers = [first]
    while (base := layers[-1].pop("base", None)) is not None:
        files.append(_find_base(base, files[-1]))
        if files[-1] in files[:-1]:
            names = " -> ".join(one.stem for one in files)
            raise ConfigError(f"{path}: recipes are based on each other ({names}): remove one base")
        layers.append(_read_toml(files[-1]))
    tables: Tables = {}
    sources: dict[tuple[str, str], str] = {}
    keys: list[str] = []
    for file, layer in zip(reversed(files), reversed(layers), strict=True):
        keys = put_on(tables, layer)
        sources = _find_sources(
            sources, tables, keys, "recipe" if file == path else f"base {file.stem}"
        )
    if isinstance(tables.get("stages"), list):
        tables["stages"] = [_with_parts(stage, tables) for stage in tables["stages"]]
    return tables, tuple(keys), sources


def _keep_earlier_stages(tables: Tables, sections: set[str]) -> None:
    """Parts change the last stage only: the earlier ones get the present options of the sections.

    So methods that are compared begin with the same stages.
    """
    if not sections or not tables.get("stages"):
        return
    *earlier, last = tables["stages"]
    plain = build_recipe({name: table for name, table in tables.items() if name != "stages"})
    before = {name: table for name, table in plain.tables().items() if name in sections}
    kept: list[Tables] = [dict(before) for _ in earlier]
    for stage, own in zip(kept, earlier, strict=True):
        put_on(stage, own)
    tables["stages"] = [*kept, last]


def _find_base(base: Any, file: Path) -> Path:
    if not isinstance(base, str):
        raise ConfigError(f"{file}: base must be the name of a recipe or a .toml file")
    beside = file.parent / base
    try:
        return beside if base.endswith(".toml") and beside.is_file() else _locate(base)
    except ConfigError as error:
        raise ConfigError(f"{file}: base = {base!r}: {error}") from None


def _with_parts(stage: Any, tables: Tables) -> Any:
    """A stage whose `parts` are replaced by their options."""
    if not isinstance(stage, dict) or not isinstance(names := stage.get("parts", []), list):
        return stage
    found: Tables = {}
    for content in _read_parts(map(str, names), tables):
        put_on(found, content)
    put_on(found, {key: value for key, value in stage.items() if key != "parts"})
    return found


def _find_sources(
    before: Mapping[tuple[str, str], str], tables: Tables, changed: Iterable[str], source: str
) -> dict[tuple[str, str], str]:
    """The sources after a layer. Options that the layer removed from the tables are dropped."""
    new = {(path[0], path[1]) for path in map(_key_path, changed) if len(path) > 1}
    return {key: source if key in new else before[key] for key in list_options(tables)}


def _says_more_than_the_default(tables: Tables, key: str) -> bool:
    """Whether a part's option is still there and differs from its default.

    Only such an option is an error where it has no effect: a part may name defaults to undo those
    of a recipe, and a later part may replace its section.
    """
    section, option = _key_path(key)[:2]
    table = tables.get(section)
    field = Recipe.sections().get(section)
    known = getattr(field.annotation, "model_fields", {}) if field else {}
    if not isinstance(table, dict) or option not in table:
        return False
    return option not in known or known[option].default != table[option]


# --- Reading --------------------------------------------------------------------------------------


def _locate(name: str, folder: str = "recipes") -> Path:
    path = Path(name).expanduser() if name.endswith(".toml") else FILES[folder] / f"{name}.toml"
    if path.is_file():
        return path
    known = [title for title, _ in menu(folder)]
    if folder == "parts" and name in PARTS:
        raise ConfigError(f"the part {name!r} is gone: {PARTS[name]}")
    if folder == "recipes" and name in dict(menu("parts")):
        raise ConfigError(
            f"{name} is a part of a recipe: write it after a recipe, as in kuhn_poker+{name}"
        )
    advice = f"the {folder} are {', '.join(known) or 'none'}; a file of your own ends with .toml"
    if name.endswith(".toml"):
        advice = "check the path"
    raise ConfigError(
        f"there is no {folder.removesuffix('s')} {name!r}{did_you_mean(name, known)}: {advice}"
    )


def _read_parts(names: Iterable[str], tables: Tables) -> list[Tables]:
    """The options of parts that are put on these tables one after the other."""
    now, contents = dict(tables), list[Tables]()
    for name in names:
        contents.append(_read_part(name, now))
        put_on(now, contents[-1])
    return contents


def _read_part(name: str, tables: Tables) -> Tables:
    """The options of a part: those for every recipe, then those for recipes like this one."""
    path = _locate(name, "parts")
    content = _read_toml(path)
    cases = content.pop("when", {})
    if not isinstance(cases, dict) or not all(isinstance(one, dict) for one in cases.values()):
        raise ConfigError(f"{path}: when must hold tables, as in [when.sokoban.play]")
    known = [title for menu_name in _CASES for title, _ in menu(menu_name)]
    for case, changes in cases.items():
        if case not in known and "." not in case:
            raise ConfigError(
                f"{path}: when.{case} names neither an environment nor an estimator"
                f"{did_you_mean(case, known)}: they are {', '.join(known)}"
            )
        if case in [_item_name(tables, section) for section in _CASES]:
            put_on(content, changes)
    return content


def _item_name(tables: Tables, section: str) -> Any:
    chosen = tables.get(section, {})
    return chosen.get("name") if isinstance(chosen, dict) else None


def _read_toml(path: Path) -> Tables:
    try:
        return drop_retired(tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _override_all(tables: Tables, texts: Iterable[str]) -> list[str]:
    """Put overrides into the tables and return the keys of the options that they give.

    An empty value gives nothing: the default is back. If an override chooses another item of a
    menu or another game, the options of the previous one are dropped.
    """
    texts = list(texts)
    for text in texts:
        section, _, name = text.removeprefix("--").partition(".name=")
        if name:
            choose_item(tables, section, _parse_value(name))
        section, _, game = text.removeprefix("--").partition(".game=")
        if game and isinstance(known := tables.get(section), dict):
            tables[section] = without_old_game(known, {"game": _parse_value(game)})
    keys = [_override(tables, text) for text in texts]
    return [key for key, text in zip(keys, texts, strict=True) if text.partition("=")[2]]


def _override(tables: Tables, text: str) -> str:
    """Put one `--a.b=c` into the tables and return its key. An empty value restores the default."""
    key, equals, value = text.removeprefix("--").partition("=")
    path = _key_path(key)
    if path == ["stages"] and equals and not value:
        tables.pop("stages", None)
        return key
    if not equals or len(path) < 2:
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise ConfigError(
            f"{shown!r} is not an override: write --section.option=value, as in --play.episodes=3"
        )
    if path[0] == "stages":
        _override_stage(tables, path[1], text)
        return ".".join(map(show_key, path))
    table, key = tables, ".".join(map(show_key, path))
    for depth, part in enumerate(path[:-1], start=1):
        if depth > 1 and not value and part not in table:
            return key  # there is nothing to remove; an unknown section is an error later
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            above = ".".join(path[:depth])
            raise ConfigError(f"{text!r}: {above} is a value, not a table with options of its own")
    if value:
        table[path[-1]] = _parse_value(value)
    else:
        table.pop(path[-1], None)
    return key


def _override_stage(tables: Tables, name: str, text: str) -> None:
    """Put `--stages.NAME.a.b=c` into one stage."""
    stages = [one for one in tables.get("stages") or [] if isinstance(one, dict)]
    names = [str(one.get("name")) for one in stages]
    if name not in names:
        has = f"stages are {', '.join(names)}" if names else "the recipe has no stages"
        raise ConfigError(f"{text!r}: there is no stage {name!r}{did_you_mean(name, names)}; {has}")
    _override(stages[names.index(name)], "--" + text.split(".", 2)[-1])


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
