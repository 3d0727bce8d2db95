"""The layout of the package: imports point down only, without cycles, and low levels load no torch.

The graph is built from the syntax trees, so lazy imports and `TYPE_CHECKING` imports count too.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import mage
from mage.config.menus import MENUS

PACKAGE = Path(mage.__file__).parent
LEVELS = {
    **dict.fromkeys(("types", "seeds"), 0),
    **dict.fromkeys(("config", "run_folder"), 1),
    "environments": 2,
    **dict.fromkeys(("agent", "memory", "opponents"), 3),
    **dict.fromkeys(("engines", "models"), 4),
    "play": 5,
    "credit": 6,
    "ranks": 7,
    "learn": 8,
    "evaluation": 9,
    "training": 10,
    "report": 11,
    **dict.fromkeys(("reproduce", "viewer"), 12),
    "api": 13,
    "cli": 14,
}
OUTSIDE = ("mage", "mage.__main__")  # the public interface and `python -m mage`
# Exact answers need a game tree, and only OpenSpiel's games have one.
OPENSPIEL = "mage.environments.openspiel"
KNOW_OPENSPIEL = {
    *("mage.evaluation.exact.beliefs", "mage.evaluation.exact.best_response"),
    *("mage.evaluation.exact.ceilings", "mage.evaluation.exact.game_tree"),
    *("mage.evaluation.exact.bounds", "mage.evaluation.exact.scores"),
}
HEAVY = ("torch", "transformers", "vllm", "ray")
NO_TORCH_BELOW = 7
IMPORT_BY_STRING = {"mage", "mage.config.menus"}  # lazy names of `import mage`, and the menus
OPTIONAL = ("mlflow", "pandas", "ray", "spacy", "trackio", "vllm", "wandb")


def _module(path: Path) -> str:
    parts = ("mage", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


FILES = {_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def place_of(module: str) -> str:
    """The top-level entry of a module: `mage.learn.loss` is in `learn`."""
    return [*module.split("."), ""][1]


@cache
def nodes_of(module: str) -> list[ast.Import | ast.ImportFrom | ast.Call]:
    """The imports and the calls of a file."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    tree = ast.parse(FILES[module].read_text("utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


@cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of MAGE that a file imports, anywhere in the file."""
    return frozenset(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "mage")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; use the full name"
            if str(node.module).split(".")[0] == "mage":
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if name in FILES else str(node.module) for name in inner)


def find_cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules that import each other (strongly connected components, Tarjan 1972).

    >>> find_cycles({"a": frozenset("b"), "b": frozenset("a"), "c": frozenset("a")})
    [['a', 'b']]
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for target in graph[name]:
            if target not in order:
                visit(target)
            if target in stack:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[-len(group) :]
            found.extend([sorted(group)] if len(group) > 1 else [])

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_every_file_has_a_level():
    unknown = [name for name in FILES if place_of(name) not in LEVELS and name not in OUTSIDE]
    assert unknown == [], "give its folder a level here and in docs/architecture.md"


def test_imports_point_down_only():
    up = [
        f"{module} imports {target}"
        for module in FILES
        if module not in OUTSIDE
        for target in imports_of(module)
        if LEVELS.get(place_of(target), -1) > LEVELS[place_of(module)]
    ]
    assert up == []


def test_no_files_import_each_other():
    graph = {name: frozenset(imports_of(name) & FILES.keys()) - {name} for name in FILES}
    assert find_cycles(graph) == []


def test_shared_code_imports_only_the_base_of_a_menu():
    inside = {f"{package}." for package in MENUS.values()}

    def is_item(target: str) -> bool:
        package = next((one for one in inside if target.startswith(one)), None)
        return package is not None and target.removeprefix(package) != "base"

    wrong = [
        f"{module} imports {target}"
        for module in FILES
        if not any(module.startswith(package) for package in inside)
        for target in imports_of(module)
        if is_item(target) and not (module in KNOW_OPENSPIEL and target == OPENSPIEL)
    ]
    assert wrong == [], "find an item of a menu by its name"


def test_code_is_imported_by_name_only():
    """A string import is an arrow that the tests above do not see."""
    by_string = [
        f"{module}: {ast.unparse(node)}"
        for module in FILES
        if module not in IMPORT_BY_STRING
        for node in nodes_of(module)
        if isinstance(node, ast.Call)
        and _last_name(node.func) in ("import_module", "__import__")
        and not _is_optional(node.args[0])
    ]
    assert by_string == [], "import the module itself, or find an item of a menu by its name"


def _last_name(function: ast.expr) -> str:
    """`import_module` for both `import_module` and `importlib.import_module`."""
    return getattr(function, "attr", getattr(function, "id", ""))


def _is_optional(name: ast.expr) -> bool:
    """Whether it names an optional package of other people."""
    return isinstance(name, ast.Constant) and str(name.value).split(".")[0] in OPTIONAL


def test_a_mistake_of_the_user_has_its_own_class():
    wrong = [name for name, path in FILES.items() if "raise ValueError" in path.read_text("utf-8")]
    assert wrong == [], "raise UserError of mage.config.errors; assert what cannot happen"


@pytest.mark.e2e
def test_torch_is_loaded_only_where_it_is_needed():
    """In one process: `import mage`, low levels, sources of models, rooms, light commands."""
    low = [name for name in FILES if LEVELS.get(place_of(name), 99) < NO_TORCH_BELOW]
    allowed = ("mage.engines", "mage.models")  # the chosen engine or source loads what it needs
    low = [name for name in low if not name.startswith(allowed) or name.endswith(".base")]
    program = f"""
import importlib, sys
def check(what, *more):
    assert not {{*{HEAVY!r}, *more}} & set(sys.modules), what
import mage
check("import mage", "pydantic", "numpy")
for name in {low!r}:
    importlib.import_module(name)
    check(name)
from mage.environments.sokoban import Sokoban
Sokoban().start(3)
check("rooms", "numba")
from mage.models.base import sources
sources()
check("sources of models", "huggingface_hub")
from typer.testing import CliRunner
from mage.cli.main import app
for line in (
    "list environments", "ceilings kuhn_poker --weights random=1",
    "play kuhn_poker --against random",
):
    assert CliRunner().invoke(app, line.split(), input="").exit_code == 0, line
    check(line, "matplotlib")
assert CliRunner().invoke(app, ["train", "kuhn_pokr"]).exit_code == 2
check("an unknown recipe", "matplotlib")
assert CliRunner().invoke(app, "evaluate demo --size 1 --episodes 1".split()).exit_code == 0
slow = {{"transformers", "torch._dynamo", "torch.distributed.tensor"}} & set(sys.modules)
assert not slow, f"play on a CPU loads {{slow}}"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
