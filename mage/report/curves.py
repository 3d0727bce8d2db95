"""The curves of a run as one picture: scores in the top row, the state of training below.

Lines carry their names at their ends instead of a legend.
"""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mage.evaluation.figures import Cell
from mage.evaluation.statistics import Estimate
from mage.report.drawing import (
    DPI,
    FORMATS,
    Colour,
    finish_axes,
    label_ends,
    limit_updates,
    new_figure,
    save_figure,
    show_empty,
    smooth,
    text_box,
    write_text,
)
from mage.report.run_results import STAGES, TITLES, Measure, RunResults, Stage
from mage.report.values import show

WIDTH, HEIGHT = 1500, 1000
_SHOWN = 4  # episode positions in one panel; a reader cannot tell more of them apart


def draw_curves(results: RunResults) -> dict[str, bytes]:
    """The picture in every format: PNG for the screen, SVG for papers."""
    with new_figure(WIDTH / DPI, HEIGHT / DPI) as figure:
        _draw(figure, results)
        return {kind: save_figure(figure, kind) for kind in FORMATS}


def _draw(figure: Figure, results: RunResults) -> None:
    top = figure.add_gridspec(
        1, 2, left=0.055, right=0.985, top=0.832, bottom=0.405, width_ratios=(1.5, 1), wspace=0.4
    )
    below = figure.add_gridspec(1, 4, left=0.055, right=0.985, top=0.295, bottom=0.06, wspace=0.26)
    headline = f"{results.environment}  ·  {results.title}"
    figure.text(0.055, 0.965, headline, fontsize=17, fontweight="bold", va="center")
    figure.text(0.055, 0.932, _subtitle(results), fontsize=11.5, color=Colour.quiet, va="center")
    _draw_training(figure.add_subplot(top[0]), results)
    _draw_final(figure.add_subplot(top[1]), results)
    for place, panel in enumerate(_training_panels(results)):
        _draw_metrics(figure.add_subplot(below[place]), results, *panel)


def _subtitle(results: RunResults) -> str:
    state = "" if results.finished else "  ·  not finished"
    return (
        f"{results.updates:,} updates  ·  {results.played:,} episodes of training"
        f"  ·  seed {results.folder.recipe.run.seed}{state}"
    )


# --- What was learned


def _draw_training(axes: Axes, results: RunResults) -> None:
    """Smoothed training scores, the select panel with intervals, and the two exact lines."""
    measure, shown = results.measure, _positions(results.episodes)
    axes.set_title(f"{measure.title.capitalize()} by episode, over training", pad=_pad(results))
    finish_axes(axes, "update", measure.percent)
    axes.set_ylabel("share of episodes won" if measure.percent else "mean score of an episode")
    ends: list[tuple[float, str, str]] = []
    for colour, number in zip(Colour.episodes, shown, strict=False):
        ends += _draw_position(
            axes, results, number, colour, offset=shown.index(number) - (len(shown) - 1) / 2
        )
    limit_updates(axes, results)
    label_ends(axes, [*ends, *_draw_bounds(axes, results)])
    _draw_choice(axes, results)
    if not ends:
        show_empty(axes, "nothing measured yet")
    else:
        note = "lines: training, smoothed  ·  points: select panel with 95 % intervals"
        write_text(axes, note, (0, 1), (0, _pad(results) - 17), "axes fraction", color=Colour.quiet)


def _pad(results: RunResults) -> float:
    """Points between a panel and its title; with exact lines the legend has a second row."""
    return 39 if results.bounds else 25


def _positions(episodes: int) -> list[int]:
    """The episodes that are drawn: all of them, or the first, the last and some in between."""
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
        axes.plot(updates, values, color=colour, lw=0.7, alpha=0.22)
        axes.plot(updates, smooth(values), color=colour, lw=2.1)
    if points:
        shift = offset * _dodge([update for update, _ in points])
        xs, estimates = [update + shift for update, _ in points], [one for _, one in points]
        _draw_points(axes, xs, estimates, colour, marker="o", ms=4.5)
    last = smooth(values)[-1] if values else points[-1][1].value if points else None
    return [] if last is None else [(last, f"episode {number}", colour)]


