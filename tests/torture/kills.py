"""SIGKILL at random moments of all kinds of runs; the resumed runs must be equal byte for byte.

Half of the kills come after a random time, half before a random file operation, so that many meet
the middle of a save. A killed run is continued and killed again until its share of kills is used.
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
from tests.torture.runs import RECIPE, WARMUP, train_words, write_recipe

# Wall-clock times, logs, and copies of the figures that have times in them.
_UNEQUAL = {"timing.jsonl", "worker.log", "curves.png", "report.html", "table1.html"}
_UNEQUAL |= {".lock", ".launch.json"}
_SKIPPED = {"tensorboard", "report", "logs"}
Words = Callable[[Path], list[str]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run: `words` of the command that starts or continues it in a folder."""

    name: str
    words: Words
    kills: int
    output_counts: bool = False  # the result is the output of the command, not a folder


@dataclass(frozen=True, slots=True)
class Measured:
    """The uninterrupted run: its files, seconds, file operations and output."""

    place: Path
    seconds: float
    operations: int
    output: str


def torture(place: Path, kinds: tuple[Kind, ...], seed: int) -> list[Result]:
    """Kill every kind of run; the results name the kind."""
    return [
        _torture_one(place / kind.name.replace(" ", "_"), kind, seed)
        for kind in kinds
        if kind.kills
    ]


def kinds(place: Path, scale: float = 1.0) -> tuple[Kind, ...]:
    """Kinds of runs with one process; `scale` is a factor on the number of kills."""
    tiny = write_recipe(place)
    warm = write_recipe(place, RECIPE + WARMUP, "warm")
    alone = ("--run.updates=0", "--evaluate.final_size=300")
    return (
        Kind("train", _train(tiny), _scaled(16, scale)),
        Kind("train, LoRA, warm-up first", _train(warm, "--learn.lora_rank=2"), _scaled(10, scale)),
        Kind("evaluation without training", _train(tiny, *alone), _scaled(8, scale)),
        Kind("mage warmup", lambda folder: _warm_words(warm, folder), _scaled(6, scale)),
        Kind("mage report", lambda folder: _report_words(tiny, folder), _scaled(4, scale)),
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
    return ["warmup", str(recipe), "--out", str(folder / "model")]


def _report_words(recipe: Path, folder: Path) -> list[str]:
    run = folder / "run"
    is_finished = (run / "summary.json").is_file()
    return ["report", str(run)] if is_finished else train_words(recipe, folder, "run")


def _reproduce_words(folder: Path) -> list[str]:
    return [
        "reproduce",
        "table1",
        "--environment=kuhn_poker",
        "--seeds=1",
        "--jobs=1",
        f"--out={folder / 'out'}",
        "--only=lamer",
        "--run.updates=3",
        "--run.evaluate_every=0",
        "--run.save_every=1",
        "--play.groups=2",
        "--evaluate.size=4",
        "--evaluate.final_size=4",
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
            failures += (found := _compare(kind, good, folder, ended))
            show_progress(kind.name, kind.kills - left, kind.kills, found)
            shutil.rmtree(folder)
            folder.mkdir()
    failures += (found := _compare(kind, good, folder, _attempt(place, kind, folder, None)))
    show_progress(kind.name, kind.kills, kind.kills, found)
    shutil.rmtree(place)
    return Result(f"SIGKILL: {kind.name}", kind.kills, tuple(failures))


def _measure(place: Path, kind: Kind) -> Measured:
    folder, counted = place / "good", place / "operations"
    folder.mkdir()

    def run() -> None:
        count_operations(folder, lambda number: counted.write_text(str(number)))
        command(kind.words(folder))()

    start = time.monotonic()
    ended = preload(run, place / "log")
    assert ended.code == 0, ended.output
    operations = int(counted.read_text()) if counted.is_file() else 0
    return Measured(folder, time.monotonic() - start, operations, ended.output)


def _moment(rng: random.Random, good: Measured, folder: Path) -> Kill:
    if rng.random() < 0.5 and good.operations:
        return Kill(operation=rng.randrange(1, good.operations + 1), folder=folder)
    return Kill(seconds=rng.uniform(0.0, good.seconds))


def _attempt(place: Path, kind: Kind, folder: Path, kill: Kill | None) -> Ended:
    return call(command(kind.words(folder)), place / "log", kill)


def _compare(kind: Kind, good: Measured, folder: Path, ended: Ended) -> list[str]:
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
