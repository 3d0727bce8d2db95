"""The curves of a run as one picture: what was learned on top, how training went below.

Lines carry their names at their ends instead of a legend. Colours are Okabe and Ito's, which colour-blind readers can tell
apart. No pyplot: a figure is made, drawn and forgotten, and no global state changes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mage.evaluation.figures import Cell
from mage.evaluation.statistics import Estimate
from mage.report.run_results import STAGES, TITLES, Measure, RunResults, Stage
from mage.report.values import show

WIDTH, HEIGHT, DPI = 1500, 1000, 100
_SHOWN = 4  # episode positions in one panel; more cannot be told apart
_LABEL_GAP = 0.05  # least distance of two labels, as a share of the panel's height


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours on a light or a dark page."""

    paper: str
    ink: str
    quiet: str
    grid: str
    episodes: tuple[str, ...]
    before: str
    after: str
    emptied: str

    def stage(self, stage: Stage) -> str:
        return {"before": self.before, "after": self.after, "emptied": self.emptied}[stage]


LIGHT = Theme(
    "#ffffff",
    "#1c2024",
    "#60646c",
    "#e4e6ea",
    ("#56B4E9", "#009E73", "#D55E00", "#0072B2"),
    "#80838d",
    "#0072B2",
    "#CC79A7",
)
DARK = Theme(
    "#16181d",
    "#eceef2",
    "#a0a5b0",
    "#2c3038",
    ("#56B4E9", "#2FBF93", "#F0803C", "#8FB8FF"),
    "#9a9fab",
    "#56B4E9",
    "#E39AC2",
)


def draw_curves(results: RunResults, theme: Theme = LIGHT) -> bytes:
    """The picture as PNG."""
    with mpl.rc_context(_style(theme)):
        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI)
        FigureCanvasAgg(figure)
        _draw(figure, results, theme)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()


def _style(theme: Theme) -> dict[str, object]:
    return {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 11,
        "text.color": theme.ink,
        "figure.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.edgecolor": theme.quiet,
        "axes.labelcolor": theme.quiet,
        "axes.titlesize": 12.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "xtick.color": theme.quiet,
        "ytick.color": theme.quiet,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
    }


def _draw(figure: Figure, results: RunResults, theme: Theme) -> None:
    top = figure.add_gridspec(
        1, 2, left=0.055, right=0.985, top=0.832, bottom=0.405, width_ratios=(1.75, 1), wspace=0.245
    )
    below = figure.add_gridspec(1, 4, left=0.055, right=0.985, top=0.295, bottom=0.06, wspace=0.26)
    figure.text(0.055, 0.965, _headline(results), fontsize=17, fontweight="bold", va="center")
    figure.text(0.055, 0.932, _subtitle(results), fontsize=11.5, color=theme.quiet, va="center")
    _draw_training(figure.add_subplot(top[0]), results, theme)
    _draw_final(figure.add_subplot(top[1]), results, theme)
    _draw_entropy(figure.add_subplot(below[0]), results, theme)
    _draw_illegal(figure.add_subplot(below[1]), results, theme)
    _draw_lengths(figure.add_subplot(below[2]), results, theme)
    _draw_change(figure.add_subplot(below[3]), results, theme)


def _headline(results: RunResults) -> str:
    return f"{results.environment}  ·  {results.title}"


def _subtitle(results: RunResults) -> str:
    state = "" if results.finished else "  ·  not finished"
    return f"{results.updates:,} updates  ·  {results.played:,} episodes of training  ·  seed {results.folder.recipe.run.seed}{state}"


# --- What was learned ----------------------------------------------------------------------------------------------


def _draw_training(axes: Axes, results: RunResults, theme: Theme) -> None:
    """Training smoothed, the select panel as points with intervals, and the two lines that give them a meaning."""
    measure, shown = results.measure, _positions(results.episodes)
    axes.set_title(f"{measure.title.capitalize()} by episode, over training", pad=_pad(results))
    _finish_axes(axes, "update", measure.percent)
    ends: list[tuple[float, str, str]] = []
    for colour, number in zip(theme.episodes, shown, strict=False):
        ends += _draw_position(
            axes, results, number, colour, offset=shown.index(number) - (len(shown) - 1) / 2
        )
    _limit_updates(axes, results)
    _draw_bounds(axes, results, theme)
    _label_ends(axes, ends)
    _draw_choice(axes, results, theme)
    if not ends:
        _say_nothing(axes, theme, "nothing measured yet")
    else:
        note = "lines: training, smoothed  ·  points: select panel with 95 % intervals"
        _write(axes, note, (0, 1), (0, _pad(results) - 17), "axes fraction", color=theme.quiet)


