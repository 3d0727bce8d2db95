"""Draw the pictures of docs/results from results/: `python scripts/draw_results.py [FOLDER [pdf]]`.

Every line has one name on all pictures: "with memory", "without memory", "memory of another
opponent", "best learner", "best without adapting". Bars and bands are 95 % intervals. The pictures
of concepts in docs/images (meta_episode, credit, trie, loop) are SVG files that are edited as text.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes

from mage.config.loading import load_recipe
from mage.evaluation.rows import read_tasks
from mage.report.drawing import Colour, new_figure, number_episodes, save_figure
from mage.reproduce.tables import TITLES
from mage.run_folder import read_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
COLOURS = {
    (WITH := "with memory"): Colour.after,
    (WITHOUT := "without memory"): Colour.emptied,
    (SWAPPED := "memory of another opponent"): Colour.before,
    (LEARNER := "best learner"): Colour.ink,
    (FIXED := "best without adapting"): Colour.quiet,
}
LATE = "qwen/rps_controls/reflections_late_seed1"  # notes learn late
REPAIR = "qwen/worlds/webshop_repair_mage_seed1"  # a start that teaches repair
Curve = Sequence[dict[str, Any]]  # one estimate an episode: value, low, high


def evaluation(path: str) -> dict[str, Any]:
    found = read_json(RESULTS / path)
    return dict(found.get("evaluation", found)["overall"])


def curve(path: str, measure: str) -> Curve:
    return [episode[measure] for episode in evaluation(path)["episodes"]]


def exact(path: str) -> Curve:
    """Exact scores of known players: their interval is that of the choice of players, left out."""
    found = read_json(RESULTS / path)["over_players"]["episodes"]
    return [{"value": one["value"], "low": one["value"], "high": one["value"]} for one in found]


def draw_curve(axes: Axes, name: str, points: Curve, label: str = "") -> None:
    numbers = range(1, len(points) + 1)
    value, low, high = ([one[key] for one in points] for key in ("value", "low", "high"))
    axes.fill_between(numbers, low, high, color=COLOURS[name], alpha=0.16, linewidth=0)
    style = "-" if name == WITH else "--"
    axes.plot(numbers, value, style, color=COLOURS[name], marker="o", markersize=5, label=label)


def draw_bounds(axes: Axes, fixed: float, learner: Sequence[float | None]) -> None:
    axes.axhline(fixed, color=COLOURS[FIXED], linewidth=1.2, linestyle=(0, (5, 3)), label=FIXED)
    for number, height in enumerate(learner, start=1):
        if height is not None:
            label = LEARNER if number == len(learner) else ""
            ends = (number - 0.22, number + 0.22)
            axes.plot(ends, (height, height), color=COLOURS[LEARNER], linewidth=2, label=label)


def finish(axes: Axes, title: str, unit: str, episodes: int, word: str = "episode") -> None:
    axes.set_title(title, fontsize=11.5)
    axes.set_ylabel(unit)
    number_episodes(axes, episodes, word)


def against_ceilings(axes: Axes, folder: str, title: str, unit: str, word: str) -> None:
    place = f"{folder}/evaluations"
    cell = evaluation(f"{place}/after_test.json")
    draw_bounds(axes, cell["non_adapting"], [one.get("ceiling") for one in cell["episodes"]])
    draw_curve(axes, WITH, curve(f"{place}/after_test.json", "score"), WITH)
    draw_curve(axes, WITHOUT, curve(f"{place}/emptied_test.json", "score"), WITHOUT)
    finish(axes, title, unit, 3, word)


def draw_adapts(panels: Sequence[Axes]) -> None:
    against_ceilings(
        panels[0], "demo", "Rock-paper-scissors, new opponents", "score a throw", "episode"
    )
    draw_bounds(panels[1], 0.438, [None, None, 0.495])
    draw_curve(panels[1], WITH, exact("kuhn_random_seed2/exact_test.json"))
    draw_curve(panels[1], WITHOUT, exact("kuhn_random_seed2/exact_test_emptied.json"))
    panels[1].set_ylim(0.42, 0.51)
    finish(panels[1], "Kuhn poker, new players (exact)", "chips a hand", 3, "hand")
    rooms = "alfworld_three_games/evaluations"
    draw_curve(panels[2], WITH, curve(f"{rooms}/after_test.json", "success"))
    draw_curve(panels[2], WITHOUT, curve(f"{rooms}/emptied_test.json", "success"))
    panels[2].set_ylim(0.4, 0.9)
    finish(panels[2], "ALFWorld rooms, small model", "share of games won", 3, "game")


def draw_real_models(panels: Sequence[Axes]) -> None:
    titles = {
        "smollm2_rps/history": ("Rock-paper-scissors, history", "score a throw", "episode"),
        "smollm2_rps/reflections": ("The same, reflections only", "score a throw", "episode"),
        "smollm2_kuhn_poker_seed1": ("Kuhn poker, three styles", "chips a hand", "hand"),
    }
    for axes, (folder, (title, unit, word)) in zip(panels, titles.items(), strict=True):
        against_ceilings(axes, folder, title, unit, word)
    for axes in panels[:2]:
        axes.set_ylim(0.22, 0.56)


def draw_worlds(panels: Sequence[Axes]) -> None:
    shown = {
        "ALFWorld (seed 2)": "smollm2_alfworld_methods/mage_seed2",
        "WebShop (seed 0)": "smollm2_webshop_loss/mage_seed0",
        "Sokoban (seed 1)": "smollm2_sokoban_long/mage_seed1",
    }
    for axes, (title, stem) in zip(panels, shown.items(), strict=True):
        draw_curve(axes, WITH, curve(f"{stem}_ten.json", "success"), WITH)
        control = curve(f"{stem}_test_emptied.json", "success")
        draw_curve(axes, WITHOUT, control, f"{WITHOUT} (three episodes played)")
        axes.set_ylim(0.25, 1.0)
        finish(axes, title, "share of tasks won", 10)


def draw_qwen(panels: Sequence[Axes]) -> None:
    title = "Rock-paper-scissors, reflections"
    against_ceilings(panels[0], LATE, title, "score a throw", "episode")
    draw_curve(panels[0], SWAPPED, curve(f"{LATE}/swapped_test.json", "score"), SWAPPED)
    styles = {"MAGE": "o-", "MAGE, seed 2": "s--", "LaMer": "D-", "LaMer, seed 2": "v--"}
    runs = ("mage_seed1", "mage_seed2", "lamer_seed1", "lamer_seed2")
    for name, run in zip(styles, runs, strict=True):
        colour = Colour.ink if "LaMer" in name else Colour.after
        tables = doors_by_safe(run)
        means = [fmean(one) for one in zip(*tables[0.68], strict=True)]
        panels[1].plot((1, 2, 3), means, styles[name], color=colour, label=name)
        found = [fmean(scores[2] == 1 for scores in tables[safe]) for safe in tables]
        panels[2].plot(list(tables), found, styles[name], color=colour)
    panels[1].axhline(0.68, color=COLOURS[FIXED], linewidth=1.2, linestyle=(0, (5, 3)))
    panels[1].legend(frameon=False, loc="lower right")
    finish(panels[1], "Doors, safe box pays .68", "score", 3)
    for line, name, side in ((0.643, "LaMer ", "right"), (0.72, " MAGE", "left")):
        panels[2].axvline(line, color=COLOURS[FIXED], linewidth=1)
        panels[2].text(line, 0.5, name, ha=side, fontsize=9)
    panels[2].set_ylim(-0.05, 1.12)
    panels[2].set_title("Doors: who searches", fontsize=11.5)
    panels[2].set_xlabel("the safe box pays")
    panels[2].set_ylabel("door found by the third episode")


def doors_by_safe(run: str) -> dict[float, list[tuple[float, ...]]]:
    """The scores of all tasks of a run on doors, by what the safe box pays."""
    world = load_recipe("qwen_doors").environment()
    found: dict[float, list[tuple[float, ...]]] = {}
    for row in read_tasks(RESULTS / "qwen" / "doors" / "tasks" / f"{run}_after_test.jsonl.gz"):
        state: Any = world.start(world.episode_seed(row.task.seed, 0))
        found.setdefault(state.safe, []).append(tuple(row.scores))
    return dict(sorted(found.items()))


METHODS = {name: TITLES[name] for name in ("grpo", "gigpo", "lamer", "mage")} | {"final": "final"}


def draw_methods(panels: Sequence[Axes]) -> None:
    returns = read_json(RESULTS / "returns_small" / "returns.json")["results"]
    table = read_json(RESULTS / "paper_small" / "table1.json")["results"]
    titles = (
        ("Rock-paper-scissors, new opponents", "score a throw", 0.286),
        ("Kuhn poker, three styles", "chips a hand", 0.125),
        ("Tic-Tac-Toe", "share of games won", None),
    )
    for axes, found, (title, unit, fixed) in zip(panels, [*returns, *table], titles, strict=True):
        arms = {arm["label"]: arm for arm in found["arms"] if arm["label"] in METHODS}
        names = [name for name in METHODS if name in arms]
        for place, name in enumerate(names):
            one = arms[name]["episodes"][-1][found["measure"]]
            colour = Colour.after if name in ("mage", "lamer") else Colour.before
            axes.plot([place] * 2, [one["low"], one["high"]], color=colour, linewidth=2.5)
            axes.plot(place, one["value"], "o", color=colour, markersize=8)
        if fixed is not None:
            draw_bounds(axes, fixed, ())
        axes.set_xticks(range(len(names)), [METHODS[name] for name in names])
        axes.set_xlim(-0.6, len(names) - 0.4)
        axes.set_title(title, fontsize=11.5)
        axes.set_ylabel(f"{unit}, third episode")


# The files of every world; {} is the condition (without it the memory was never emptied). `score`
# and `exact` have exact bounds.
WORLDS = {
    "Rock-paper-scissors, SmolLM2": ("smollm2_rps/history/evaluations/{}_test", "score"),
    "Rock-paper-scissors, Qwen2.5-1.5B": ("qwen/rps/both_seed1/evaluations/{}_test", "score"),
    "Doors, Qwen2.5-1.5B": ("qwen/doors/mage_seed1/evaluations/{}_test", "success"),
    "Rock-paper-scissors, 0.1 M parameters": ("demo/evaluations/{}_test", "score"),
    "Kuhn poker, three styles, SmolLM2": ("smollm2_kuhn_poker_seed1/exact_test{}", "exact"),
    "Rock-paper-scissors, reflections": ("smollm2_rps/reflections/evaluations/{}_test", "score"),
    "The same, Qwen2.5-1.5B": (f"{LATE}/evaluations/{{}}_test", "score"),
    "Kuhn poker, Qwen2.5-1.5B": ("qwen/more_seeds/kuhn_mage_seed3/evaluate_{}", "score"),
    "Kuhn poker, players never met, 0.1 M": ("kuhn_random_seed2/exact_test{}", "exact"),
    "ALFWorld, generated rooms, 0.4 M": ("alfworld_three_games/evaluations/{}_test", "success"),
    "ALFWorld, official, SmolLM2": ("smollm2_alfworld_methods/mage_seed2_test{}", "success"),
    "ALFWorld, official, Qwen2.5-1.5B": ("qwen/worlds/alfworld_mage_seed1/evaluate_{}", "success"),
    "Sokoban, two boxes, SmolLM2": ("smollm2_sokoban_long/mage_seed0_test{}", "success"),
    "Sokoban, two boxes, Qwen2.5-1.5B": ("qwen/worlds/sokoban_mage_seed1/evaluate_{}", "success"),
    "WebShop, SmolLM2": ("smollm2_webshop_loss/mage_seed0_test{}_four_plays", "success"),
    "WebShop, Qwen2.5-1.5B": (f"{REPAIR}/evaluations/{{}}_test", "success"),
    "Tic-Tac-Toe, SmolLM2": ("smollm2_tic_tac_toe/evaluations/{}_test", "success"),
    "Tic-Tac-Toe, Qwen2.5-1.5B": ("qwen/tic_tac_toe/mage_seed1/evaluate_ten_episodes", "success"),
}


def read_shares(files: str, measure: str) -> tuple[list[float], float | None, list[float]]:
    """Episodes 1 to 3, episode 3 with emptied memory, and the interval, between 0 and 1."""
    conditions = ("after", "emptied") if "evaluations" in files else ("", "_emptied")
    conditions = ("own", "none") if "evaluate_" in files else conditions
    paths = [f"{files.format(condition)}.json" for condition in conditions]
    if measure == "exact":
        after, emptied = (read_json(RESULTS / path) for path in paths)
        places = [RESULTS / files.split("/")[0] / f"ceilings_{n}.json" for n in ("first", "second")]
        seats = [read_json(place) for place in places]
        zero, one = (sum(s[key] for s in seats) / 2 for key in ("non_adapting", "bayes_final"))
        gain = after.get("over_players", {}).get("gain")  # a few known opponents: no interval
        values, without = (found["cells"][0]["scores"] for found in (after, emptied))
    else:
        values, without = ([e["value"] for e in curve(path, measure)[:3]] for path in paths)
        cell = evaluation(paths[0])
        gain = cell["episodes"][2][f"{measure}_gain"]
        zero, one = cell["non_adapting"], cell["episodes"][2]["ceiling"]
    if measure == "success":
        zero, one = values[0], 1.0
    ends = [values[0] + gain[end] for end in ("low", "high")] if gain else []
    shares = [(value - zero) / (one - zero) for value in (*values, without[2], *ends)]
    return shares[:3], shares[3] if "{}" in files else None, shares[4:]


def draw_adaptation(axes: Axes) -> None:
    """Episodes 1, 2 and 3 of every world between no adaptation (0) and the most possible (1)."""
    for row, (files, measure) in enumerate(WORLDS.values()):
        shares, emptied, ends = read_shares(files, measure)
        colour = Colour.episodes[2] if measure == "success" else Colour.after
        axes.plot([min(shares[0], *ends, shares[2]), max(shares)], [row] * 2, color=colour)
        axes.plot(ends, [row] * len(ends), "|-", color=colour, markersize=9)
        axes.scatter(shares, [row] * 3, (18, 40, 90), colour, zorder=3)
        ring = [] if emptied is None else [emptied]
        axes.scatter(ring, [row] * len(ring), 90, "none", edgecolors=Colour.quiet, lw=1.6, zorder=4)
    axes.set_yticks(range(len(WORLDS)), WORLDS, fontsize=10)
    axes.set_ylim(len(WORLDS) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.set_title("0 = without adapting, 1 = the most that is possible", fontsize=11.5)
    axes.set_xlabel(
        "Dots: episodes 1, 2, 3 (the largest).\n"
        "Ring: episode 3, memory emptied (where it was played).\n"
        "Blue: 0 is the best without memory, 1 the best learner, both exact.\n"
        "Orange: 0 is the success in episode 1, 1 is every task.\n"
        "Bars: 95 % interval of the gain from episode 1 to 3.",
        fontsize=9.5,
    )


PICTURES: dict[str, Callable[[Sequence[Axes]], None]] = {
    "adapts": draw_adapts,
    "mage_and_lamer": draw_methods,
    "qwen": draw_qwen,
    "real_models": draw_real_models,
    "worlds": draw_worlds,
}


def draw(folder: Path, kind: str = "svg") -> None:
    """Write every picture; an SVG has the same bytes each time."""
    for name, panels in PICTURES.items():
        with new_figure(12, 4.2) as figure:
            axes = figure.subplots(1, 3)
            panels(axes)
            figure.tight_layout(rect=(0, 0.09, 1, 1), w_pad=2.5)
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
            (folder / f"{name}.{kind}").write_bytes(save_figure(figure, kind))
    with new_figure(8, 7) as figure:
        draw_adaptation(figure.subplots())
        figure.tight_layout()
        (folder / f"adaptation.{kind}").write_bytes(save_figure(figure, kind))


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images", *sys.argv[2:])
