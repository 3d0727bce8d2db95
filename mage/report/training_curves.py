"""The small panels of the picture: entropy, illegal replies, lengths, clipping."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mage.report.drawing import (
    DPI,
    Theme,
    finish_axes,
    limit_updates,
    show_empty,
    smooth,
    write_text,
)
from mage.report.run_results import RunResults


def draw_entropy(axes: Axes, results: RunResults, theme: Theme) -> None:
    lines = {"action_entropy": "action", "reflect_entropy": "reflection token"}
    if not any(results.series("reflection_length")[1]):
        del lines["reflect_entropy"]
    _draw_metrics(axes, results, theme, "Entropy (nats)", lines)


def draw_illegal(axes: Axes, results: RunResults, theme: Theme) -> None:
    _draw_metrics(axes, results, theme, "Illegal replies", {"illegal_rate": ""}, percent=True)


def draw_lengths(axes: Axes, results: RunResults, theme: Theme) -> None:
    lines = {"reply_length": "reply", "reflection_length": "reflection"}
    if not any(results.series("reflection_length")[1]):
        del lines["reflection_length"]
    _draw_metrics(axes, results, theme, "Length (tokens)", lines)


def draw_change(axes: Axes, results: RunResults, theme: Theme) -> None:
    """Clipped tokens, or the gradient norm where nothing is clipped (one optimizer step)."""
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
    finish_axes(axes, "update", percent)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    names: list[tuple[str, str]] = []
    for colour, (name, label) in zip((theme.after, theme.episodes[2]), lines.items(), strict=False):
        updates, values = results.series(name)
        if values:
            axes.plot(updates, values, color=colour, linewidth=0.7, alpha=0.25)
            axes.plot(updates, smooth(values), color=colour, linewidth=1.8)
            names.append((label, colour))
    if not names:
        show_empty(axes, theme, "no update yet")
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
