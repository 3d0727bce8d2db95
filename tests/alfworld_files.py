"""Generated ALFWorld games as complete `game.tw-pddl` files, to compare with TextWorld.

The PDDL domain and the text grammar come from the installed alfworld package.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mage.config.errors import UserError
from mage.environments.alfworld.games import FOLDERS, OFFICIAL_NAMES
from mage.environments.alfworld.generator import generate
from mage.environments.alfworld.problem import TASK_TYPES, read_problem
from mage.types import Split

_OPEN_TASK = "UNKNOWN GOAL"  # placeholder of the task in the grammar


def read_package() -> tuple[str, str]:
    """Domain and grammar of the installed alfworld package, without importing it."""
    spec = find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "writing game files needs the alfworld package for its domain and grammar: pip "
            "install --no-deps alfworld"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    try:
        domain, grammar = (
            (folder / name).read_text("utf-8") for name in ("alfred.pddl", "alfred.twl2")
        )
    except OSError as error:
        raise UserError(f"the installed alfworld package lacks a file: {error}") from None
    if _OPEN_TASK not in grammar:
        raise UserError(f"{folder / 'alfred.twl2'} has no place for a task ({_OPEN_TASK})")
    return domain, grammar


def complete(game: dict[str, Any], domain: str, grammar: str) -> dict[str, Any]:
    """A generated game with all entries of a `game.tw-pddl` file."""
    task = str(game["task"]).removesuffix(".")
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace(_OPEN_TASK, task),
        **{key: game[key] for key in ("pddl_problem", "solvable", "walkthrough")},
    }


def write_games(
    folder: Path, count: int, *, seed: int = 0, receptacles: int = 8, objects: int = 12
) -> list[Path]:
    """Write `count` games of every split, types in turn, in folders with official names."""
    domain, grammar = read_package()
    return [
        _write_game(folder, split, seed + number, domain, grammar, receptacles, objects)
        for split in FOLDERS
        for number in range(count)
    ]


def _write_game(
    folder: Path, split: Split, seed: int, domain: str, grammar: str, receptacles: int, objects: int
) -> Path:
    kind = TASK_TYPES[seed % len(TASK_TYPES)]
    game = generate(kind, split, seed, receptacles=receptacles, objects=objects)
    goal = read_problem(game["pddl_problem"]).goal
    name = "-".join(
        [
            OFFICIAL_NAMES[kind],
            goal.object_type.removesuffix("type"),
            "None",
            goal.target.removesuffix("type"),
            "0",
        ]
    )
    path = folder / FOLDERS[split] / name / f"trial_{seed}" / "game.tw-pddl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(complete(game, domain, grammar)), "utf-8")
    return path