def _pad(results: RunResults) -> float:
    """Points between a panel and its title: the legend has a second row where there are ceilings."""
    return 39 if results.bounds else 25


def _positions(episodes: int) -> list[int]:
    """The episodes that are drawn: all, or the first, the last and some between."""
    if episodes <= _SHOWN:
        return list(range(1, episodes + 1))
    return [1 + round(k * (episodes - 1) / (_SHOWN - 1)) for k in range(_SHOWN)]


def _draw_position(
    axes: Axes, results: RunResults, number: int, colour: str, offset: float
) -> list[tuple[float, str, str]]:
    """One episode position; returns where its line ends, for the label."""
    updates, values = results.series(f"{results.measure.metric}_{number}")
    points = [
        (update, found)
        for update, cell in results.selections
        if (found := _estimate(cell, number, results.measure))
    ]
    if values:
        axes.plot(updates, values, color=colour, linewidth=0.7, alpha=0.22)
        axes.plot(updates, smooth(values), color=colour, linewidth=2.1)
    if points:
        shift = offset * _dodge([update for update, _ in points])
        _draw_points(
            axes,
            [update + shift for update, _ in points],
            [found for _, found in points],
            colour,
            marker="o",
            markersize=4.5,
        )
    last = smooth(values)[-1] if values else points[-1][1].value if points else None
    return [] if last is None else [(last, f"episode {number}", colour)]


def _dodge(updates: Sequence[int]) -> float:
    """How far points of two episodes stand apart, so that their intervals can be told apart but still belong together."""
    span = updates[-1] - updates[0]
    return min(0.12 * span / max(1, len(updates) - 1), 0.006 * span)


def _draw_points(
    axes: Axes, xs: Sequence[float], estimates: Sequence[Estimate], colour: str, **marks: Any
) -> None:
    """Points with 95 % intervals; an interval that one task cannot give is left out."""
    for x, found in zip(xs, estimates, strict=True):
        if math.isfinite(found.low):
            axes.plot(
                [x, x],
                [found.low, found.high],
                color=colour,
                linewidth=1.3,
                alpha=0.5,
                solid_capstyle="butt",
                zorder=3,
            )
    axes.plot(
        xs,
        [found.value for found in estimates],
        linestyle="",
        color=colour,
        markeredgewidth=1.5,
        zorder=4,
        **marks,
    )


def _draw_bounds(axes: Axes, results: RunResults, theme: Theme) -> None:
    bounds = results.bounds
    if bounds is None or bounds.non_adapting is None:
        return
    last, (low, high) = bounds.episodes[-1], axes.get_ylim()
    crowded = last.ceiling is not None and last.ceiling - bounds.non_adapting < _LABEL_GAP * (
        high - low
    )
    _line(
        axes,
        bounds.non_adapting,
        f"best policy that does not adapt  {bounds.non_adapting:.3f}",
        theme,
        "--",
        below=crowded,
    )
    if last.ceiling is not None:
        _line(
            axes,
            last.ceiling,
            f"Bayes-optimal learner, episode {last.episode}  {last.ceiling:.3f}",
            theme,
            ":",
        )


def _line(
    axes: Axes, height: float, label: str, theme: Theme, dashes: str, below: bool = False
) -> None:
    axes.axhline(height, color=theme.ink, linewidth=1.3, linestyle=dashes, zorder=2)
    shift, side = ((0, -4), "top") if below else ((0, 4), "bottom")
    _write(
        axes,
        label,
        (0.01, height),
        shift,
        ("axes fraction", "data"),
        va=side,
        bbox=_box(axes),
        zorder=5,
    )


def _box(axes: Axes) -> dict[str, Any]:
    """Behind words that may lie on a line."""
    return {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 1.0, "alpha": 0.8}


def _draw_choice(axes: Axes, results: RunResults, theme: Theme) -> None:
    """Which update the final figures are of."""
    if results.chosen_update is None or not results.finished:
        return
    axes.axvline(results.chosen_update, color=theme.quiet, linewidth=1, alpha=0.6, zorder=1)
    right = results.chosen_update > 0.7 * axes.get_xlim()[1]
    words, side = f"chosen: update {results.chosen_update}", "right" if right else "left"
    shift = (-5 if right else 5, 0)
    _write(
        axes,
        words,
        (results.chosen_update, 0.02),
        shift,
        ("data", "axes fraction"),
        ha=side,
        color=theme.quiet,
    )


