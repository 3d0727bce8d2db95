"""A long run of tiny updates: memory, open files and the size of the run folder stay bounded."""

import json
import os
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
keep_transcripts = 20
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
_LINES = 3_000  # bytes of metrics, checksums, times and events that an update may add


@dataclass(frozen=True, slots=True)
class Usage:
    """Megabytes of memory, open files, and bytes below the run folder by kind."""

    update: int
    memory: float
    handles: int
    saved: int  # checkpoints and transcripts
    lines: int  # all other files


def torture(place: Path, updates: int) -> Result:
    """Train and compare the usage after a tenth of the updates with that at the end."""
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
    recipe.write_text(RECIPE.format(updates=updates, tenth=updates // 10, hundredth=hundredth))
    folder, seen = RunFolder.create(place / "long", load_recipe(recipe)), list[Usage]()

    class Watch(Callback):
        def on_update(
            self, update: int, total: int, metrics: Mapping[str, Any], timing: Mapping[str, float]
        ) -> None:
            if update in (updates // 10, updates):
                seen.append(measure(folder.path, update))
                found.write_text(json.dumps([asdict(one) for one in seen]))

    train(folder.path, Watch(), lambda: False)


def measure(run: Path, update: int) -> Usage:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    sizes = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    saved = sum(
        size
        for path, size in sizes.items()
        if path.relative_to(run).parts[0] in ("checkpoints", "episodes")
    )
    return Usage(
        update,
        pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        len(os.listdir("/proc/self/fd")),
        saved,
        sum(sizes.values()) - saved,
    )


def _judge(first: Usage, last: Usage) -> list[str]:
    faults = []
    if last.memory > _MEMORY * first.memory:
        faults.append(f"memory grew from {first.memory:.0f} to {last.memory:.0f} MB")
    if last.handles > first.handles:
        faults.append(f"open files grew from {first.handles} to {last.handles}")
    if last.saved > 1.5 * first.saved:  # the best checkpoint may be that of update 0, a small one
        faults.append(f"saved files grew from {first.saved:,} to {last.saved:,} bytes")
    if last.lines - first.lines > _LINES * (last.update - first.update) + 11 * 40_000:
        faults.append(f"other files grew from {first.lines:,} to {last.lines:,} bytes")
    return faults


def _text(first: Usage, last: Usage) -> str:
    return (
        f"memory {first.memory:.0f} to {last.memory:.0f} MB, open files {first.handles} to "
        f"{last.handles}, checkpoints and transcripts {first.saved / 1e6:.2f} to "
        f"{last.saved / 1e6:.2f} MB, other files {first.lines / 1e6:.2f} to "
        f"{last.lines / 1e6:.2f} MB, updates {first.update} to {last.update}"
    )
