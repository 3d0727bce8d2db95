"""Menus: folders of interchangeable items. An item is found by its name.

Items are imported on demand, so this file imports none of them. `menu` reads names from the source.
"""

import ast
import importlib
import inspect
import itertools
import os
import re
import sys
import sysconfig
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from mage.config import returned
from mage.config.errors import ConfigError, Origin, did_you_mean, explain
from mage.config.toml import Tables, without_none

PACKAGE = Path(__file__).parents[1]
FILES = {
    "recipes": PACKAGE / "recipes",
    "parts": PACKAGE / "recipes" / "parts",
}  # menus of TOML files
MENUS = {
    "environments": "mage.environments",
    "opponents": "mage.opponents",
    "memory": "mage.memory",
    "engines": "mage.engines",
    "advantages": "mage.credit.advantages",
}  # name of the menu -> package that holds its items
_CONTRACTS = {
    "environments": "Environment",
    "opponents": "Opponent",
    "memory": "Memory",
    "engines": "Engine",
}


def menu(folder: str) -> list[tuple[str, str]]:
    """Names and one-line descriptions of a menu, read from the source: nothing is imported.

    >>> [name for name, _ in menu("advantages")]
    ['gigpo', 'grpo']
    """
    if folder in FILES:
        return [
            (path.stem, _first_sentence(path.read_text("utf-8")))
            for path in sorted(FILES[folder].glob("*.toml"))
        ]
    if folder not in MENUS:
        names = [*MENUS, *FILES, "options"]
        raise ConfigError(
            f"there is no menu {folder!r}{did_you_mean(folder, names)}: "
            f"menus are {', '.join(names)}"
        )
    return [entry for path in _item_files(folder) for entry in _entries(path)]


def find_item(folder: str, name: str) -> Any:
    """The class (for advantages, the function `estimate`) behind a name of a menu or a dotted path.

    `my_lab.nim` is a module that holds one such class, `my_lab.nim.Nim` the class itself. A file
    of opponents may hold several; their names are those of their classes.
    """
    if _reads_only and is_foreign(name):
        return stand_in(folder, name.rpartition(".")[2])
    module, attribute = _import_item(folder, name)
    item = _contained(module, folder) if attribute is None else getattr(module, attribute, None)
    if isinstance(item, type) and _fits(item, folder) and not name.startswith("mage."):
        returned.refuse_incomplete(item)
    if item is None or not _fits(item, folder) or inspect.isabstract(item):
        expected = "function estimate"
        if folder != "advantages":
            expected = f"subclass of {MENUS[folder]}.base.{_CONTRACTS[folder]}"
        found = module.__name__ if attribute is None else attribute
        raise ConfigError(f"{name}: {found} is not and does not contain a {expected}")
    return item


def _import_item(folder: str, name: str) -> tuple[ModuleType, str | None]:
    """The module, and the attribute in it where the dotted path names one."""
    check_name(folder, name)
    if "." not in name:
        file, attribute = _places(folder)[name]
        return _import(f"{MENUS[folder]}.{file}"), attribute
    parent, _, last = name.rpartition(".")
    outer = _import(parent)
    inner = getattr(outer, last, None)
    return (
        (_import(name), None) if inner is None or isinstance(inner, ModuleType) else (outer, last)
    )


def find_object(path: str) -> Any:
    """What a dotted path names in another package: a class, a function or any other object."""
    if _reads_only:
        raise ConfigError(f"{path} is not imported: this command only reads")
    module, _, name = path.rpartition(".")
    if not module:
        raise ConfigError(f"{path!r} is not a dotted path such as my_lab.maze.Maze")
    found = getattr(_import(module), name, None)
    if found is None:
        raise ConfigError(f"{module} has no {name!r}")
    return found


def is_foreign(name: str) -> bool:
    """Whether an item comes from outside of this package."""
    return "." in name


def imports_foreign_code() -> bool:
    """Whether this process imports foreign items; false for commands that only read."""
    return not _reads_only


