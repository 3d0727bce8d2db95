"""`python -m tests.torture`: run all torture tests and print one table.

`--short` uses small numbers (a minute or two); `--only PART` runs one part.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture.result import Result, table


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many attempts every part makes."""

    kills: float
    damages: int
    replies: int
    configurations: int
    trajectories: int
    disks: int


FULL = Sizes(1.0, 500, 1_000_000, 10_000, 5_000, 8)
SHORT = Sizes(0.05, 12, 4_000, 300, 100, 1)
Part = Callable[[Path, Sizes, int], list[Result]]


def kills(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import kills as part

    return part.torture(place, part.kinds(place, sizes.kills), seed)


def damage(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import damage as part

    return [part.torture(place, sizes.damages, seed)]


def replies(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import replies as part

    return part.torture(sizes.replies, seed)


def configurations(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import configurations as part
    from tests.torture import trajectories

    return [
        *part.torture(place, sizes.configurations, seed),
        trajectories.torture(place, sizes.trajectories, seed),
    ]


def disks(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import disks as part

    return part.torture(place, sizes.disks, seed)


def suites(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import suites as part

    return part.torture()


# Parts that fork come first: they need a process that has not computed with torch.
PARTS: dict[str, Part] = {
    "kills": kills,
    "damage": damage,
    "disks": disks,
    "replies": replies,
    "configurations": configurations,
    "suites": suites,
}


def main() -> int:
    """Print the table; the exit code is 1 if a test has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small numbers")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    results: list[Result] = []
    for name in given.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="torture-") as place:
            sys.stderr.write(f"{name}\n")
            results += PARTS[name](Path(place), SHORT if given.short else FULL, given.seed)
    sys.stdout.write(table(results) + "\n")
    return 1 if any(one.failures for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