def _draw_final(axes: Axes, results: RunResults, theme: Theme) -> None:
    """The final panel by episode: before, after, and after with the memory emptied, against what any learner can reach."""
    measure, splits = results.measure, results.splits
    split = splits[0] if splits else "test"
    stages = {
        stage: results.finals[stage, split].overall
        for stage in STAGES
        if (stage, split) in results.finals
    }
    axes.set_title(
        f"{measure.title.capitalize()} on the final panel ({split}), {_tasks(stages.values())}",
        pad=_pad(results),
    )
    _finish_axes(axes, "episode", measure.percent)
    if not stages:
        _say_nothing(axes, theme, "not measured yet")
        return
    for stage, cell in stages.items():
        _draw_stage(axes, stage, cell, measure, theme)
    count = max(len(cell.episodes) for cell in stages.values())
    axes.set_xlim(0.5, count + 0.5)
    axes.set_xticks(range(1, count + 1))
    _draw_final_bounds(axes, next(iter(stages.values())), measure, theme)
    draw_legend(axes, theme)


def draw_legend(axes: Axes, theme: Theme) -> None:
    """Points in the first row and lines below them; matplotlib fills a legend by columns."""
    handles, labels = axes.get_legend_handles_labels()
    bounds = sum(label in _BOUNDS for label in labels)
    points = len(labels) - bounds
    columns = max(points, bounds)
    order = [
        k
        for column in range(columns)
        for k, is_there in ((column, column < points), (points + column, column < bounds))
        if is_there
    ]
    axes.legend(
        [handles[k] for k in order],
        [labels[k] for k in order],
        loc="lower left",
        bbox_to_anchor=(-0.025, 0.985),
        ncols=columns,
        frameon=False,
        fontsize=9.5,
        handlelength=1.7,
        handletextpad=0.5,
        columnspacing=1.4,
        labelspacing=0.35,
        labelcolor=theme.ink,
    )


def _tasks(cells: Iterable[Cell]) -> str:
    return f"{max((cell.tasks for cell in cells), default=0):,} tasks"


_MARKERS: dict[Stage, str] = {"before": "o", "after": "s", "emptied": "D"}


def _draw_stage(axes: Axes, stage: Stage, cell: Cell, measure: Measure, theme: Theme) -> None:
    found = [
        (figures.episode, estimate)
        for figures in cell.episodes
        if (estimate := measure.of(figures))
    ]
    xs = [number + 0.2 * (STAGES.index(stage) - 1) for number, _ in found]
    colour = theme.stage(stage)
    marks = {
        "marker": _MARKERS[stage],
        "markersize": 8,
        "markerfacecolor": colour if stage == "after" else theme.paper,
    }
    axes.plot(xs, [estimate.value for _, estimate in found], color=colour, linewidth=1, alpha=0.5)
    _draw_points(
        axes, xs, [estimate for _, estimate in found], colour, label=TITLES[stage], **marks
    )
    if stage == "after":
        for x, (_, estimate) in zip(xs, found, strict=True):
            height = estimate.high if math.isfinite(estimate.high) else estimate.value
            look = {
                "fontsize": 10,
                "fontweight": "bold",
                "ha": "center",
                "bbox": _box(axes),
                "zorder": 6,
            }
            _write(axes, show(estimate.value, measure), (x, height), (0, 4), color=colour, **look)


_BOUNDS = ("does not adapt", "Bayes-optimal")


def _draw_final_bounds(axes: Axes, cell: Cell, measure: Measure, theme: Theme) -> None:
    """The non-adapting line, and for every episode the score that no learner's episode of that number can beat."""
    if measure.metric != "score" or cell.non_adapting is None:
        return
    axes.axhline(
        cell.non_adapting,
        color=theme.ink,
        linewidth=1.3,
        linestyle="--",
        zorder=2,
        label=_BOUNDS[0],
    )
    known = [
        (figures.episode, figures.ceiling)
        for figures in cell.episodes
        if figures.ceiling is not None
    ]
    for k, (number, height) in enumerate(known):
        ends = [number - 0.4, number + 0.4]
        axes.plot(
            ends,
            [height, height],
            color=theme.ink,
            linewidth=1.8,
            linestyle=":",
            zorder=2,
            label="" if k else _BOUNDS[1],
        )


def _estimate(cell: Cell, number: int, measure: Measure) -> Estimate | None:
    return measure.of(cell.episodes[number - 1]) if number <= len(cell.episodes) else None


# --- How training went ---------------------------------------------------------------------------------------------


def _draw_entropy(axes: Axes, results: RunResults, theme: Theme) -> None:
    lines = {"action_entropy": "action", "reflect_entropy": "reflection token"}
    if not any(results.series("reflection_length")[1]):
        del lines["reflect_entropy"]
    _draw_metrics(axes, results, theme, "Entropy (nats)", lines)


