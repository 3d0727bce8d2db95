"""Pictures of the results of an environment as PNG: learning curves, episodes, choices."""

from collections.abc import Callable, Sequence
from io import BytesIO
from statistics import fmean

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mage.evaluation.statistics import Estimate
from mage.report.drawing import LIGHT, plot_style
from mage.reproduce.action_shares import ArmChoices, WorldChoices
from mage.reproduce.results import ArmResult, EpisodeResult, WorldResult

# The colours of Okabe and Ito, and greys for arms without training.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
_GREYS = ("#1c2024", "#60646c", "#9a9fab", "#c3c7cf")
_DPI = 110


def draw_results(result: WorldResult) -> bytes:
    """Learning curves (mean and range over seeds) and the measure by episode (with intervals)."""

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        colours = _colours(result)
        for number, arm in enumerate(result.arms):
            _curve(left, arm, colours[arm.label])
            _episodes(
                right, arm, colours[arm.label], result, 0.03 * (number - len(result.arms) / 2)
            )
        _bounds(left, result, last=True)
        _bounds(right, result, last=False)
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.set(
            title="Last episode over training, select panel", xlabel="update", ylabel=result.measure
        )
        right.set(
            title=f"Episode by episode, final {result.split} panel",
            xlabel="episode",
            ylabel=result.measure,
        )
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.01, 0.5))

    return _picture(draw, 13, 4.6)


def _colours(result: WorldResult) -> dict[str, str]:
    trained, plain = (
        [arm.label for arm in result.arms if arm.trains == trains] for trains in (True, False)
    )
    return _cycle(trained, _COLOURS) | _cycle(plain, _GREYS)


def _cycle(labels: Sequence[str], palette: Sequence[str]) -> dict[str, str]:
    return {label: palette[k % len(palette)] for k, label in enumerate(labels)}


def _curve(axes: Axes, arm: ArmResult, colour: str) -> None:
    if not arm.curve:
        return
    updates = [update for update, _ in arm.curve]
    axes.plot(updates, [fmean(values) for _, values in arm.curve], color=colour, label=arm.label)
    axes.fill_between(
        updates,
        [min(values) for _, values in arm.curve],
        [max(values) for _, values in arm.curve],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )


def _episodes(axes: Axes, arm: ArmResult, colour: str, result: WorldResult, aside: float) -> None:
    found = [_of(one, result) for one in arm.episodes]
    x = [one.episode + aside for one in arm.episodes]  # so that intervals do not overlap
    values = [one.value for one in found]
    spread = [[one.value - one.low for one in found], [one.high - one.value for one in found]]
    axes.errorbar(
        x,
        values,
        yerr=spread,
        color=colour,
        label=arm.label,
        marker="o",
        markersize=4,
        capsize=2,
        linestyle="-" if arm.trains else ":",
    )


def _of(one: EpisodeResult, result: WorldResult) -> Estimate:
    return one.score if result.measure == "score" else one.success


def _bounds(axes: Axes, result: WorldResult, last: bool) -> None:
    if result.bounds is None:
        return
    axes.axhline(
        result.bounds.non_adapting,
        color=LIGHT.quiet,
        linestyle="--",
        linewidth=1,
        label="best without adapting",
    )
    known = [(k + 1, value) for k, value in enumerate(result.bounds.learner) if value is not None]
    if last and known:
        axes.axhline(known[-1][1], color=LIGHT.ink, linestyle="--", linewidth=1)
    elif known:
        axes.plot(
            [k for k, _ in known],
            [value for _, value in known],
            color=LIGHT.ink,
            linestyle="--",
            linewidth=1,
            label="best learner",
        )


def draw_choices(choices: WorldChoices) -> bytes:
    """One heat map for each arm. Rows: state and move. Columns: episodes. Dark: frequent."""
    labels = [f"{_one_line(state)}: {move}" for state, move in choices.rows]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(choices.arms), sharey=True, squeeze=False)[0]
        for axes, arm in zip(panels, choices.arms, strict=True):
            _draw_shares(axes, arm)
        panels[0].set_yticks(range(len(labels)), labels, fontsize=8)

    return _picture(draw, 13, 1.2 + 0.3 * len(labels))


def _draw_shares(axes: Axes, arm: ArmChoices) -> None:
    episodes = arm.shares.shape[1]
    axes.imshow(arm.shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    for (row, k), share in np.ndenumerate(arm.shares):
        if np.isfinite(share) and episodes <= 5:
            colour = "white" if share > 0.6 else LIGHT.ink
            text = f"{100 * share:.0f}"
            axes.text(k, row, text, ha="center", va="center", fontsize=7, color=colour)
    axes.set_title(arm.label, fontsize=10, loc="center")
    axes.set_xticks(range(episodes), [str(k + 1) for k in range(episodes)])
    axes.grid(False)


def _one_line(state: str, most: int = 46) -> str:
    text = " / ".join(line.strip() for line in state.splitlines() if line.strip())
    return text if len(text) <= most else f"...{text[-most:]}"


def _picture(draw: Callable[[Figure], None], width: float, height: float) -> bytes:
    with mpl.rc_context(plot_style(LIGHT)):
        figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()
