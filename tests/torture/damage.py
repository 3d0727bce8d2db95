"""Damaged run folders: every command refuses them, warns, or shows the figures of the whole run.

One run is trained to its end and one to the evaluation after training, then copied for every
attempt. An attempt damages one file and gives the folder to `mage check` and to one more command.
"""

import gzip
import json
import os
import random
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.corruptions import CORRUPTIONS
from tests.torture.processes import Ended, call, call_here, command, count_operations, preload
from tests.torture.result import Result, show_progress
from tests.torture.runs import train_words, write_recipe

# Wall-clock times and copies of the figures: nothing reads them back.
_UNREAD = {"timing.jsonl", ".lock"}
_COPIES = {"report", "tensorboard"}
_CLOCKS = {"seconds", "started", "modified", "age", "versions", "hours", "timing", "state"}


@dataclass(frozen=True, slots=True)
class Good:
    """A finished run, the same run before its last evaluation, and the output of all commands."""

    finished: Path
    unfinished: Path
    shown: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A damaged copy of a run, and what was done to it."""

    run: Path
    out: Path
    what: str
    is_finished: bool


def prepare(place: Path) -> Good:
    """Train the runs and record what the commands show."""
    recipe, runs = write_recipe(place), place / "good"
    whole = preload(command(train_words(recipe, runs, "run")), place / "log")
    assert whole.code == 0, whole.output
    unfinished = place / "unfinished" / "run"
    ended = call(_stop_in_last_evaluation(recipe, unfinished), place / "log")
    assert ended.was_killed, ended.output
    assert not (unfinished / "summary.json").exists()
    shown = {
        name: show(name, runs / "run", place / f"shown_{name}", place / "log", preload)[1]
        for name in SHOWN
    }
    return Good(runs / "run", unfinished, shown)


def _stop_in_last_evaluation(recipe: Path, run: Path) -> Callable[[], None]:
    def train() -> None:
        shards = run / "evaluations" / "after_test.shards.jsonl"

        def check(number: int, name: str) -> None:
            if shards.is_file() and shards.stat().st_size:
                os.kill(os.getpid(), 9)

        count_operations(run / "evaluations", check)
        command(train_words(recipe, run.parent, run.name))()

    return train


def torture(place: Path, attempts: int, seed: int) -> Result:
    """Damage copies of the runs; every failure says what was done and what came out."""
    import mage.api.agents
    import mage.api.report  # noqa: F401

    good, rng, failures = prepare(place), random.Random(seed), []
    for number in range(attempts):
        attempt = _damage(place, good, number, rng)
        faults = _judge(good, attempt, number)
        failures += (found := [f"attempt {number}: {attempt.what}: {one}" for one in faults])
        show_progress("damaged run folders", number + 1, attempts, found)
        shutil.rmtree(place / "attempt", ignore_errors=True)
    return Result("damaged run folders", attempts, tuple(failures))


def _damage(place: Path, good: Good, number: int, rng: random.Random) -> Attempt:
    is_finished = number % 3 != 0
    source = good.finished if is_finished else good.unfinished
    run = place / "attempt" / "run"
    shutil.copytree(source, run)
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and not _is_copy(run, path)]
    path, corrupt = rng.choice(files), rng.choice(CORRUPTIONS)
    corrupt(path, rng)
    what = f"{corrupt.__name__} {path.relative_to(run)} of {source.parent.name}"
    return Attempt(run, place / "attempt" / "out", what, is_finished)


def _is_copy(run: Path, path: Path) -> bool:
    return bool(_COPIES & set(path.relative_to(run).parts))


def _judge(good: Good, attempt: Attempt, number: int) -> list[str]:
    log = attempt.run.parent / "log"
    faults = _check(good, attempt, call_here(["check", str(attempt.run)]))
    if not attempt.is_finished:
        return faults + _resume(good, attempt, log)
    name = _TURNS[number % len(_TURNS)]
    ended, shown = show(name, attempt.run, attempt.out, log)
    return faults + _messages(name, ended) + _figures(good, name, ended, shown)


# --- mage check


def _check(good: Good, attempt: Attempt, ended: Ended) -> list[str]:
    faults = _messages("check", ended, allowed=(0, 1, 2))
    source = good.finished if attempt.is_finished else good.unfinished
    if ended.code == 0 and (changed := _changed(source, attempt.run)):
        faults.append(f"mage check finds no fault, but {', '.join(changed)} changed")
    return faults


def _changed(good: Path, run: Path) -> list[str]:
    """Files with other figures than in the whole run. Transcripts may be deleted by the user."""
    found = []
    for path in sorted(good.rglob("*")):
        place = path.relative_to(good)
        if path.is_dir() or path.name in _UNREAD or _is_copy(good, path):
            continue
        # A resumed evaluation verifies shards; a changed table of contents is not used.
        if ".shards." in path.name or path.name.endswith(".index.json"):
            continue
        other = run / place
        may_be_absent = (
            place.parts[0] in ("episodes", "checkpoints", "summary.json") or ".shards." in path.name
        )
        if not other.is_file():
            if not (may_be_absent and not other.is_symlink()):
                found.append(f"{place} (missing)")
        elif _meaning(path) != _meaning(other):
            found.append(str(place))
    return found


def _meaning(path: Path) -> Any:
    """The content without white space and without the header of a gzip file."""
    data = path.read_bytes()
    try:
        if path.suffix == ".gz":
            return gzip.decompress(data)
        if path.suffix == ".toml":
            return tomllib.loads(data.decode())
        if path.suffix == ".json":
            return json.loads(data)
        return [line for line in data.split(b"\n") if line.strip()]
    except (OSError, EOFError, ValueError, RecursionError):
        return data


# --- mage train --resume


def _resume(good: Good, attempt: Attempt, log: Path) -> list[str]:
    ended = call(command(["train", "--resume", str(attempt.run)]), log)
    faults = _messages("train --resume", ended)
    if ended.code == 0:
        changed = [
            name
            for name in _changed(good.finished, attempt.run)
            if not name.startswith(("episodes", "versions", "summary"))
            and ("checkpoints" not in name or "update_000003" in name)
        ]
        if changed and not _warns(ended):
            faults.append(f"train --resume ends well, but {', '.join(changed)} differ")
    return faults


# --- commands that show figures


def show(
    name: str, run: Path, out: Path, log: Path, how: Callable[..., Ended] = call
) -> tuple[Ended, Any]:
    """Run a command on a run folder; returns how it ended and the figures that it showed."""
    words = {
        "report": ["report", str(run), "--json"],
        "finished": ["train", "--resume", str(run), "--json"],
        "evaluate": ["evaluate", str(run), "--json"],
        "view": ["view", str(run), "--export", str(out), "--episodes=1"],
        "export": ["export", str(run), "--out", str(out)],
    }[name]
    in_child = name == "evaluate" or how is not call
    ended = how(command(words), log) if in_child else call_here(words)
    return ended, _READERS[name](run, out, ended) if ended.code == 0 else None


def _json_of(run: Path, out: Path, ended: Ended) -> Any:
    start = ended.output.find("{")
    value = json.JSONDecoder().raw_decode(ended.output[start:])[0]
    return _plain(value)


def _report_of(run: Path, out: Path, ended: Ended) -> Any:
    stored = sorted(path.name for path in (run / "episodes").glob("*"))
    return _json_of(run, out, ended), (run / "report" / "transcripts.md").read_text(), stored


def _export_of(run: Path, out: Path, ended: Ended) -> Any:
    """The rows by stored set; a set that the user has deleted is left out."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    files = [path.name.split(".") for path in (run / "episodes").glob("*.jsonl.gz")]
    names = sorted(parts[0] for parts in files if len(parts) == 3)  # no credit, no moves
    return {name: [row for row in rows if row["set"] == name] for name in names}


