"""Tables of results: a run before and after training, an evaluation, a comparison."""

import math
from collections.abc import Sequence
from dataclasses import replace

from rich.console import RenderableType

from mage.cli.terminal.evaluation_table import table
from mage.cli.terminal.tables import GAP, plain_table
from mage.evaluation.compare import Comparison
from mage.evaluation.figures import Cell, EpisodeFigures, Evaluation
from mage.evaluation.kinds import Kind
from mage.evaluation.panels import NOBODY
from mage.evaluation.statistics import Difference, Estimate
from mage.report.run_results import SCORE, Measure, RunResults, title_of
from mage.types import Split

# columns that are left out of a narrow terminal, in this order
_NARROW = ("tokens", "draws", "Pass@k", "exploits", "gain", "tasks")


# --- A run ----------------------------------------------------------------------------------


def result_table(results: RunResults, split: Split) -> RenderableType:
    """One row per episode: before, after, memory emptied, and the ceilings."""
    measure = results.measure
    cells = results.overall(split)
    first = next(iter(cells.values()))
    bounds = first if measure is SCORE and first.non_adapting is not None else None
    header = [
        "episode",
        *(title_of(stage, cells) for stage in cells),
        *(("best without adapting", "best learner") if bounds else ()),
    ]
    rows = [
        (
            str(number + 1),
            *(_at(measure, cell, number) for cell in cells.values()),
            *(_bound_cells(bounds, number) if bounds else ()),
        )
        for number in range(max(len(cell.episodes) for cell in cells.values()))
    ]
    unit = "rate of won episodes" if measure.percent else f"{measure.title} per episode"
    panel = f"{results.environment}, {split} panel of {first.tasks:,} tasks"
    return plain_table(header, rows, f"{panel}: {unit}, with 95 % interval")


def _at(measure: Measure, cell: Cell, number: int) -> str:
    return show(measure, cell.episodes[number]) if number < len(cell.episodes) else "-"


def _bound_cells(bounds: Cell, number: int) -> tuple[str, str]:
    ceiling = bounds.episodes[number].ceiling
    return f"{bounds.non_adapting:+.3f}", "-" if ceiling is None else f"{ceiling:+.3f}"


def show(measure: Measure, figures: EpisodeFigures) -> str:
    """`+0.231 ±0.014`, or `54 % (51-57)` for a rate, or `-` without a figure."""
    estimate = measure.of(figures)
    if estimate is None:
        return "-"
    return show_rate(estimate) if measure.percent else show_score(estimate)


def show_rate(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.0f} % ({100 * estimate.low:.0f}-{100 * estimate.high:.0f})"


def show_score(estimate: Estimate) -> str:
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:+.3f} ±{half:.3f}" if math.isfinite(half) else f"{estimate.value:+.3f}"


# --- An evaluation --------------------------------------------------------------------------


def evaluation_table(
    evaluation: Evaluation, title: str, width: int
) -> tuple[RenderableType, list[str]]:
    """All cells and episodes, and the names of the columns that were left out."""
    alone = all(cell.opponent == NOBODY for cell in evaluation.by_opponent)
    header, *rows = _shortened(
        replace(evaluation, by_opponent=(), by_seat=(), by_opponent_seat=())
        if alone
        else evaluation
    )
    unused = ("opponent", "seat", "draws") if alone else ()  # not defined with a single agent
    for name in [
        name
        for at, name in enumerate(header)
        if name in unused or all(row[at] == "-" for row in rows)
    ]:
        header, *rows = _without(name, header, rows)
    hidden: list[str] = []
    for name in _NARROW:
        if name in header and _needed(header, rows) > width:
            hidden.append(name)
            header, *rows = _without(name, header, rows)
    return plain_table(header, rows, title, group=0 if alone else 2), hidden


def _shortened(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """The rows of `table` with score and regret intervals written as `±`."""
    header, *rows = table(evaluation)
    figures = [one for cell in evaluation.cells for one in cell.episodes]
    score, gain, regret = (header.index(name) for name in ("score", "gain", "regret"))
    short = [
        {
            score: _score_or_none(one.score),
            gain: _score_or_none(one.score_gain),
            regret: _regret_or_none(one.regret),
        }
        for one in figures
    ]
    return [
        header,
        *(
            tuple(found.get(at) or text for at, text in enumerate(row))
            for row, found in zip(rows, short, strict=True)
        ),
    ]


def _score_or_none(estimate: Estimate | None) -> str | None:
    return None if estimate is None else show_score(estimate)


def _regret_or_none(estimate: Estimate | None) -> str | None:
    """A regret is never below 0, so it carries no sign."""
    return None if estimate is None else show_score(estimate).removeprefix("+")


def _needed(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return sum(max(len(row[at]) for row in (header, *rows)) + GAP for at in range(len(header)))


def _without(
    name: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    at = header.index(name)
    return [row[:at] + row[at + 1 :] for row in (header, *rows)]


def kinds_table(kinds: Sequence[Kind]) -> RenderableType:
    """One row per kind of task: success in every episode with its 95 % interval."""
    numbers = range(1, max(len(kind.episodes) for kind in kinds) + 1)
    header = ["kind of task", "tasks", *(f"episode {number}" for number in numbers)]
    rows = [
        (
            kind.kind,
            f"{kind.episodes[0].tasks:,}",
            *(show_rate(one.success) if one.success else "-" for one in kind.episodes),
        )
        for kind in kinds
    ]
    return plain_table(header, rows, "success by kind of task")


def comparison_table(comparison: Comparison, title: str) -> RenderableType:
    rows = [
        (str(one.episode), *_difference(one.score), *_difference(one.success, percent=True))
        for one in comparison.episodes
    ]
    return plain_table(("episode", "score", "p", "success, points", "p"), rows, title)


def _difference(found: Difference, percent: bool = False) -> tuple[str, str]:
    scale, places = (100, 1) if percent else (1, 3)
    value, half = (
        scale * found.difference.value,
        scale * (found.difference.high - found.difference.low) / 2,
    )
    return f"{value:+.{places}f}" + (
        f" ±{half:.{places}f}" if math.isfinite(half) else ""
    ), f"{found.p_value:.3f}"
