"""Tables and verdicts: findings, evaluations, comparisons, ceilings and menus as rich renderables."""

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table

from mage.evaluate import Cell, Comparison, EpisodeFigures, Evaluation, table
from mage.report.findings import SCORE, STAGES, TITLES, Findings, Measure, Stage
from mage.statistics import Difference, Estimate
from mage.types import Split

_NARROW = ("tokens", "draws", "Pass@k", "gain", "exploits")  # columns that a narrow terminal goes without, first to last


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, group: int = 0) -> Table:
    """Words to the left, figures to the right; a line wherever one of the first `group` columns changes."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for number, name in enumerate(header):
        figures = all(row[number][:1] in "+-0123456789" for row in rows)
        made.add_column(name, justify="right" if figures and rows else "left", overflow="fold")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        made.add_row(*row, end_section=following is not None and row[:group] != following[:group])
    return made


# --- A run ---------------------------------------------------------------------------------------------------------


def result_table(findings: Findings, split: Split) -> Table:
    """One row an episode: before, after, memory emptied, and what is possible at all."""
    measure = findings.measure
    stages = [stage for stage in STAGES if (stage, split) in findings.finals]
    bounds = findings.finals[stages[0], split].overall if measure is SCORE else None
    bounds = bounds if bounds is not None and bounds.non_adapting is not None else None
    header = ["episode", *(TITLES[stage] for stage in stages), *(("best without adapting", "best learner") if bounds else ())]
    count = max(len(findings.finals[stage, split].overall.episodes) for stage in stages)
    rows = [_result_row(findings, split, stages, measure, bounds, number) for number in range(count)]
    tasks = findings.finals[stages[0], split].overall.tasks
    unit = "rate of won episodes" if measure.percent else f"{measure.title} an episode"
    return plain_table(header, rows, f"{findings.environment}, {split} panel of {tasks:,} tasks: {unit}, with 95 % interval")


def _result_row(
    findings: Findings, split: Split, stages: Sequence[Stage], measure: Measure, bounds: Cell | None, number: int
) -> tuple[str, ...]:
    cells = [findings.finals[stage, split].overall.episodes for stage in stages]
    shown = [show(measure, episodes[number] if number < len(episodes) else None) for episodes in cells]
    return str(number + 1), *shown, *(_bound_cells(bounds, number) if bounds else ())


def _bound_cells(bounds: Cell, number: int) -> tuple[str, str]:
    ceiling = bounds.episodes[number].ceiling
    return f"{bounds.non_adapting:+.3f}", "-" if ceiling is None else f"{ceiling:+.3f}"


def show(measure: Measure, figures: EpisodeFigures | None) -> str:
    """`+0.231 ±0.014`, or `54 % (51-57)` for a rate; `-` where there is nothing."""
    estimate = measure.of(figures) if figures is not None else None
    if estimate is None:
        return "-"
    return f"{100 * estimate.value:.0f} % ({100 * estimate.low:.0f}-{100 * estimate.high:.0f})" if measure.percent else show_score(estimate)


def show_score(estimate: Estimate) -> str:
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:+.3f} ±{half:.3f}" if math.isfinite(half) else f"{estimate.value:+.3f}"


def verdicts(findings: Findings, split: Split) -> list[str]:
    """What the table proves and what it does not, where there is a line to hold it against."""
    after, emptied = (_last_score(findings, stage, split) for stage in ("after", "emptied"))
    line = findings.finals["after", split].overall.non_adapting if after is not None else None
    if after is None or line is None:
        return []
    episode = f"Episode {len(findings.finals['after', split].overall.episodes)}"
    told = [
        f"{episode} is above the best policy that does not adapt ({line:+.3f}) with its whole interval: the agent adapts."
        if after.low > line
        else f"{episode} is not above the best policy that does not adapt ({line:+.3f}) with its whole interval: nothing is proved."
    ]
    if emptied is not None and after.low > line:
        fallen = emptied.value <= line
        told.append(f"With its memory emptied it {'falls back to' if fallen else 'still scores'} {show_score(emptied)}.")
    return told


def _last_score(findings: Findings, stage: Stage, split: Split) -> Estimate | None:
    found = findings.finals.get((stage, split))
    return found.overall.episodes[-1].score if found is not None else None


# --- An evaluation -------------------------------------------------------------------------------------------------


def evaluation_table(evaluation: Evaluation, title: str, width: int) -> tuple[Table, list[str]]:
    """All cells and episodes, and the names of the columns that had no room."""
    header, *rows = table(evaluation)
    hidden: list[str] = []
    for name in _NARROW:
        if _needed(header, rows) <= width:
            break
        hidden.append(name)
        at = header.index(name)
        header, rows = _without(header, at), [_without(row, at) for row in rows]
    return plain_table(header, rows, title, group=2), hidden


def _needed(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return sum(max(len(row[at]) for row in (header, *rows)) + 2 for at in range(len(header)))


def _without(row: tuple[str, ...], at: int) -> tuple[str, ...]:
    return row[:at] + row[at + 1 :]


def comparison_table(comparison: Comparison, title: str) -> Table:
    rows = [
        (str(one.episode), _difference(one.score), f"{one.score.p_value:.3f}", _difference(one.success, percent=True), f"{one.success.p_value:.3f}")
        for one in comparison.episodes
    ]
    return plain_table(("episode", "score", "p", "success, points", "p"), rows, title)


def _difference(found: Difference, percent: bool = False) -> str:
    scale, places = (100, 1) if percent else (1, 3)
    value, half = scale * found.difference.value, scale * (found.difference.high - found.difference.low) / 2
    return f"{value:+.{places}f}" + (f" ±{half:.{places}f}" if math.isfinite(half) else "")
