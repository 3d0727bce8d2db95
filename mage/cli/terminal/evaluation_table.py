"""An evaluation as a table of plain strings."""

import math

from mage.environments.base import SEATS
from mage.evaluation.figures import Cell, EpisodeFigures, Evaluation
from mage.evaluation.statistics import Estimate

HEADER = (
    "opponent",
    "seat",
    "episode",
    "tasks",
    "success",
    "Pass@k",
    "draws",
    "score",
    "gain",
    "regret",
    "ceiling",
    "exploits",
    "illegal",
    "tokens",
)


def table(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """The header and one row per cell and episode. `88 % (80-93)`: a rate, its 95 % interval."""
    return [
        HEADER,
        *(_table_row(cell, figures) for cell in evaluation.cells for figures in cell.episodes),
    ]


def _table_row(cell: Cell, figures: EpisodeFigures) -> tuple[str, ...]:
    return (
        "all" if cell.opponent is None else cell.opponent,
        "both" if cell.seat is None else SEATS[cell.seat],
        str(figures.episode),
        str(figures.score.count if figures.score else 0),
        _show_rate(figures.success),
        _show_rate(figures.pass_at),
        _show_rate(figures.draws),
        _show_score(figures.score),
        _show_score(figures.score_gain),
        "-" if figures.regret is None else f"{figures.regret.value:.2f}",
        "-" if figures.ceiling is None else f"{figures.ceiling:.3f}",
        "-" if figures.exploitation is None else f"{figures.exploitation.value:.2f}",
        "-" if figures.illegal is None else f"{100 * figures.illegal:.1f} %",
        "-" if figures.tokens is None else f"{figures.tokens:.0f}",
    )


def _show_rate(rate: Estimate | None) -> str:
    return (
        "-"
        if rate is None
        else f"{100 * rate.value:.0f} % ({100 * rate.low:.0f}-{100 * rate.high:.0f})"
    )


def _show_score(score: Estimate | None) -> str:
    if score is None:
        return "-"
    return f"{score.value:+.3f}" + (
        f" ({score.low:+.3f} to {score.high:+.3f})" if math.isfinite(score.low) else ""
    )
