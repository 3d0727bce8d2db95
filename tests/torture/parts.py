"""The parts of the torture tests and their sizes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture.result import Result


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many attempts every part makes.

    `kills` is a factor. Of the file operations of the first `operation_kinds` kinds of short runs
    every `operation_step` is met.
    """

    operation_kinds: int
    operation_step: int
    kills: float
    damages: int
    replies: int
    configurations: int
    trajectories: int
    disks: int
    updates: int
    calls: int


FULL = Sizes(4, 1, 1.0, 500, 1_000_000, 10_000, 5_000, 4, 1_000, 5_000)
SHORT = Sizes(1, 60, 0.0, 6, 3_000, 300, 100, 1, 20, 400)
Part = Callable[[Path, Sizes, int], list[Result]]


# Each part imports what it needs: parts that fork must not have computed with torch.


def operations(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import kills as part

    kinds = part.short_kinds(place)[: sizes.operation_kinds]
    return part.torture_operations(place, kinds, sizes.operation_step)


def kills(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import kills as part

    return part.torture(place, part.kinds(place, sizes.kills), seed)


def kills_of_workers(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import kills as part

    return part.torture(place, part.kinds_with_workers(place, sizes.kills), seed)


def kills_of_ranks(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import ranks as part

    return part.torture(place, sizes.kills, seed)


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


def tools(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import tools as part

    return [part.torture(sizes.calls, seed)]


def long_run(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import long_run as part

    return [part.torture(place, sizes.updates)]


def suites(place: Path, sizes: Sizes, seed: int) -> list[Result]:
    from tests.torture import suites as part

    return part.torture()


# The longest parts come first, so that no long part runs alone at the end.
PARTS: dict[str, Part] = {
    "operations": operations,
    "damage": damage,
    "long_run": long_run,
    "kills": kills,
    "kills_of_workers": kills_of_workers,
    "kills_of_ranks": kills_of_ranks,
    "replies": replies,
    "tools": tools,
    "disks": disks,
    "suites": suites,
    "configurations": configurations,
}
