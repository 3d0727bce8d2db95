"""Boxoban level files.

A level is a line `; number` and then rows of `#` wall, `@` player, `$` box, `.` target, `+` player
on a target, `*` box on a target. A file is read when a task first needs one of its levels. An error
message names the file and what is wrong.
"""

import zlib
from functools import lru_cache
from pathlib import Path

from mage.config.errors import UserError
from mage.environments.sokoban.rooms import SHARES, Room, build_room

WHERE = "https://github.com/google-deepmind/boxoban-levels"
LARGEST = 20  # rows and columns; bounds the length of observations
_SYMBOLS = frozenset("# .$@*+")


def level_files(path: str, split: str) -> tuple[tuple[Path, ...], bool]:
    """The files of a split, and whether the folder has a subfolder for this split.

    Subfolders are `train`, and `test` or `valid`.
    """
    root = Path(path).expanduser()
    names = {"train": ("train",), "test": ("test", "valid")}.get(split, ())
    own = next((root / name for name in names if (root / name).is_dir()), None)
    found = _text_files(own or root)
    if not found:
        raise UserError(
            f"environments.levels: there are no Boxoban levels at {path!r} (a .txt file, or "
            f"a folder with some); get them from {WHERE}"
        )
    return found, own is not None


@lru_cache(maxsize=64)
def _text_files(root: Path) -> tuple[Path, ...]:
    return (root,) if root.is_file() else tuple(sorted(root.rglob("*.txt")))


def pick_level(path: str, split: str, seed: int) -> Room:
    """The level of a split for this seed.

    Without subfolders for splits, one level in five is held out, by a hash that is equal for
    rotations and mirror images.
    """
    files, own = level_files(path, split)
    file = files[seed % len(files)]
    levels = read_levels(file)
    if not own and split in ("train", "test"):
        levels = tuple(
            level
            for level in levels
            if (zlib.crc32(_smallest_form(level).encode()) % SHARES == 0) == (split == "test")
        )
        if not levels:
            raise UserError(
                f"environments.levels: {file} has too few levels to hold some out for split "
                f"{split!r}"
            )
    return parse_level(levels[seed // len(files) % len(levels)], str(file))


def _smallest_form(level: str) -> str:
    """The first of the eight symmetric forms of a level in alphabetical order."""
    rows = level.splitlines()
    turned = ["".join(column) for column in zip(*rows)]
    forms = [form[::step] for form in (rows, turned) for step in (1, -1)]
    return min("\n".join(row[::step] for row in form) for form in forms for step in (1, -1))


@lru_cache(maxsize=32)
def read_levels(file: Path) -> tuple[str, ...]:
    """The levels of a file as text."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"environments.levels: {file} cannot be read as text: {error}") from None
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(";"):
            blocks.append([])
        elif line.strip():
            if not blocks:
                raise UserError(
                    f"environments.levels: {file} is not a Boxoban file: it begins with "
                    f"{line[:40]!r}, not with '; 0'"
                )
            blocks[-1].append(line)
    if not blocks:
        raise UserError(f"environments.levels: {file} is not a Boxoban file: it is empty")
    return tuple("\n".join(rows) for rows in blocks)


@lru_cache(maxsize=256)
def parse_level(text: str, where: str = "level") -> Room:
    """A level as a room. Raises ValueError with the reason if it is not valid."""
    try:
        return _read_room(text.splitlines())
    except _Fault as fault:
        raise UserError(
            f"environments.levels: {where} has a level that cannot be played: {fault}\n{text[:600]}"
        ) from None


class _Fault(Exception):
    """Why a level cannot be played."""


def _read_room(rows: list[str]) -> Room:
    symbols = "".join(rows)
    boxes, targets = (
        {square for square, symbol in enumerate(symbols) if symbol in some}
        for some in ("$*", ".*+")
    )
    if (
        not rows
        or len({len(row) for row in rows}) > 1
        or not 3 <= len(rows) <= LARGEST
        or not 3 <= len(rows[0]) <= LARGEST
    ):
        raise _Fault(f"its rows must be equally long, 3 to {LARGEST} rows and columns")
    if strange := set(symbols) - _SYMBOLS:
        known = "".join(sorted(_SYMBOLS))
        raise _Fault(f"{sorted(strange)[0]!r} is none of the symbols {known!r}")
    if symbols.count("@") + symbols.count("+") != 1:
        raise _Fault("it needs exactly one player")
    if len(boxes) != len(targets) or not boxes:
        raise _Fault(f"it has {len(boxes)} boxes and {len(targets)} targets")
    width, player = len(rows[0]), symbols.index("@" if "@" in symbols else "+")
    floor = _inside(symbols, width, player)
    if not boxes | targets <= floor:
        raise _Fault("a box or a target lies outside the walls")
    return build_room(len(rows), width, floor, targets, player, boxes)


def _inside(symbols: str, width: int, player: int) -> set[int]:
    """The squares inside the walls."""
    found, queue = {player}, [player]
    for square in queue:
        row, column = divmod(square, width)
        if row in (0, len(symbols) // width - 1) or column in (0, width - 1):
            raise _Fault("the player can leave the room")
        for ahead in (square - width, square + width, square - 1, square + 1):
            if symbols[ahead] != "#" and ahead not in found:
                found.add(ahead)
                queue.append(ahead)
    return found
