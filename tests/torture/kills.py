"""SIGKILL in all kinds of runs; the resumed runs must be equal byte for byte.

Short runs are killed before each of their file operations, once each. Longer runs are killed at
random moments, half of them before a file operation; such a run is continued and killed again until
its share of kills is used.
"""

import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture.processes import Ended, Kill, call, command, count_operations, preload
from tests.torture.result import Result, show_progress
from tests.torture.runs import MEMENTO, SHORT, train_words, write_recipe

# Wall-clock times, logs, and copies of the figures that have times in them.
_UNEQUAL = {
    *("timing.jsonl", "worker.log", "curves.png", "curves.svg", "report.html", "table1.html"),
}
_UNEQUAL |= {".lock", ".launch.json"}
_SKIPPED = {"tensorboard", "report", "logs"}
Words = Callable[[Path], list[str]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run: `words` of the command that starts or continues it in a folder."""

    name: str
    words: Words
    kills: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The uninterrupted run: its files, seconds, file operations and output."""

    place: Path
    seconds: float
    operations: tuple[str, ...]
    output: str


def torture(place: Path, kinds: tuple[Kind, ...], seed: int) -> list[Result]:
    """Kill every kind of run; the results name the kind."""
    return [
        _torture_one(place / kind.name.replace(" ", "_"), kind, seed)
        for kind in kinds
        if kind.kills
    ]


def torture_operations(place: Path, kinds: tuple[Kind, ...], step: int) -> list[Result]:
    """Kill each kind of run before every file operation, or counted from the last every `step`."""
    return [_kill_before_each(place / kind.name.replace(" ", "_"), kind, step) for kind in kinds]


def short_kinds(place: Path) -> tuple[Kind, ...]:
    """Short runs whose file operations are killed one by one."""
    tiny, alone = write_recipe(place), ("--run.updates=0", "--warmup.first=false")
    return (
        Kind("train, league, LoRA, warm-up first", _train(tiny, *SHORT)),
        Kind("evaluation without training", _train(tiny, *SHORT, *alone)),
        Kind("Memento, evaluation in three shards", _train(tiny, *alone, *MEMENTO)),
        Kind("mage warmup", lambda folder: _warm_words(tiny, folder)),
    )


def kinds(place: Path, scale: float = 1.0) -> tuple[Kind, ...]:
    """Kinds of runs with one process; `scale` is a factor on the number of kills."""
    tiny, alone = write_recipe(place), ("--run.updates=0", "--evaluate.final_size=300")
    return (
        Kind("train", _train(tiny), _scaled(16, scale)),
        Kind("evaluation without training", _train(tiny, *alone), _scaled(8, scale)),
    )


def kinds_with_workers(place: Path, scale: float = 1.0) -> tuple[Kind, ...]:
    """Kinds of runs with several processes."""
    tiny, two = write_recipe(place), "--run.workers=2"
    return (
        Kind("two workers, members", _train(tiny, two, "--run.deal=members"), _scaled(3, scale)),
        Kind("two workers, groups", _train(tiny, two, "--run.deal=groups"), _scaled(3, scale)),
        Kind("reproduction", _reproduce_words, _scaled(3, scale)),
    )


def _scaled(kills: int, scale: float) -> int:
    return round(kills * scale)


def _train(recipe: Path, *overrides: str) -> Words:
    return lambda folder: train_words(recipe, folder, "run", *overrides)


def _warm_words(recipe: Path, folder: Path) -> list[str]:
    """A model that is there is whole: nothing is left to do."""
    if (folder / "model").is_dir():
        return ["list", "recipes"]
    return ["warmup", str(recipe), "--out", str(folder / "model"), *SHORT]


def _reproduce_words(folder: Path) -> list[str]:
    return [
        *("reproduce", "table1", "--environment=kuhn_poker", "--seeds=1", "--jobs=1"),
        *(f"--out={folder / 'out'}", "--only=lamer", "--run.updates=3", "--run.evaluate_every=0"),
        *("--run.save_every=1", "--play.groups=2", "--evaluate.size=4", "--evaluate.final_size=4"),
        "--engines.slots=16",
    ]


def _torture_one(place: Path, kind: Kind, seed: int) -> Result:
    place.mkdir(parents=True)
    good = _measure(place, kind)
    rng, folder, failures = random.Random(f"{seed}/{kind.name}"), place / "killed", []
    folder.mkdir()
    left = kind.kills
    while left:
        ended = _attempt(place, kind, folder, _moment(rng, good, folder))
        left -= ended.was_killed
        if not ended.was_killed:
            failures += (found := _compare(good, folder, ended))
            show_progress(kind.name, kind.kills - left, kind.kills, found)
            shutil.rmtree(folder)
            folder.mkdir()
    failures += (found := _compare(good, folder, _attempt(place, kind, folder, None)))
    show_progress(kind.name, kind.kills, kind.kills, found)
    shutil.rmtree(place)
    return Result(f"SIGKILL: {kind.name}", kind.kills, tuple(failures))


def _kill_before_each(place: Path, kind: Kind, step: int) -> Result:
    place.mkdir(parents=True)
    good, folder, failures = _measure(place, kind), place / "killed", []
    numbers = range(len(good.operations), 0, -step)
    for done, number in enumerate(numbers, start=1):
        folder.mkdir()
        _attempt(place, kind, folder, Kill(operation=number, folder=folder))
        found = _compare(good, folder, _attempt(place, kind, folder, None))
        failures += (found := [f"before {good.operations[number - 1]}: {one}" for one in found])
        show_progress(f"each operation: {kind.name}", done, len(numbers), found)
        shutil.rmtree(folder)
    shutil.rmtree(place)
    return Result(f"SIGKILL before each file operation: {kind.name}", len(numbers), tuple(failures))


def _measure(place: Path, kind: Kind) -> Measured:
    folder, counted = place / "good", place / "operations"
    folder.mkdir()

    def note(number: int, name: str) -> None:
        with open(counted, "a") as file:
            file.write(name + "\n")

    def run() -> None:
        count_operations(folder, note)
        command(kind.words(folder))()

    start = time.monotonic()
    ended = preload(run, place / "log")
    assert ended.code == 0, ended.output
    operations = tuple(counted.read_text().splitlines())
    return Measured(folder, time.monotonic() - start, operations, ended.output)


def _moment(rng: random.Random, good: Measured, folder: Path) -> Kill:
    if rng.random() < 0.5:
        return Kill(operation=rng.randrange(1, len(good.operations) + 1), folder=folder)
    return Kill(seconds=rng.uniform(0.0, good.seconds))


def _attempt(place: Path, kind: Kind, folder: Path, kill: Kill | None) -> Ended:
    return call(command(kind.words(folder)), place / "log", kill)


def _compare(good: Measured, folder: Path, ended: Ended) -> list[str]:
    if ended.code != 0 or "Traceback" in ended.output:
        return [f"exit code {ended.code}: {ended.output.strip()[-900:]}"]
    return [f"{name} differs" for name in differences(good.place, folder)]


def differences(good: Path, other: Path) -> list[str]:
    names = {path.relative_to(root) for root in (good, other) for path in root.rglob("*")}
    return sorted(
        str(name)
        for name in names
        if not (_SKIPPED & set(name.parts))
        and name.name not in _UNEQUAL
        and not (good / name).is_dir()
        and _content(good / name, good) != _content(other / name, other)
    )


def _content(path: Path, root: Path) -> object:
    """The bytes of a file; a summary without its path, its time and its checksum."""
    if not path.is_file():
        return None
    if path.name in ("summary.json", "table1.json"):
        return _without_clock(json.loads(path.read_text()))
    return path.read_bytes().replace(str(root).encode(), b"ROOT")


def _without_clock(value: object) -> object:
    if isinstance(value, dict):
        left_out = {"run", "seconds", "sha256", "written", "versions", "hours"}
        return {key: _without_clock(item) for key, item in value.items() if key not in left_out}
    return [_without_clock(item) for item in value] if isinstance(value, list) else value
