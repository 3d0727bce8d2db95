"""The pictures of a reproduction as SVG: Pass@k by episode, pairs of state and move, and habits.

A picture is narrow, so that a phone shows it whole and a wide screen shows several in a row.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mage.report.drawing import (
    Colour,
    finish_axes,
    label_ends,
    new_figure,
    number_episodes,
    save_figure,
)
from mage.reproduce.action_shares import ArmChoices, WorldChoices
from mage.reproduce.results import ArmCurve, CurvePanel
from mage.reproduce.tables import TITLES

# Colours that colour-blind readers can tell apart; a method has the same one on every picture.
_COLOURS = {
    **{"mage": "#0072B2", "lamer": "#D55E00", "gigpo": "#009E73", "grpo": "#CC79A7"},
    **{"final": "#E69F00", "reflexion": "#56B4E9", "react": "#80838d"},
    **{"amem": "#7A5195", "memento": "#1c2024"},
}
_OTHERS = tuple(_COLOURS.values())
_WIDTH, _HEIGHT = 5.2, 3.9  # inches
_SPREAD = 0.34  # width of the place in which the intervals of all arms stand side by side
_LARGEST = 13.0  # points: diameter of the circle of the most frequent pair
_TEXT = {"svg.fonttype": "none", "font.size": 10, "axes.titlesize": 11}


def colours_of(labels: Sequence[str]) -> list[str]:
    """One colour an arm."""
    return [_COLOURS.get(one, _OTHERS[k % len(_OTHERS)]) for k, one in enumerate(labels)]


def draw_curves(panel: CurvePanel) -> str:
    """Pass@k or Draw@k by episode: one line an arm with 95 % intervals, and the paper's points."""
    with new_figure(_WIDTH, _HEIGHT, **_TEXT) as figure:
        axes = figure.add_axes((0.12, 0.13, 0.64, 0.76))
        episodes = max(len(arm.values) for arm in panel.arms)
        finish_axes(axes, "", percent=True)
        ends = []
        colours = colours_of([arm.label for arm in panel.arms])
        for k, (arm, colour) in enumerate(zip(panel.arms, colours, strict=True)):
            aside = _SPREAD * (k / max(1, len(panel.arms) - 1) - 0.5)
            _draw_arm(axes, arm, colour, aside)
            ends.append((arm.values[-1].value, TITLES.get(arm.label, arm.label), colour))
        number_episodes(axes, episodes, "episode k")
        axes.set_title(f"{'Draw' if panel.measure == 'draw_at' else 'Pass'}@k, {_domain(panel)}")
        label_ends(axes, ends)
        return save_figure(figure, "svg").decode()


def _domain(panel: CurvePanel) -> str:
    place = "out of domain" if panel.split == "ood" else "in domain"
    return f"{place}, {panel.variant}" if panel.variant else place


def _draw_arm(axes: Axes, arm: ArmCurve, colour: str, aside: float) -> None:
    places = [k + aside for k in range(1, len(arm.values) + 1)]
    lows, highs = [one.low for one in arm.values], [one.high for one in arm.values]
    axes.vlines(places, lows, highs, color=colour, lw=0.8, alpha=0.4)
    values, line = [one.value for one in arm.values], "-" if arm.trains else "--"
    axes.plot(places, values, line, color=colour, marker="o", ms=3, lw=1.6)
    if arm.paper:
        episodes, rates = zip(*arm.paper, strict=True)
        look: dict[str, Any] = {"ms": 7, "mfc": "white", "mew": 1.6, "clip_on": False}
        axes.plot(episodes, rates, "D", color=colour, **look)


def draw_choices(choices: WorldChoices) -> list[str]:
    """One picture an arm; circles of all arms have one scale."""
    largest = max(float(arm.frequencies.max(initial=0.0)) for arm in choices.arms) or 1.0
    colours = colours_of([arm.label for arm in choices.arms])
    return [
        _draw_choices(arm, choices.rows, colour, largest)
        for arm, colour in zip(choices.arms, colours, strict=True)
    ]


def _draw_choices(
    arm: ArmChoices, rows: Sequence[tuple[str, str]], colour: str, largest: float
) -> str:
    """Episode x pair of state and move; the area of a circle is the frequency of the pair."""
    with new_figure(2.9, 2.9, **_TEXT) as figure:
        axes = figure.add_axes((0.17, 0.15, 0.8, 0.72))
        count, episodes = arm.frequencies.shape
        # Diameters in steps of half a point: circles of one size are one shape in the file.
        sizes = np.round(2 * _LARGEST * np.sqrt(arm.frequencies / largest)) / 2
        for size in sorted(set(sizes[sizes > 0].tolist())):
            places, episode = np.nonzero(sizes == size)
            axes.plot(episode + 1, places + 1, "o", color=colour, ms=size, mew=0, alpha=0.85)
        for row in range(1, count):
            if rows[row][0] != rows[row - 1][0]:
                axes.axhline(row + 0.5, color=Colour.grid, lw=0.8, zorder=0)
        axes.grid(visible=False)
        number_episodes(axes, episodes)
        axes.set_ylim(count + 0.8, 0.2)
        axes.set_yticks(range(1, count + 1, 1 if count <= 9 else 2))
        axes.set_ylabel("pair")
        axes.set_title(TITLES.get(arm.label, arm.label))
        return save_figure(figure, "svg").decode()


def draw_habits(choices: WorldChoices) -> list[str]:
    """Repeated pairs by episode, and the entropy of pairs by episode: one line an arm."""
    repeats = [
        [math.nan if one.repeats is None else one.repeats.value for one in arm.habits]
        for arm in choices.arms
    ]
    entropy = [[one.entropy for one in arm.habits] for arm in choices.arms]
    return [
        _draw_habit(choices, repeats, "Pairs repeated from the episode before", percent=True),
        _draw_habit(choices, entropy, "Entropy of pairs, nats", percent=False),
    ]


def _draw_habit(
    choices: WorldChoices, lines: Sequence[Sequence[float]], title: str, percent: bool
) -> str:
    with new_figure(_WIDTH, _HEIGHT - 0.5, **_TEXT) as figure:
        axes = figure.add_axes((0.12, 0.15, 0.64, 0.73))
        finish_axes(axes, "", percent=percent)
        colours = colours_of([arm.label for arm in choices.arms])
        for line, colour in zip(lines, colours, strict=True):
            axes.plot(range(1, len(line) + 1), line, color=colour, marker=".")
        number_episodes(axes, max(map(len, lines)))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_title(title)
        ends = [
            (line[-1], TITLES.get(arm.label, arm.label), colour)
            for arm, line, colour in zip(choices.arms, lines, colours, strict=True)
            if not math.isnan(line[-1])
        ]
        label_ends(axes, ends)
        return save_figure(figure, "svg").decode()