@contextmanager
def without_foreign_code() -> Iterator[None]:
    """Inside, this process imports no foreign items: it only reads runs, perhaps a stranger's.

    The names and options of such items are shown; stand-ins take the place of their code.
    """
    global _reads_only
    before, _reads_only = _reads_only, True
    try:
        yield
    finally:
        _reads_only = before


_reads_only = False
foreign_packages: set[str] = set()  # names of packages whose items this process has imported


def stand_in(folder: str, name: str) -> Any:
    """A class without behaviour, for an item whose code is not imported. It takes any options."""
    facts: dict[str, Any] = {"model_config": ConfigDict(extra="allow", frozen=True)}
    facts["__module__"] = __name__  # so it is no class of the user, whose methods are checked
    if folder == "environments":
        facts["__annotations__"] = {
            "name": typing.ClassVar[str],
            "scores_every_turn": typing.ClassVar[bool],
        }
        facts |= {"name": name, "scores_every_turn": True}
        facts["forfeit_score"] = property(lambda self: -1.0)
        facts["tools"] = lambda self: (print,)  # perhaps it has some: their options may stand
    if folder == "memory":
        facts["reflects"] = property(lambda self: True)
    made: Any = type("StandIn", (contract(folder),), facts)
    made.__abstractmethods__ = frozenset()
    return made


def _import(name: str) -> ModuleType:
    if name.startswith("__main__."):
        raise ConfigError(
            f"{name.partition('.')[2]} was defined in a script or notebook, and only that program "
            "can use it. Move it to a file, and write its dotted path into the recipe"
        )
    if not name.startswith("mage."):
        _refuse_run_folders(name)
        _add_current_folder(name.partition(".")[0])
        foreign_packages.add(name.partition(".")[0])
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name} cannot be imported: {error}. Install the package, run the command in the "
            "folder that contains it, or add that folder to PYTHONPATH."
        ) from error
    except SyntaxError as error:
        raise ConfigError(f"{name} is not valid Python: {error}") from error
    if not name.startswith("mage."):
        _refuse_another_file(module)
    return module


def _add_current_folder(package: str) -> None:
    """Make a package of the current folder importable, before another checkout of the same name.

    The folder is behind all installed packages, so that its files do not replace them.
    """
    here = os.getcwd()
    places = [place or here for place in sys.path]
    installed = max((at for at, place in enumerate(places) if _is_installed(place)), default=-1)
    later = range(installed + 1, len(places))
    first = next((at for at in later if _holds_package(places[at], package)), len(places))
    if not _holds_package(here, package):
        first = len(places)
    if here not in places[: first + 1]:
        sys.path.insert(first, here)


def _is_installed(place: str) -> bool:
    """Whether an entry of `sys.path` holds the standard library or installed packages."""
    folders = ("site-packages", "dist-packages", "lib-dynload")
    return Path(place).name in folders or place == sysconfig.get_path("stdlib")


def _holds_package(place: str, package: str) -> bool:
    """Whether a folder of `sys.path` holds this module, or this package with an `__init__.py`."""
    found = PathFinder.find_spec(package, [place])
    return found is not None and found.has_location


def _refuse_another_file(module: ModuleType) -> None:
    """Raise an error if the current folder has a file of this name and another one was imported."""
    path = Path.cwd().joinpath(*module.__name__.split("."))
    own = next(filter(Path.is_file, (path / "__init__.py", path.with_suffix(".py"))), None)
    used = getattr(module, "__file__", None) or "the standard library"
    if own is None or Path(used).resolve().parent == own.resolve().parent:  # or a compiled file
        return
    raise ConfigError(
        f"{module.__name__} is in two places: Python has imported {used}, but the current folder "
        f"has {own}. Rename one of the two; if the file in the current folder is meant and its "
        "package has no __init__.py, add one"
    )


_RUN_FILES = ("versions.json", "metrics.jsonl", "checkpoints")


