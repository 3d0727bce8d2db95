"""Full and read-only disks, and two processes on one run folder.

A full disk is a small memory file system, filled to a random level, where mounts are allowed.
Otherwise a limit on the size of files stands for it. After the failure the disk is repaired, and
the run must end with the figures of a run that met no failure.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.kills import differences
from tests.torture.processes import Ended, call, command, preload
from tests.torture.result import Result
from tests.torture.runs import train_words, write_recipe

MESSAGES = (
    *("cannot write", "could not be saved", "cannot create", "cannot lock", "No space left"),
    *("Read-only", "File too large"),
)


def torture(place: Path, attempts: int, seed: int) -> list[Result]:
    """Full disks, read-only disks, limits on the size of files, and two processes."""
    recipe = write_recipe(place)
    good = preload(command(train_words(recipe, place / "good", "run")), place / "log")
    assert good.code == 0, good.output
    rng = random.Random(seed)
    results = [
        _repeat("disk full (limit on the size of files)", attempts, lambda: _limited(place, rng)),
        Result("two processes on one folder", attempts, tuple(_two(place, attempts))),
    ]
    with _disk(place / "disk", "8m") as is_mounted:
        if is_mounted:
            results += [
                _repeat("disk full (memory file system)", attempts, lambda: _full(place, rng)),
                _repeat("disk read-only", attempts, lambda: _read_only(place, rng)),
            ]
    return results


def _repeat(name: str, attempts: int, attempt: Callable[[], list[str]]) -> Result:
    return Result(name, attempts, tuple(fault for _ in range(attempts) for fault in attempt()))


@contextmanager
def _disk(place: Path, size: str) -> Iterator[bool]:
    """A small file system at a place; False where mounts are not allowed."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    is_mounted = os.geteuid() == 0 and _succeeds(words)
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def _succeeds(words: list[str]) -> bool:
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _words(place: Path, runs: Path) -> list[str]:
    return train_words(place / "tiny.toml", runs, "run")


def _full(place: Path, rng: random.Random) -> list[str]:
    """Train on a disk that is full after a random number of bytes; then free it and resume."""
    runs, ballast = place / "disk" / "runs", place / "disk" / "ballast"
    free = shutil.disk_usage(place / "disk").free
    ballast.write_bytes(bytes(free - rng.randrange(1 << 12, 5 << 20)))
    first = call(command(_words(place, runs)), place / "log")
    ballast.unlink()
    faults = _judge(place, runs, first)
    shutil.rmtree(runs, ignore_errors=True)
    return faults


def _read_only(place: Path, rng: random.Random) -> list[str]:
    """Stop a run, make its disk read-only, resume, make it writable again, resume."""
    runs, disk = place / "disk" / "runs", place / "disk"
    shutil.copytree(place / "good", runs)
    (runs / "run" / "summary.json").unlink()
    _succeeds(["mount", "-o", "remount,ro", str(disk)])
    verb = rng.choice((["train", "--resume"], ["report"]))
    first = call(command([*verb, str(runs / "run")]), place / "log")
    _succeeds(["mount", "-o", "remount,rw", str(disk)])
    faults = _judge(place, runs, first)
    shutil.rmtree(runs)
    return faults


def _limited(place: Path, rng: random.Random) -> list[str]:
    """Train with a random limit on the size of files: weights, lines or nothing can be written."""
    runs, limit = place / "limited", rng.choice((0, 500, 2_000, 40_000, 400_000, 1_000_000))
    limit += rng.randrange(limit + 1)

    def run() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            command(_words(place, runs))()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    faults = _judge(place, runs, call(run, place / "log"), limit)
    shutil.rmtree(runs, ignore_errors=True)
    return faults


def _judge(place: Path, runs: Path, first: Ended, room: int | None = None) -> list[str]:
    """One message about the failure, then a whole run. `room`: bytes that the log could hold."""
    if first.code == 0:
        return [f"{name} differs" for name in differences(place / "good", runs)]
    if first.code != 2 or "Traceback" in first.output:
        return [f"exit code {first.code}: {first.output[-900:]}"]
    full = room is not None and len(first.output.encode()) >= room  # the message was cut off
    if not full and not any(message in first.output for message in MESSAGES):
        return [f"the message does not name the disk: {first.output[-300:]}"]
    again = call(command(_words(place, runs)), place / "log")
    if again.code != 0:
        return [f"after the repair: exit code {again.code}: {again.output[-900:]}"]
    return [f"{name} differs" for name in differences(place / "good", runs)]


def _two(place: Path, attempts: int) -> Iterator[str]:
    """While this process holds the lock of a run, every command that writes is refused."""
    from mage.run_folder import lock_run

    run = place / "good" / "run"
    (run / "summary.json").rename(place / "summary.json")
    with lock_run(run):
        for number in range(attempts):
            words = (["train", "--resume", str(run)], ["report", str(run)])[number % 2]
            ended = call(command(words), place / "log")
            if ended.code != 2 or f"in use by process {os.getpid()}" not in ended.output:
                yield f"mage {words[0]}: exit code {ended.code}: {ended.output[-300:]}"
    (place / "summary.json").rename(run / "summary.json")
