"""Tables of results: a run before and after training, an evaluation, a comparison."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from rich.console import RenderableType

from mage.cli.terminal.tables import GAP, plain_table
from mage.environments.base import SEATS
from mage.evaluation.compare import Comparison
from mage.evaluation.figures import Cell, EpisodeFigures, Evaluation
from mage.evaluation.kinds import Kind
from mage.evaluation.panels import NOBODY
from mage.evaluation.statistics import Difference
from mage.report.plain import show, show_rate, show_score
from mage.report.run_results import SCORE, Measure, RunResults, title_of
from mage.types import Split

Figure = TypeVar("Figure")
_HEADER = (
    *("opponent", "seat", "episode", "tasks", "success", "Pass@k", "draws"),
    *("score", "gain", "regret", "ceiling", "exploits", "illegal", "tokens"),
)
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


# --- An evaluation --------------------------------------------------------------------------


def evaluation_table(
    evaluation: Evaluation, title: str, width: int, by: Collection[str] = ()
) -> tuple[RenderableType, list[str]]:
    """The overall figures of every episode, and the names of the columns that were left out.

    `by` adds rows for every `opponent`, every `seat`, or both combined.
    """
    alone = all(cell.opponent == NOBODY for cell in evaluation.by_opponent)
    cells = [evaluation.overall, *(() if alone else _cells(evaluation, by))]
    rows = [_row(cell, figures) for cell in cells for figures in cell.episodes]
    unused = {"opponent", "seat"} if len(cells) == 1 else set()
    unused |= {"draws"} if alone else set()  # not defined with a single agent
    shown = [
        name for name in _HEADER if name not in unused and any(row[name] != "-" for row in rows)
    ]
    hidden: list[str] = []
    for name in _NARROW:
        if name in shown and _needed(shown, rows) > width:
            hidden.append(name)
            shown.remove(name)
    lines = [tuple(row[name] for name in shown) for row in rows]
    return plain_table(shown, lines, title, group=2 if len(cells) > 1 else 0), hidden


def _cells(evaluation: Evaluation, by: Collection[str]) -> tuple[Cell, ...]:
    if {"opponent", "seat"} <= set(by):
        return evaluation.by_opponent + evaluation.by_seat + evaluation.by_opponent_seat
    if "opponent" in by:
        return evaluation.by_opponent
    return evaluation.by_seat if "seat" in by else ()


def _row(cell: Cell, figures: EpisodeFigures) -> dict[str, str]:
    """The texts of one row by column. A regret is never below 0, so it carries no sign."""
    texts = (
        "all" if cell.opponent is None else cell.opponent,
        "both" if cell.seat is None else SEATS[cell.seat],
        str(figures.episode),
        str(figures.score.count if figures.score else 0),
        _or_dash(figures.success, show_rate),
        _or_dash(figures.pass_at, show_rate),
        _or_dash(figures.draws, show_rate),
        _or_dash(figures.score, show_score),
        _or_dash(figures.score_gain, show_score),
        _or_dash(figures.regret, show_score).removeprefix("+"),
        _or_dash(figures.ceiling, "{:.3f}".format),
        _or_dash(figures.exploitation, lambda one: f"{one.value:.2f}"),
        _or_dash(figures.illegal, lambda one: f"{100 * one:.1f} %"),
        _or_dash(figures.tokens, "{:.0f}".format),
    )
    return dict(zip(_HEADER, texts, strict=True))


def _or_dash(figure: Figure | None, show_figure: Callable[[Figure], str]) -> str:
    return "-" if figure is None else show_figure(figure)


def _needed(names: Sequence[str], rows: Sequence[Mapping[str, str]]) -> int:
    """The width of a table with these columns."""
    return sum(max(len(name), *(len(row[name]) for row in rows)) + GAP for name in names)


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
    return plain_table(("episode", "score", "p", "success, percentage points", "p"), rows, title)


def _difference(found: Difference, percent: bool = False) -> tuple[str, str]:
    scale, places = (100, 1) if percent else (1, 3)
    one = found.difference
    value, half = scale * one.value, scale * (one.high - one.low) / 2
    interval = f" ±{half:.{places}f}" if math.isfinite(half) else ""
    return f"{value:+.{places}f}{interval}", show_p(found.p_value)


def show_p(p_value: float) -> str:
    """Three places; a smaller p-value is never shown as zero."""
    return "< 0.001" if p_value < 0.0005 else f"{p_value:.3f}"
