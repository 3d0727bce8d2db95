"""The pictures of a reproduction as SVG: Pass@k by episode, pairs of state and move, and habits.

A picture is narrow, so that a phone shows it whole and a wide screen shows several in a row.
"""

import math
from collections.abc import Sequence

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

PALETTE = (
    *("#60646c", "#56B4E9", "#7A5195", "#1c2024", "#CC79A7"),
    *("#009E73", "#D55E00", "#0072B2", "#E69F00"),
)
_WIDTH, _HEIGHT = 5.2, 3.9  # inches
_SPREAD = 0.34  # width of the place in which the intervals of all arms stand side by side
_LARGEST = 260.0  # points^2 of a circle that stands for all turns of an episode
_TEXT = {"svg.fonttype": "none", "font.size": 10, "axes.titlesize": 11}


def draw_curves(panel: CurvePanel) -> str:
    """Pass@k or Draw@k by episode: one line an arm with 95 % intervals, and the paper's points."""
    with new_figure(_WIDTH, _HEIGHT, **_TEXT) as figure:
        axes = figure.add_axes((0.12, 0.13, 0.64, 0.76))
        episodes = max(len(arm.values) for arm in panel.arms)
        finish_axes(axes, "", percent=True)
        ends = []
        for k, arm in enumerate(panel.arms):
            aside = _SPREAD * (k / max(1, len(panel.arms) - 1) - 0.5)
            colour = PALETTE[k % len(PALETTE)]
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
    axes.vlines(
        places,
        [one.low for one in arm.values],
        [one.high for one in arm.values],
        color=colour,
        linewidth=1.0,
        alpha=0.45,
    )
    axes.plot(
        places,
        [one.value for one in arm.values],
        "-" if arm.trains else "--",
        color=colour,
        marker="o",
        markersize=3,
        linewidth=1.6,
    )
    if arm.paper:
        episodes, rates = zip(*arm.paper, strict=True)
        axes.plot(
            episodes,
            rates,
            "D",
            color=colour,
            markersize=7,
            markerfacecolor="white",
            markeredgewidth=1.6,
            clip_on=False,
        )


def draw_choices(arm: ArmChoices, rows: Sequence[tuple[str, str]], colour: str) -> str:
    """Episode x pair of state and move; the area of a circle is the frequency of the pair."""
    with new_figure(2.9, 2.9, **_TEXT) as figure:
        axes = figure.add_axes((0.13, 0.15, 0.84, 0.74))
        count, episodes = arm.frequencies.shape
        for row in range(count):
            areas = [_LARGEST * share for share in arm.frequencies[row]]
            axes.scatter(range(1, episodes + 1), [row + 1] * episodes, areas, colour, linewidths=0)
        for row in range(1, count):
            if rows[row][0] != rows[row - 1][0]:
                axes.axhline(row + 0.5, color=Colour.grid, linewidth=0.8)
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
        for k, line in enumerate(lines):
            axes.plot(range(1, len(line) + 1), line, color=PALETTE[k % len(PALETTE)], marker=".")
        number_episodes(axes, max(map(len, lines)))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_title(title)
        ends = [
            (line[-1], TITLES.get(arm.label, arm.label), PALETTE[k % len(PALETTE)])
            for k, (arm, line) in enumerate(zip(choices.arms, lines, strict=True))
            if not math.isnan(line[-1])
        ]
        label_ends(axes, ends)
        return save_figure(figure, "svg").decode()
