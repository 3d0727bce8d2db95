"""`python -m tests.torture`: run all torture tests and print one table.

Every part runs in its own process, two at a time. `--only PART` runs it here.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.torture.parts import FULL, PARTS, SHORT, Sizes
from tests.torture.result import Result, table


def main() -> int:
    """Print the table; the exit code is 1 if a test has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small numbers of attempts")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only")
    parser.add_argument("--jobs", type=int, default=2, help="parts at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the results to a JSON file")
    parser.add_argument(
        "--results", type=Path, help="keep the results of parts here; they are not run again"
    )
    given = parser.parse_args()
    options = [f"--seed={given.seed}", *(["--short"] if given.short else [])]
    if given.only:
        sizes = SHORT if given.short else FULL
        results = [one for name in given.only for one in _run_here(name, sizes, given.seed)]
    else:
        results = _run_parts(options, given.jobs, given.results)
    if given.out:
        given.out.write_text(json.dumps([asdict(one) for one in results]))
    sys.stdout.write(table(results) + "\n")
    return 1 if any(one.failures for one in results) else 0


def _run_here(name: str, sizes: Sizes, seed: int) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="torture-") as place:
        return PARTS[name](Path(place), sizes, seed)


def _run_parts(options: Sequence[str], jobs: int, results: Path | None) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        place = results or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        _start_parts(place, options, jobs)
        return [one for name in PARTS for one in _read(place / f"{name}.json", name)]


def _start_parts(place: Path, options: Sequence[str], jobs: int) -> None:
    waiting = [name for name in PARTS if not (place / f"{name}.json").is_file()]
    running = dict[str, subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            words = [f"--only={name}", f"--out={place / name}.json", *options]
            running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.torture", *words], stdout=subprocess.DEVNULL
            )
        time.sleep(0.5)
        running = {name: process for name, process in running.items() if process.poll() is None}


def _read(path: Path, name: str) -> list[Result]:
    if not path.is_file():
        return [Result(name, 0, ("the part ended without a result",))]
    found = json.loads(path.read_text())
    return [Result(one["test"], one["attempts"], tuple(one["failures"])) for one in found]


if __name__ == "__main__":
    sys.exit(main())
