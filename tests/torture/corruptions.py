"""Ways to damage a file of a run folder."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

Corrupt = Callable[[Path, random.Random], None]
_GARBAGE = (
    *(b"[" * 100_000, b"null", b"[]", b"7", b'"text"', b"{}", b'{"a": 1}', b"\xff\xfe\x00\x80"),
    *(b"\n\n\n", b'{"update": 1e999}', b"1" * 5_000),
)
_VALUES = (None, [], {}, "x", -1, 10**30, 1e300, True, "\u202e\x1b[2J", [[]], {"a": {}})


def truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(max(1, path.stat().st_size)))


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 5))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def garbage(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.choice(_GARBAGE))


def edit_digit(path: Path, rng: random.Random) -> None:
    """Change one digit, as a user with an editor would."""
    data = bytearray(path.read_bytes())
    places = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if places:
        place = rng.choice(places)
        data[place] = 48 + (data[place] - 48 + rng.randrange(1, 10)) % 10
    path.write_bytes(data)


def edit_lines(path: Path, rng: random.Random) -> None:
    """Remove, repeat, exchange or insert a line."""
    lines = path.read_bytes().split(b"\n")
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[one]
        case 1:
            lines.insert(one, lines[two])
        case 2:
            lines[one], lines[two] = lines[two], lines[one]
        case _:
            lines.insert(one, rng.choice(_GARBAGE))
    path.write_bytes(b"\n".join(lines))


def edit_value(path: Path, rng: random.Random) -> None:
    """Replace one value of a JSON file, or of one line of it, by a value of another type."""
    lines = path.read_bytes().split(b"\n")
    whole = path.suffix != ".jsonl"
    number = 0 if whole else rng.randrange(len(lines))
    try:
        value = json.loads(b"\n".join(lines) if whole else lines[number])
    except (ValueError, RecursionError):
        edit_lines(path, rng)
        return
    text = json.dumps(_replaced(value, rng)).encode()
    lines[number] = text
    path.write_bytes(text if whole else b"\n".join(lines))


def _replaced(value: object, rng: random.Random) -> object:
    if isinstance(value, dict) and value:
        name = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: _replaced(value[name], rng)}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [*value[:place], _replaced(value[place], rng), *value[place + 1 :]]
    return rng.choice(_VALUES)


def swap(path: Path, rng: random.Random) -> None:
    """Exchange the file with another one of the same kind."""
    others = [one for one in path.parent.glob(f"*{path.suffix}") if one != path and one.is_file()]
    folders = [one / path.name for one in path.parent.parent.iterdir() if one != path.parent]
    others += [one for one in folders if one.is_file()]
    if not others:
        delete(path, rng)
        return
    other, aside = rng.choice(sorted(others)), path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def swap_folders(path: Path, rng: random.Random) -> None:
    """Exchange two checkpoints; for other files, exchange the file with another one."""
    folder = path.parent
    others = [one for one in folder.parent.glob("update_*") if one != folder]
    if folder.parent.name != "checkpoints" or not others:
        swap(path, rng)
        return
    other, aside = rng.choice(sorted(others)), folder.with_name("aside")
    folder.rename(aside)
    other.rename(folder)
    aside.rename(other)


def make_folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def make_link(path: Path, rng: random.Random) -> None:
    """A symbolic link to nothing, to itself, to a folder, to a device or to another file."""
    target = rng.choice(("gone", path.name, ".", "/dev/null", "/etc/hostname"))
    path.unlink()
    path.symlink_to(target)


def make_pipe(path: Path, rng: random.Random) -> None:
    """A pipe: who reads it waits for ever."""
    path.unlink()
    os.mkfifo(path)


def forbid(path: Path, rng: random.Random) -> None:
    """The parent folder becomes a file."""
    if path.parent.name == "run":  # the run folder itself stays
        delete(path, rng)
        return
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"a file")


CORRUPTIONS: tuple[Corrupt, ...] = (
    *(truncate, flip, flip, delete, empty, garbage, edit_digit, edit_digit, edit_lines),
    *(edit_value, edit_value, swap, swap_folders, make_folder, make_link, make_pipe, forbid),
)
