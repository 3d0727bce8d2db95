"""Colours and small drawing functions that all curves share.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart. There is no pyplot:
a figure is made, drawn and released, and no global state changes.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mage.report.run_results import RunResults

DPI = 100
# The formats of a picture, with the details left out that would make two equal pictures differ.
FORMATS: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None}}
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
        "axes.titley": 1.0,  # not moved above ticks at the top, which no panel has
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


@contextmanager
def new_figure(width: float, height: float, **style: object) -> Iterator[Figure]:
    """A figure of this size in inches; the style holds inside the block, where it is saved."""
    with mpl.rc_context(plot_style() | {"svg.hashsalt": "mage"} | style):
        figure = Figure(figsize=(width, height), dpi=DPI)
        FigureCanvasAgg(figure)
        yield figure


def save_figure(figure: Figure, kind: str) -> bytes:
    """The picture as bytes, the same each time."""
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, metadata=FORMATS.get(kind))
    return buffer.getvalue()


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


def number_episodes(axes: Axes, episodes: int, word: str = "episode") -> None:
    """The x axis of a picture with one place for every episode."""
    axes.set_xlabel(word)
    axes.set_xticks(range(1, episodes + 1))
    axes.set_xlim(0.6, episodes + 0.4)


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
    heights = separate([end[0] for end in ends], gap)
    outside = min(0.0, high - max(heights, default=high)) or max(
        0.0, low - min(heights, default=low)
    )
    for height, (_, label, colour) in zip((one + outside for one in heights), ends, strict=True):
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
    look = {"fontsize": 9.5, "textcoords": "offset points", **look}
    return axes.annotate(text, at, xycoords=frame, xytext=shift, **look)


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