def _is_run(folder: Path) -> bool:
    is_recipe = (folder / "recipe.toml").is_file()
    return is_recipe and any((folder / name).exists() for name in _RUN_FILES)


def _refuse_run_folders(name: str) -> None:
    """A run folder may come from a stranger, so code inside of one is never imported."""
    parts = name.split(".")
    for place in {*map(Path, sys.path), Path.cwd()}:
        for end in range(1, len(parts) + 1):
            path = place.joinpath(*parts[:end])
            found = path if path.is_dir() else path.with_suffix(".py")
            inside = (found, *found.parents, *found.resolve().parents) if found.exists() else ()
            if run := next(filter(_is_run, inside), None):
                raise ConfigError(
                    f"{name} is code in the run folder {run}, which may come from somebody else: "
                    "it is not imported. Read the file, and move it out of the folder to use it"
                )


def _contained(module: ModuleType, folder: str) -> Any:
    """The one item that a module defines. Among several classes, the one that defines `name`."""
    if folder == "advantages":
        return getattr(module, "estimate", None)
    own = [
        item
        for item in vars(module).values()
        if _fits(item, folder) and item.__module__.startswith(module.__name__)
    ]
    named = [item for item in own if "name" in vars(item)] or own
    if len(named) > 1:
        classes = [item.__name__ for item in named]
        raise ConfigError(
            f"{module.__name__} holds several items ({', '.join(classes)}): "
            f"choose one, as in {module.__name__}.{classes[0]}"
        )
    return named[0] if named else None


def _fits(item: Any, folder: str) -> bool:
    if folder == "advantages":
        return inspect.isfunction(item) and _takes_one(item)
    return isinstance(item, type) and issubclass(item, contract(folder))


def contract(folder: str) -> Any:
    """The base class of the items of a menu."""
    return getattr(importlib.import_module(f"{MENUS[folder]}.base"), _CONTRACTS[folder])


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function has one positional argument and otherwise keyword-only arguments."""
    kinds = [one.kind for one in inspect.signature(function).parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return (
        kinds[:1] != []
        and kinds[0] in positional
        and set(kinds[1:]) <= {inspect.Parameter.KEYWORD_ONLY}
    )


def check_name(folder: str, name: str) -> None:
    """Raise a `ConfigError` unless the name is an item of the menu or has the form of a path."""
    known = sorted(_places(folder))
    if name not in known and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name):
        only = (
            f"only {', '.join(known)}; a dotted path (my_lab.nim) names an item of another package"
        )
        raise ConfigError(f"mage/{folder}/ has no {name!r}{did_you_mean(name, known)}, {only}")


@cache
def _item_files(folder: str) -> tuple[Path, ...]:
    """Files and packages of a menu, without the contract and without shared code.

    A package of opponents only groups its files.
    """
    folder_path = PACKAGE.joinpath(*MENUS[folder].split(".")[1:])
    places = folder_path.rglob("*.py") if folder == "opponents" else folder_path.iterdir()
    return tuple(
        path
        for path in sorted(places)
        if (path.suffix == ".py" or (path / "__init__.py").is_file())
        and path.stem != "base"
        and not path.stem.startswith("_")
        and _holds_item(path, folder)
    )


@cache
def _places(folder: str) -> dict[str, tuple[str, str | None]]:
    """Name of an item -> its file, and in the menu of opponents the class in that file."""
    if folder != "opponents":
        return {path.stem: (path.stem, None) for path in _item_files(folder)}
    return {
        name: (_module_in(path, folder), node.name)
        for path in _item_files(folder)
        for node in _parse(path).body
        if isinstance(node, ast.ClassDef) and (name := _class_name(node))
    }


def _module_in(path: Path, folder: str) -> str:
    """The name of a file as a module of the menu's package: `throws.players`."""
    inside = path.relative_to(PACKAGE.joinpath(*MENUS[folder].split(".")[1:]))
    return ".".join(inside.with_suffix("").parts)


