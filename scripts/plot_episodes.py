"""Draw success over the episodes of stored evaluations, with 95 % intervals.

    python scripts/plot_episodes.py OUT.png "NAME=FILE.json" ["NAME=FILE.json" ...]

The files are outputs of `mage evaluate RUN --evaluate.episodes=10 --json`.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mage.report.drawing import DPI, LIGHT, finish_axes, label_ends, plot_style

COLOURS = (*LIGHT.episodes, LIGHT.emptied, LIGHT.before)


def main(out: Path, named: list[str]) -> None:
    with mpl.rc_context(plot_style(LIGHT)):
        figure = Figure(figsize=(9, 5), dpi=DPI)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.08, 0.12, 0.68, 0.78))
        axes.set_title("Success by episode, held-out tasks, 95 % intervals")
        finish_axes(axes, "episode", percent=True)
        ends = []
        for colour, one in zip(COLOURS, named, strict=False):
            name, _, path = one.partition("=")
            found = json.loads(Path(path).read_text())["evaluation"]["overall"]["episodes"]
            numbers = [episode["episode"] for episode in found]
            value, low, high = (
                [episode["success"][key] for episode in found] for key in ("value", "low", "high")
            )
            axes.plot(numbers, value, color=colour, marker="o", markersize=4)
            axes.fill_between(numbers, low, high, color=colour, alpha=0.1, linewidth=0)
            ends.append((value[-1], name, colour))
        axes.set_ylim(0, 1)
        label_ends(axes, ends)
        figure.savefig(out, metadata={"Software": None})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