def _dodge(updates: Sequence[int]) -> float:
    """Horizontal distance between the points of two episodes, so that intervals do not overlap."""
    span = updates[-1] - updates[0]
    return min(0.12 * span / max(1, len(updates) - 1), 0.006 * span)


def _draw_points(
    axes: Axes, xs: Sequence[float], estimates: Sequence[Estimate], colour: str, **marks: Any
) -> None:
    """Points with 95 % intervals; a single task has no interval."""
    for x, found in zip(xs, estimates, strict=True):
        if math.isfinite(found.low):
            ends = [found.low, found.high]
            axes.plot(
                [x, x], ends, color=colour, lw=1.3, alpha=0.5, solid_capstyle="butt", zorder=3
            )
    values = [found.value for found in estimates]
    axes.plot(xs, values, ls="", color=colour, mew=1.5, zorder=4, **marks)


def _draw_bounds(axes: Axes, results: RunResults) -> list[tuple[float, str, str]]:
    """The exact lines; returns their labels, which stand beside the lines like those of curves."""
    bounds = results.bounds
    if bounds is None or bounds.non_adapting is None:
        return []
    last = bounds.episodes[-1].ceiling
    lines = [(bounds.non_adapting, _BOUNDS[0], "--")]
    lines += [] if last is None else [(last, _BOUNDS[1], ":")]
    for height, _, dashes in lines:
        axes.axhline(height, color=Colour.ink, lw=1.3, ls=dashes, zorder=2)
    return [(height, name, Colour.ink) for height, name, _ in lines]


def _draw_choice(axes: Axes, results: RunResults) -> None:
    """Mark the update whose checkpoint the final figures describe."""
    if results.chosen_update is None or not results.finished:
        return
    axes.axvline(results.chosen_update, color=Colour.quiet, lw=1, alpha=0.6, zorder=1)
    right = results.chosen_update > 0.7 * axes.get_xlim()[1]
    words, side = f"chosen: update {results.chosen_update}", "right" if right else "left"
    at, shift = (results.chosen_update, 0.02), (-5 if right else 5, 0)
    write_text(axes, words, at, shift, ("data", "axes fraction"), ha=side, color=Colour.quiet)


def _draw_final(axes: Axes, results: RunResults) -> None:
    """The final panel by episode, for every stage, with the exact lines."""
    measure, splits = results.measure, results.splits
    split = splits[0] if splits else "test"
    stages = results.overall(split)
    tasks = max((cell.tasks for cell in stages.values()), default=0)
    title = f"{measure.title.capitalize()} on the final panel ({split}), {tasks:,} tasks"
    axes.set_title(title, pad=_pad(results))
    finish_axes(axes, "episode", measure.percent)
    if not stages:
        show_empty(axes, "not measured yet")
        return
    for stage, cell in stages.items():
        _draw_stage(axes, stage, cell, measure)
    count = max(len(cell.episodes) for cell in stages.values())
    axes.set_xlim(0.5, count + 0.5)
    axes.set_xticks(range(1, count + 1))
    _draw_final_bounds(axes, next(iter(stages.values())), measure)
    draw_legend(axes)


def draw_legend(axes: Axes) -> None:
    """A legend with points in the first row and lines in the second (matplotlib fills columns)."""
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
    spaces = {"handlelength": 1.7, "handletextpad": 0.5, "columnspacing": 1.4, "labelspacing": 0.35}
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.025, 0.985)}
    look: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "labelcolor": Colour.ink, **spaces}
    texts = [labels[k] for k in order]
    axes.legend([handles[k] for k in order], texts, ncols=columns, **place, **look)


_MARKERS: dict[Stage, str] = {"before": "o", "after": "s", "emptied": "D"}