def _holds_item(path: Path, folder: str) -> bool:
    if folder == "advantages":
        return any(
            isinstance(node, ast.FunctionDef) and node.name == "estimate"
            for node in _parse(path).body
        )
    return folder != "engines" or any(map(_is_engine, _parse(path).body))


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse((path / "__init__.py" if path.is_dir() else path).read_text("utf-8"))


def _entries(path: Path) -> list[tuple[str, str]]:
    tree = _parse(path)
    fallback = _first_line(ast.get_docstring(tree))
    classes = [
        (_class_name(node), _first_line(ast.get_docstring(node)) or fallback)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    return [(name, line) for name, line in classes if name] or [(path.stem, fallback)]


def _class_name(node: ast.ClassDef) -> str | None:
    """The value of `name: ClassVar[str] = "..."` in a class body."""
    for line in node.body:
        if (
            isinstance(line, ast.AnnAssign)
            and ast.unparse(line.target) == "name"
            and isinstance(line.value, ast.Constant)
        ):
            return str(line.value.value)
    return None


def _first_sentence(toml: str) -> str:
    """The first sentence of the comment at the head of a file.

    >>> _first_sentence("# A game\\n# of two. It is short.\\n[run]")
    'A game of two.'
    """
    head = itertools.takewhile(lambda line: line.startswith("#"), toml.splitlines())
    return re.split(r"(?<=\.)\s", " ".join(line.strip("# ") for line in head))[0]


def _first_line(text: str | None) -> str:
    return text.strip().splitlines()[0].strip() if text and text.strip() else ""


def engine_fields(name: str) -> dict[str, FieldInfo] | None:
    """The options of an engine, read from its source: importing an engine is slow.

    None for an engine of another package.
    """
    path = next((path for path in _item_files("engines") if path.stem == name), None)
    if path is None:
        return None
    engine = next(node for node in _parse(path).body if _is_engine(node))
    assert isinstance(engine, ast.ClassDef), "an engine is a class"
    found = [one for one in engine.body if isinstance(one, ast.FunctionDef)]
    arguments = next(one.args for one in found if one.name == "__init__")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {
        one.arg: FieldInfo(default=_constant(default), description=_description(one))
        for one, default in pairs
        if default is not None
    }


def _is_engine(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and "Engine" in map(ast.unparse, node.bases)


def _constant(node: ast.expr) -> Any:
    """The value of a literal; the source text of any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _description(argument: ast.arg) -> str | None:
    """The text of `Field(description=...)` in the annotation of an argument."""
    nodes = ast.walk(argument.annotation) if argument.annotation else ()
    return next(
        (
            str(ast.literal_eval(node.value))
            for node in nodes
            if isinstance(node, ast.keyword) and node.arg == "description"
        ),
        None,
    )


def keeps_state(estimate: Callable[..., Any]) -> bool:
    """Whether an estimator has running values, which training keeps between its updates."""
    return "state" in inspect.signature(estimate).parameters


@cache
def options_model(function: Callable[..., Any], *, required: bool) -> type[BaseModel]:
    """Keyword-only arguments as a model.

    Arguments of an engine without a default, and the `state` of an estimator, come from the
    trainer, not from the recipe.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    arguments = [
        a
        for a in inspect.signature(function).parameters.values()
        if a.kind is a.KEYWORD_ONLY and (required or a.default is not a.empty) and a.name != "state"
    ]
    fields: dict[str, Any] = {
        a.name: (hints.get(a.name, Any), ... if a.default is a.empty else a.default)
        for a in arguments
    }
    return create_model(
        "Options", __config__=ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False), **fields
    )


def check_options(section: str, model: type[BaseModel], options: Tables, origin: Origin) -> Tables:
    """The options of a menu item, validated, with defaults."""
    try:
        return without_none(model.model_validate(options).model_dump())
    except ValidationError as error:
        raise ConfigError("\n".join(explain(error, model, (section,), origin))) from None
