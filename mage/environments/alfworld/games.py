"""Sources of games: the official data folder, or our own generator.

The official folder holds `train`, `valid_seen` (in domain) and `valid_unseen` (out of domain: rooms
that do not occur in training), with one `game.tw-pddl` file per game.
"""

import json
import os
import re
from functools import lru_cache
from pathlib import Path

from mage.config.errors import UserError
from mage.environments.alfworld.engine import Game
from mage.environments.alfworld.game_file import read_game
from mage.environments.alfworld.generator import generate
from mage.environments.alfworld.problem import TaskType
from mage.types import Split

VARIABLE = "ALFWORLD_DATA"
GENERATED, OFFICIAL = "generated", "official"
FOLDERS: dict[Split, str] = {"train": "train", "test": "valid_seen", "ood": "valid_unseen"}
_INNER = "json_2.1.1"  # where the official download puts the splits
# Stock ALFWorld skips these games: its engine has no rules for movable receptacles and slices.
_SKIPPED = ("movable", "Sliced")
_UNSOLVABLE = re.compile(rb'"solvable"\s*:\s*false')
OFFICIAL_NAMES: dict[TaskType, str] = {
    "place": "pick_and_place_simple",
    "light": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
_ADVICE = (
    "Get the official games with `pip install alfworld` and `alfworld-download --data-dir FOLDER`; "
    f"then set {VARIABLE} or environments.data to FOLDER (docs/worlds.md). data = {GENERATED!r} "
    "needs no download."
)


def find_folder(data: str) -> Path:
    """The folder that holds the splits."""
    if data == OFFICIAL and not os.environ.get(VARIABLE):
        raise UserError(f"data = {OFFICIAL!r}, but {VARIABLE} is not set. {_ADVICE}")
    return _find_splits(os.environ[VARIABLE] if data == OFFICIAL else data)


@lru_cache(maxsize=64)
def _find_splits(path: str) -> Path:
    given = Path(path).expanduser()
    for folder in (given, given / _INNER):
        if any((folder / name).is_dir() for name in FOLDERS.values()):
            return folder
    raise UserError(
        f"{given} holds no ALFWorld games: there is no folder {', '.join(FOLDERS.values())} "
        f"in it. {_ADVICE}"
    )


@lru_cache(maxsize=64)
def list_games(folder: Path, split: Split, task_types: tuple[TaskType, ...]) -> tuple[Path, ...]:
    """The games of a split and of these types, in a fixed order.

    As in stock ALFWorld, games with movable receptacles, with slices, and games that are marked as
    not solvable are left out. The official release then has 3,553 training games, 140 in
    valid_seen and 134 in valid_unseen.
    """
    place = folder / FOLDERS[split]
    found = tuple(
        path
        for path in sorted(place.rglob("game.tw-pddl"))
        if not any(word in str(path.relative_to(folder)) for word in _SKIPPED)
        and _task_type(path) in task_types
        and not _is_unsolvable(path)
    )
    if not found:
        raise UserError(f"{place} holds no game of type {', '.join(task_types)}. {_ADVICE}")
    return found


def _is_unsolvable(path: Path) -> bool:
    """Whether the file says that its game cannot be won. Damaged files are reported when loaded."""
    try:
        return _UNSOLVABLE.search(path.read_bytes()) is not None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _task_type(path: Path) -> TaskType:
    """The task type, from the name of the folder of the game, else from the game itself."""
    folder = path.parent.parent.name.split("-")[0]
    named = next((kind for kind, name in OFFICIAL_NAMES.items() if name == folder), None)
    return named or load_game(path).goal.kind


@lru_cache(maxsize=512)
def load_game(path: Path) -> Game:
    """Read a game file. Raises ValueError if it is not valid."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not a game file: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a game file: it should hold one JSON object")
    try:
        return read_game(data)
    except ValueError as error:
        raise UserError(f"{path} is not a playable game: {error}") from None


@lru_cache(maxsize=4096)
def make_game(
    kind: TaskType, split: Split, seed: int, receptacles: int, objects: int, longest: int
) -> Game:
    """A generated game, cached: members of a group and later episodes share it."""
    return read_game(
        generate(kind, split, seed, receptacles=receptacles, objects=objects, longest=longest)
    )
