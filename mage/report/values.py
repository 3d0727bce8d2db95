"""Figures as text for curves, pages and sentences: signs, per cent, intervals."""

import math
from collections.abc import Callable, Iterable, Sequence

from mage.evaluation.statistics import Estimate
from mage.report.run_results import REGRET, SCORE, Measure

NOTHING = "–"


def show(value: float, measure: Measure) -> str:
    return f"{100 * value:.0f} %" if measure.percent else f"{value:+.3f}".replace("-", "−")


def show_estimate(found: Estimate | None, measure: Measure, signed: bool = False) -> str:
    """A figure with its interval in brackets, if it has one."""
    if found is None:
        return NOTHING
    write = _writer(measure, signed)
    value = f"{write(found.value)} %" if measure.percent else write(found.value)
    if math.isfinite(found.low):
        return f"{value} ({write(found.low)} to {write(found.high)})"
    return value


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def show_bound(value: float | None) -> str:
    return NOTHING if value is None else show(value, SCORE)


def _writer(measure: Measure, signed: bool) -> Callable[[float], str]:
    """Scores and differences have a sign; rates and regrets are never negative and have none."""
    if measure is REGRET:
        return lambda value: f"{value:.3f}"
    if not measure.percent:
        return lambda value: show(value, SCORE)
    return lambda value: (f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}").replace(
        "-", "−"
    )
