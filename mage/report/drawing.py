"""Colours and small drawing functions that all curves share.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart. There is no pyplot:
a figure is made, drawn and released, and no global state changes.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mage.report.run_results import RunResults

DPI = 100
LABEL_GAP = 0.05  # smallest distance of two labels, as a fraction of the height of the panel


class Colour:
    """The colours of a picture."""

    paper, ink, quiet, grid = "#ffffff", "#1c2024", "#60646c", "#e4e6ea"
    episodes = ("#56B4E9", "#009E73", "#D55E00", "#0072B2")
    before, after, emptied = "#80838d", "#0072B2", "#CC79A7"


def plot_style() -> dict[str, object]:
    return {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 11,
        "text.color": Colour.ink,
        "figure.facecolor": Colour.paper,
        "savefig.facecolor": Colour.paper,
        "axes.facecolor": Colour.paper,
        "axes.edgecolor": Colour.quiet,
        "axes.labelcolor": Colour.quiet,
        "axes.titlesize": 12.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": Colour.grid,
        "grid.linewidth": 0.8,
        "xtick.color": Colour.quiet,
        "ytick.color": Colour.quiet,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
    }


def text_box(axes: Axes) -> dict[str, Any]:
    """The background of text that may overlap a line."""
    return {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 1.0, "alpha": 0.8}


def smooth(values: Sequence[float]) -> list[float]:
    """A centred moving average over about 1/40 of the run, shorter at both ends."""
    half = len(values) // 80 + (len(values) > 10)
    windows = (values[max(0, k - half) : k + half + 1] for k in range(len(values)))
    return [math.fsum(window) / len(window) for window in windows]


def finish_axes(axes: Axes, label: str, percent: bool) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
    axes.margins(x=0.01, y=0.08)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def limit_updates(axes: Axes, results: RunResults) -> None:
    updates = [record["update"] for record in results.metrics] + [
        update for update, _ in results.selections
    ]
    last = max(updates, default=1) or 1
    axes.set_xlim(-0.02 * last, 1.02 * last)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Labels beside the ends of the lines, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    gap = LABEL_GAP * (high - low)
    for height, (_, label, colour) in zip(
        separate([end[0] for end in ends], gap), ends, strict=True
    ):
        look = {"fontsize": 10, "fontweight": "bold", "va": "center", "annotation_clip": False}
        write_text(
            axes, label, (1, height), (5, 0), ("axes fraction", "data"), color=colour, **look
        )


def write_text(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    shift: tuple[float, float],
    frame: Any = "data",
    **look: Any,
) -> Annotation:
    """Text at a place, moved by `shift` points."""
    return axes.annotate(
        text,
        at,
        xycoords=frame,
        xytext=shift,
        textcoords="offset points",
        **{"fontsize": 9.5} | look,
    )


def separate(heights: Sequence[float], gap: float) -> list[float]:
    """The heights in the same order, at least `gap` apart, with the same mean.

    >>> separate([1.0, 1.0], 0.5)
    [0.75, 1.25]
    """
    order = sorted(range(len(heights)), key=lambda k: heights[k])
    moved = list(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    shift = (math.fsum(moved) - math.fsum(heights)) / max(1, len(heights))
    return [height - shift for height in moved]


def show_empty(axes: Axes, text: str) -> None:
    axes.set_yticks([])
    axes.set_xticks([])
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=Colour.quiet
    )