def _draw_stage(axes: Axes, stage: Stage, cell: Cell, measure: Measure) -> None:
    found = [
        (figures.episode, estimate)
        for figures in cell.episodes
        if (estimate := measure.of(figures))
    ]
    xs = [number + 0.2 * (STAGES.index(stage) - 1) for number, _ in found]
    colour = getattr(Colour, stage)
    marks = {"marker": _MARKERS[stage], "ms": 8}
    marks["mfc"] = colour if stage == "after" else Colour.paper
    axes.plot(xs, [estimate.value for _, estimate in found], color=colour, lw=1, alpha=0.5)
    _draw_points(
        axes, xs, [estimate for _, estimate in found], colour, label=TITLES[stage], **marks
    )
    if stage == "after":
        for x, (_, estimate) in zip(xs, found, strict=True):
            height = estimate.high if math.isfinite(estimate.high) else estimate.value
            box: dict[str, Any] = {"bbox": text_box(axes), "zorder": 6, "ha": "center"}
            text, look = show(estimate.value, measure), {"fontsize": 10, "fontweight": "bold"}
            write_text(axes, text, (x, height), (0, 4), color=colour, **look, **box)


_BOUNDS = ("best without adapting", "best learner")


def _draw_final_bounds(axes: Axes, cell: Cell, measure: Measure) -> None:
    """The best score without adapting, and the best learner's score in every episode."""
    if measure.metric != "score" or cell.non_adapting is None:
        return
    axes.axhline(cell.non_adapting, color=Colour.ink, lw=1.3, ls="--", zorder=2, label=_BOUNDS[0])
    known = [
        (figures.episode, figures.ceiling)
        for figures in cell.episodes
        if figures.ceiling is not None
    ]
    for k, (number, height) in enumerate(known):
        ends = [number - 0.4, number + 0.4]
        label = "" if k else _BOUNDS[1]
        axes.plot(ends, [height] * 2, color=Colour.ink, lw=1.8, ls=":", zorder=2, label=label)


def _estimate(cell: Cell, number: int, measure: Measure) -> Estimate | None:
    return measure.of(cell.episodes[number - 1]) if number <= len(cell.episodes) else None


# --- The state of training


def _training_panels(results: RunResults) -> list[tuple[str, dict[str, str], bool]]:
    """Title, metrics with their names, and whether they are rates."""
    reflects = any(results.series("reflection_length")[1])
    entropy = {"action_entropy": "action", "reflect_entropy": "reflection token"}
    length = {"reply_length": "reply", "reflection_length": "reflection"}
    if not reflects:
        del entropy["reflect_entropy"], length["reflection_length"]
    change = ("Norm of the gradient", {"gradient_norm": ""}, False)
    if any(results.series("clip_fraction")[1]):  # nothing is clipped in a single optimizer step
        change = ("Clipped tokens", {"clip_fraction": ""}, True)
    return [
        ("Entropy (nats)", entropy, False),
        ("Illegal replies", {"illegal_rate": ""}, True),
        ("Length (tokens)", length, False),
        change,
    ]


def _draw_metrics(
    axes: Axes, results: RunResults, title: str, lines: dict[str, str], percent: bool
) -> None:
    axes.set_title(title, fontsize=11, pad=9)
    finish_axes(axes, "update", percent)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    names: list[tuple[str, str]] = []
    for colour, (name, label) in zip(
        (Colour.after, Colour.episodes[2]), lines.items(), strict=False
    ):
        updates, values = results.series(name)
        if values:
            axes.plot(updates, values, color=colour, lw=0.7, alpha=0.25)
            axes.plot(updates, smooth(values), color=colour, lw=1.8)
            names.append((label, colour))
    if not names:
        show_empty(axes, "no update yet")
        return
    limit_updates(axes, results)
    if axes.dataLim.ymin >= 0:  # the axis of these metrics starts at 0
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax or (0.05 if percent else 1))
    _name_lines(axes, [name for name in names if name[0]])


def _name_lines(axes: Axes, names: Sequence[tuple[str, str]]) -> None:
    """The names of the lines in their colours, to the right of the title."""
    right = 0.0
    for label, colour in reversed(names):
        text = write_text(
            axes, label, (1, 1), (-right, 9), "axes fraction", ha="right", fontsize=9, color=colour
        )
        right += text.get_window_extent().width * 72 / DPI + 9