def _page_of(run: Path, out: Path, ended: Ended) -> Any:
    found = {}
    for path in sorted((out / "data").rglob("*.js")):
        text = path.read_text()
        value = json.JSONDecoder().raw_decode(text[text.index(",") + 1 :])[0]
        found[str(path.relative_to(out))] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Without paths and wall-clock times."""
    if isinstance(value, dict):
        return {
            key: _plain(item)
            for key, item in value.items()
            if key not in _CLOCKS | {"path", "run", "files", "of"}
        }
    return [_plain(item) for item in value] if isinstance(value, list) else value


_READERS: dict[str, Callable[[Path, Path, Ended], Any]] = {
    "report": _report_of,
    "finished": _report_of,
    "evaluate": _json_of,
    "view": _page_of,
    "export": _export_of,
}
SHOWN = tuple(_READERS)
# Cheap commands have more turns. Numbers that 3 divides are runs that are resumed.
_TURNS = ("export", "evaluate", "view", "report", "export", "evaluate", "view", "finished")


def _messages(name: str, ended: Ended, allowed: tuple[int, ...] = (0, 2)) -> list[str]:
    if "Traceback" in ended.output or ended.code not in allowed:
        return [f"{name}: exit code {ended.code}: {ended.output.strip()[-900:]}"]
    if ended.code == 2 and "mage: " not in ended.output:
        return [f"{name}: exit code 2 without a message"]
    return []


def _warns(ended: Ended) -> bool:
    words = (
        *("damaged", "missing", "changed", "broken", "checksum", "cannot be read", "is not"),
        *("instead of the best one", '"finished": false'),
    )
    return any(word in ended.output for word in words)


def _figures(good: Good, name: str, ended: Ended, shown: Any) -> list[str]:
    if ended.code != 0 or shown == good.shown[name] or _warns(ended):
        return []
    if name in ("report", "finished") and shown[0] == good.shown[name][0]:
        return [] if shown[2] != good.shown[name][2] else [f"{name} shows other transcripts"]
    if name == "export":
        differ = [one for one in shown if shown[one] != good.shown[name].get(one)]
        return [f"export shows other rows of {', '.join(differ)}"] if differ else []
    if name == "view" and isinstance(shown, dict):
        return _page_faults(good.shown[name], shown)
    return [f"{name} ends well, but shows other figures"]


def _page_faults(good: dict[str, Any], shown: dict[str, Any]) -> list[str]:
    """A page may leave out what it says is damaged; all else must be equal."""
    if '"error": ' in json.dumps(shown["data/runs.js"]) or _warns(Ended(0, json.dumps(shown))):
        return []
    differ = [name for name in good if shown.get(name) != good[name]]
    return [f"view ends well, but differs in {', '.join(differ[:5])}"] if differ else []