def _draw_illegal(axes: Axes, results: RunResults, theme: Theme) -> None:
    _draw_metrics(axes, results, theme, "Illegal replies", {"illegal_rate": ""}, percent=True)


def _draw_lengths(axes: Axes, results: RunResults, theme: Theme) -> None:
    lines = {"reply_length": "reply", "reflection_length": "reflection"}
    if not any(results.series("reflection_length")[1]):
        del lines["reflection_length"]
    _draw_metrics(axes, results, theme, "Length (tokens)", lines)


def _draw_change(axes: Axes, results: RunResults, theme: Theme) -> None:
    """With one optimizer step an update nothing is ever clipped; then the gradient says more."""
    if any(results.series("clip_fraction")[1]):
        _draw_metrics(axes, results, theme, "Clipped tokens", {"clip_fraction": ""}, percent=True)
    else:
        _draw_metrics(axes, results, theme, "Norm of the gradient", {"gradient_norm": ""})


def _draw_metrics(
    axes: Axes,
    results: RunResults,
    theme: Theme,
    title: str,
    lines: dict[str, str],
    percent: bool = False,
) -> None:
    axes.set_title(title, fontsize=11, pad=9)
    _finish_axes(axes, "update", percent)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    names: list[tuple[str, str]] = []
    for colour, (name, label) in zip((theme.after, theme.episodes[2]), lines.items(), strict=False):
        updates, values = results.series(name)
        if values:
            axes.plot(updates, values, color=colour, linewidth=0.7, alpha=0.25)
            axes.plot(updates, smooth(values), color=colour, linewidth=1.8)
            names.append((label, colour))
    if not names:
        _say_nothing(axes, theme, "no update yet")
        return
    _limit_updates(axes, results)
    if axes.dataLim.ymin >= 0:  # all of these start at nought
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax or (0.05 if percent else 1))
    _name_lines(axes, [name for name in names if name[0]])


def _name_lines(axes: Axes, names: Sequence[tuple[str, str]]) -> None:
    """The names of a small panel's lines in their colours, at the right of its title."""
    right = 0.0
    for label, colour in reversed(names):
        text = _write(
            axes, label, (1, 1), (-right, 9), "axes fraction", ha="right", fontsize=9, color=colour
        )
        right += text.get_window_extent().width * 72 / DPI + 9


# --- Shared --------------------------------------------------------------------------------------------------------


def smooth(values: Sequence[float]) -> list[float]:
    """A centred mean over about a fortieth of the run; at the ends over what is there."""
    half = len(values) // 80 + (len(values) > 10)
    windows = (values[max(0, k - half) : k + half + 1] for k in range(len(values)))
    return [math.fsum(window) / len(window) for window in windows]


def _finish_axes(axes: Axes, label: str, percent: bool) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
    axes.margins(x=0.01, y=0.08)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _limit_updates(axes: Axes, results: RunResults) -> None:
    updates = [record["update"] for record in results.metrics] + [
        update for update, _ in results.selections
    ]
    last = max(updates, default=1) or 1
    axes.set_xlim(-0.02 * last, 1.02 * last)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names beside the ends of the lines, moved apart where they would touch."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    gap = _LABEL_GAP * (high - low)
    for height, (_, label, colour) in zip(
        separate([end[0] for end in ends], gap), ends, strict=True
    ):
        look = {"fontsize": 10, "fontweight": "bold", "va": "center", "annotation_clip": False}
        _write(axes, label, (1, height), (5, 0), ("axes fraction", "data"), color=colour, **look)


def _write(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    shift: tuple[float, float],
    frame: Any = "data",
    **look: Any,
) -> Annotation:
    """Words at a place, moved by so many points."""
    return axes.annotate(
        text,
        at,
        xycoords=frame,
        xytext=shift,
        textcoords="offset points",
        **{"fontsize": 9.5} | look,
    )


def separate(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights in the same order, none closer than `gap` to its neighbour, their mean unchanged.

    >>> separate([1.0, 1.0], 0.5)
    [0.75, 1.25]
    """
    order = sorted(range(len(heights)), key=lambda k: heights[k])
    moved = list(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    shift = (math.fsum(moved) - math.fsum(heights)) / max(1, len(heights))
    return [height - shift for height in moved]


def _say_nothing(axes: Axes, theme: Theme, words: str) -> None:
    axes.set_yticks([])
    axes.set_xticks([])
    axes.text(
        0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=theme.quiet
    )
