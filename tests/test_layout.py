"""The house rules of imports: down only, the spine knows no item of a menu, and floors 0 to 6 load no torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mage
from mage.config.menus import MENUS

PACKAGE = Path(mage.__file__).parent
FLOORS = {
    **dict.fromkeys(("types", "toml", "mistakes", "menus", "options", "consistency", "config", "rundir", "seeds"), 0),
    **dict.fromkeys(("environments", "engines", "chat", "plain"), 1),
    **dict.fromkeys(("agent", "prompts", "memory"), 2),
    "opponents": 3,
    "play": 4,
    **dict.fromkeys(("returns", "advantages", "tally"), 5),
    **dict.fromkeys(("evaluate", "panels", "ceilings", "statistics", "checks", "report"), 6),
    **dict.fromkeys(("learn", "models"), 7),
    "cluster": 8,
    **dict.fromkeys(("trainer", "sittings", "warmstart", "exact"), 9),
    **dict.fromkeys(("cli", "verbs", "terminal", "reproduce"), 10),
}
SIGNING = ("mage.config.recipe", "mage.config.conflicts")  # name what they find by name in signatures too
HEAVY = ("torch", "transformers", "vllm", "ray")


def module_name(path: Path) -> str:
    return ".".join(("mage", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def place_of(module: str) -> str | None:
    """The part of a module's name that has a floor: `mage.learn.loss` is in `learn`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FLOORS else None


def imports_of(module: str) -> Iterator[str]:
    """The modules of MAGE that a file imports, wherever in the file it does."""
    tree = ast.parse(FILES[module].read_text("utf-8"))
    for node in ast.walk(_without_type_checking(tree) if module in SIGNING else tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "mage")
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; name the package"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if str(node.module).split(".")[0] == "mage":
                    yield inner if inner in FILES else str(node.module)


def _without_type_checking(tree: ast.Module) -> ast.Module:
    """A recipe names the contracts in its signatures only; at run time it finds them by name."""
    body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(body, [])


def test_every_file_stands_on_a_floor() -> None:
    beside = {"mage", "mage.__main__"}
    homeless = [module for module in FILES if place_of(module) is None and module not in beside and not module.startswith("mage.embedded")]
    assert homeless == [], "give it a floor in this test and in the design"


@pytest.mark.parametrize("module", [module for module in FILES if place_of(module)])
def test_imports_point_down_only(module: str) -> None:
    own = FLOORS[str(place_of(module))]
    up = [target for target in imports_of(module) if (place := place_of(target)) and FLOORS[place] > own]
    assert up == [], f"{module} is on floor {own}"


@pytest.mark.parametrize("module", [module for module in FILES if place_of(module) not in (None, *MENUS)])
def test_the_spine_imports_only_the_base_of_a_menu(module: str) -> None:
    items = [target for target in imports_of(module) if place_of(target) in MENUS and target.split(".")[2:] not in ([], ["base"])]
    # Exact answers exist for OpenSpiel's game trees only, so those who give them know the bridge to OpenSpiel.
    bridge = ["mage.environments.openspiel"] if module in ("mage.evaluation.ceilings", "mage.evaluation.figures", "mage.evaluation.exact") else []
    assert set(items) <= set(bridge), "an item of a menu is found by name"


@pytest.mark.parametrize("module", [module for module in FILES if FLOORS.get(str(place_of(module))) == 0])
def test_the_lowest_floor_names_no_item_of_a_menu(module: str) -> None:
    imports = [node for node in ast.walk(ast.parse(FILES[module].read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    named = [str(node.module) for node in imports if place_of(str(node.module)) in MENUS]
    assert all(name.endswith(".base") for name in named)


def test_the_lower_floors_load_no_torch() -> None:
    low = [module for module in FILES if (place := place_of(module)) and FLOORS[place] <= 6]
    low = [module for module in low if place_of(module) != "engines" or module.endswith((".engines", ".base"))]
    program = f"import importlib, sys\nfor name in {low!r}:\n    importlib.import_module(name)\n    assert not set({HEAVY!r}) & set(sys.modules), name"
    done = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
