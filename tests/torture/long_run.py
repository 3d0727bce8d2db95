"""A long run of tiny updates: memory, open files and the size of the run folder stay bounded."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.torture.processes import call
from tests.torture.result import Result

RECIPE = """
[run]
updates = {updates}
save_every = {hundredth}
evaluate_every = {tenth}
episodes_every = 1
keep_transcripts = {kept}
threads = 1
[environments]
name = "rock_paper_scissors"
throws = 1
[opponents.train]
random = 1.0
[play]
episodes = 2
groups = 1
members = 2
[agent]
max_tokens = 6
[memory]
name = "notes"
keep = "history"
[model]
path = "embedded-rps"
[engines]
name = "local"
slots = 4
context = 512
[learn]
minibatches = 1
[evaluate]
size = 2
final_size = 2
ceilings = false
"""
_MEMORY = 1.1  # allowed growth of the memory in use after the first tenth
_KEPT = 20  # transcripts
_CHECKPOINTS = 3  # the newest two and the best one
_FIRST = 4  # the earliest update of the comparison
_LINES = 3_000  # bytes of metrics, checksums, times and events that an update may add


@dataclass(frozen=True, slots=True)
class Usage:
    """Megabytes of memory, open files, and bytes below the run folder by kind."""

    update: int
    memory: float
    handles: int
    checkpoints: int  # their number
    largest: int  # bytes of the largest checkpoint
    transcripts: int
    lines: int  # all other files


def torture(place: Path, updates: int) -> Result:
    """Train and compare the usage after a tenth of the updates, or a few, with that at the end."""
    found = place / "usage.json"
    ended = call(lambda: _train(place, updates, found), place / "log", limit=6_000)
    if ended.code != 0:
        return Result("updates of a long run", updates, (ended.output[-900:],))
    first, last = (Usage(**one) for one in json.loads(found.read_text()))
    return Result(
        f"updates of a long run ({_text(first, last)})", updates, tuple(_judge(first, last))
    )


def _train(place: Path, updates: int, found: Path) -> None:
    from mage.config.loading import load_recipe
    from mage.run_folder import RunFolder
    from mage.training.callbacks import Callback
    from mage.training.start import train

    recipe = place / "long.toml"
    hundredth = max(1, updates // 100)
    sizes = {"updates": updates, "tenth": updates // 10, "hundredth": hundredth, "kept": _KEPT}
    recipe.write_text(RECIPE.format(**sizes))
    folder, seen = RunFolder.create(place / "long", load_recipe(recipe)), list[Usage]()

    class Watch(Callback):
        def on_update(
            self, update: int, total: int, metrics: Mapping[str, Any], timing: Mapping[str, float]
        ) -> None:
            if update in (max(updates // 10, _FIRST), updates):
                seen.append(measure(folder.path, update))
                found.write_text(json.dumps([asdict(one) for one in seen]))

    train(folder.path, Watch(), lambda: False)


def measure(run: Path, update: int) -> Usage:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    sizes = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}

    by_folder, by_checkpoint = Counter[str](), Counter[str]()
    for path, size in sizes.items():
        folder, *rest = path.relative_to(run).parts
        by_folder[folder] += size
        if folder == "checkpoints":
            by_checkpoint[rest[0]] += size
    return Usage(
        update,
        pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        len(os.listdir("/proc/self/fd")),
        len(by_checkpoint),
        max(by_checkpoint.values(), default=0),
        by_folder["episodes"],
        sum(sizes.values()) - by_folder["checkpoints"] - by_folder["episodes"],
    )


def _judge(first: Usage, last: Usage) -> list[str]:
    faults = []
    if last.memory > _MEMORY * first.memory:
        faults.append(f"memory grew from {first.memory:.0f} to {last.memory:.0f} MB")
    if last.handles > first.handles:
        faults.append(f"open files grew from {first.handles} to {last.handles}")
    if last.checkpoints > _CHECKPOINTS:
        faults.append(f"{last.checkpoints} checkpoints are kept")
    if last.largest > 1.1 * first.largest:
        faults.append(f"a checkpoint grew from {first.largest:,} to {last.largest:,} bytes")
    if last.transcripts > 1.5 * first.transcripts * _KEPT / min(first.update, _KEPT):
        faults.append(f"transcripts grew from {first.transcripts:,} to {last.transcripts:,} bytes")
    if last.lines - first.lines > _LINES * (last.update - first.update) + 11 * 40_000:
        faults.append(f"other files grew from {first.lines:,} to {last.lines:,} bytes")
    return faults


def _text(first: Usage, last: Usage) -> str:
    def megabytes(before: int, after: int) -> str:
        return f"{before / 1e6:.2f} to {after / 1e6:.2f} MB"

    return (
        f"memory {first.memory:.0f} to {last.memory:.0f} MB, open files {first.handles} to "
        f"{last.handles}, {last.checkpoints} checkpoints of "
        f"{megabytes(first.largest, last.largest)}, transcripts "
        f"{megabytes(first.transcripts, last.transcripts)}, other files "
        f"{megabytes(first.lines, last.lines)}, updates {first.update} to {last.update}"
    )
