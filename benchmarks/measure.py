"""Time two ways of doing the same work in turn.

Other programs may use the same cores, so absolute figures vary. The ratio of neighbouring times is
stable: the ways alternate (A, B, A, B, ...), every time is processor time of this process (one
torch thread), and the ratio is the median over rounds.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Way = Callable[[], float]  # does the work and returns its processor seconds


class Skipped(Exception):
    """A benchmark cannot run here; the argument says what it needs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of a table. `ours` and `theirs`: units of work per second; `ratios`: per round."""

    benchmark: str
    case: str
    names: tuple[str, str]
    unit: str
    ours: float
    theirs: float
    ratios: tuple[float, ...]
    note: str = ""
    target: float | None = None

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    def line(self) -> str:
        rates = (
            f"{name} {_figure(rate)} {self.unit}/s"
            for name, rate in zip(self.names, (self.ours, self.theirs), strict=True)
        )
        spread = f"({min(self.ratios):.1f} to {max(self.ratios):.1f})"
        missed = self.target is not None and self.ratio < self.target
        goal = (
            "" if self.target is None else f"  {'MISSED: ' if missed else ''}target {self.target:g}"
        )
        return "   ".join(
            (
                f"{self.benchmark:12} {self.case:30}",
                *(f"{rate:28}" for rate in rates),
                f"ratio {self.ratio:4.1f} {spread}{goal}",
                self.note,
            )
        ).rstrip()


def timed(work: Callable[[], object]) -> Way:
    """A way that consists of one call."""

    def way() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return way


def take_turns(ways: Sequence[Way], rounds: int) -> list[list[float]]:
    """Seconds of every way in every round. The first round fills caches and is not counted."""
    found = [[way() for way in ways] for _ in range(rounds + 1)]
    return [list(seconds) for seconds in zip(*found[1:], strict=True)]


def compare(
    benchmark: str,
    case: str,
    names: tuple[str, str],
    unit: str,
    amount: float,
    ways: tuple[Way, Way],
    rounds: int,
) -> Comparison:
    """Time two ways of doing `amount` units of work."""
    return relate(benchmark, case, names, unit, amount, *take_turns(ways, rounds))


def relate(
    benchmark: str,
    case: str,
    names: tuple[str, str],
    unit: str,
    amount: float,
    ours: Sequence[float],
    theirs: Sequence[float],
) -> Comparison:
    """A comparison from the seconds of two ways in every round."""
    ratios = tuple(slow / fast for fast, slow in zip(ours, theirs, strict=True))
    return Comparison(
        benchmark, case, names, unit, amount / median(ours), amount / median(theirs), ratios
    )


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"
