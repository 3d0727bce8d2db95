"""When exploring costs: P(search) by what the safe box pays, over the exact line of each return.

`mage reproduce exploration` trains each return on tasks whose safe boxes pay different values. The
first choice of the first episode tells whether the agent searches. Its probabilities are stored
with the transcripts of the final panel, so the figures here need no model.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes

from mage.environments.base import Environment
from mage.evaluation.exact.learners import best_learner, return_weights
from mage.evaluation.rows import read_tasks
from mage.evaluation.statistics import Estimate, mean
from mage.report.drawing import Colour, new_figure, save_figure
from mage.report.values import pipe_table
from mage.reproduce.plan import Job, Plan, finished_runs
from mage.run_folder import RunFolder, write_atomic, write_json
from mage.run_folder.files import finite
from mage.run_folder.turn_files import read_moves

NAMES = {
    "cumulative": "LaMer",
    "differential": "MAGE",
    "sum": "plain sum",
    "final": "last only",
    "balanced": "balanced sum",
}
COLOURS = dict(zip(NAMES, ("#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7"), strict=True))
KINDS = {
    "lamer": "cumulative",
    "mage": "differential",
    "sum": "sum",
    "last": "final",
    "balanced": "balanced",
}
SAFE = "safe"
_PANEL = "after_test"
_CLOSE = 1e-6  # of a line


@dataclass(frozen=True, slots=True)
class Point:
    """The agents of one return where the safe box pays `safe`: intervals are over the seeds.

    `each` is P(search) of every seed.
    """

    safe: float
    search: Estimate
    total: Estimate
    each: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SearchCurve:
    kind: str
    line: float
    seeds: int
    points: tuple[Point, ...]


def search_line(environment: Environment, kind: str, episodes: int, discount: float) -> float:
    """The largest value of the safe box at which the best policy for this return searches."""
    assert kind in NAMES, "a return with known weights"
    low, high = 0.0, 1.0
    while high - low > _CLOSE:
        middle = (low + high) / 2
        if _searches(environment, middle, kind, episodes, discount):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _searches(
    environment: Environment, safe: float, kind: str, episodes: int, discount: float
) -> bool:
    world = type(environment).model_validate(environment.model_dump() | {"safe": (safe,)})
    ((_, problem),) = world.problems()
    scores = best_learner(problem, episodes, lambda n: return_weights(kind, n, discount))
    return max(abs(score - safe) for score in scores) > 1e-9


def write_exploration(plan: Plan, out: Path) -> list[Path]:
    """The table and the picture from the finished runs; nothing if no run is finished."""
    curves = read_curves(plan, out / "runs")
    if not curves:
        return []
    job = plan.jobs[0].recipe
    title = f"g = {job.returns.episode_discount:g}, {job.play.episodes} episodes"
    with new_figure(7, 4.4) as figure:
        _draw(figure.add_axes((0.1, 0.13, 0.87, 0.77)), curves, title)
        pictures = [
            write_atomic(out / f"exploration_search.{kind}", save_figure(figure, kind))
            for kind in ("svg", "png")
        ]
    return [
        write_atomic(out / "exploration_search.md", _markdown(curves, title).encode()),
        write_json(
            out / "exploration_search.json", {curve.kind: finite(asdict(curve)) for curve in curves}
        ),
        *pictures,
    ]


def read_curves(plan: Plan, runs: Path) -> list[SearchCurve]:
    """One curve for each return that has finished runs."""
    there = finished_runs(plan, runs)
    found: dict[str, list[Job]] = defaultdict(list)
    for job in plan.jobs:
        if job.name in there:
            found[job.arm.label].append(job)
    return [
        _curve(KINDS[label], jobs, [there[job.name] for job in jobs])
        for label, jobs in found.items()
    ]


def _curve(kind: str, jobs: Sequence[Job], folders: Sequence[RunFolder]) -> SearchCurve:
    recipe = jobs[0].recipe
    world = recipe.environment()
    seeds = [_by_safe(world.for_split("test"), folder) for folder in folders]
    points = tuple(_point(safe, [one[safe] for one in seeds]) for safe in sorted(seeds[0]))
    line = search_line(world, kind, recipe.play.episodes, recipe.returns.episode_discount)
    return SearchCurve(kind, line, len(seeds), points)


def _point(safe: float, seeds: Sequence[tuple[float, float]]) -> Point:
    """The interval of a probability over a few seeds is cut at 0 and 1."""
    searches, totals = zip(*seeds, strict=True)
    chance = mean(searches)
    chance = replace(chance, low=max(0.0, chance.low), high=min(1.0, chance.high))
    return Point(safe, chance, mean(totals), searches)


def _by_safe(world: Environment, folder: RunFolder) -> dict[float, tuple[float, float]]:
    """P(search) in the first choice and the sum of the scores, by what the safe box pays.

    Transcripts hold some tasks of the panel, but the probabilities of the first choice are the same
    in all tasks with the same safe box.
    """
    chances = {
        one.group: 1 - dict(one.moves).get(SAFE, 0.0) / one.legal
        for one in read_moves(folder.path, _PANEL)
        if (one.episode, one.index) == (0, 0)
    }
    searches, totals = defaultdict(list), defaultdict(list)
    for meta in folder.read_episodes_of(_PANEL):
        searches[safe_box(world, meta.task.seed)].append(chances[meta.group])
    for row in read_tasks(folder.path / "evaluations" / f"{_PANEL}.tasks.jsonl"):
        totals[safe_box(world, row.task.seed)].append(sum(row.scores))
    return {
        safe: (fmean(searches[safe]), fmean(own)) for safe, own in totals.items() if searches[safe]
    }


def safe_box(world: Environment, seed: int) -> float:
    """What the safe box pays in the task with this seed."""
    options = world.model_dump()
    deal = world.stratum(world.episode_seed(seed, 0))
    return float(options["safe"][deal // options["arms"]])


def _draw(axes: Axes, curves: Sequence[SearchCurve], title: str) -> None:
    axes.set_title(f"Who searches? {title}")
    for curve in curves:
        colour, safes = COLOURS[curve.kind], [point.safe for point in curve.points]
        label = f"{NAMES[curve.kind]} (exact line {curve.line:.3f})"
        axes.axvline(curve.line, color=colour, ls=":", lw=1.5)
        axes.plot(
            safes, [one.search.value for one in curve.points], color=colour, lw=2.2, label=label
        )
        for number in range(curve.seeds):
            own = [point.each[number] for point in curve.points]
            axes.plot(safes, own, color=colour, lw=0.7, alpha=0.5)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("safe box pays s")
    axes.set_ylabel("P(search) in the first choice")
    axes.legend(frameon=False, labelcolor=Colour.ink, fontsize=9)


def _markdown(curves: Sequence[SearchCurve], title: str) -> str:
    """Both figures by return and safe box, with 95 % intervals over the seeds."""
    names = [
        f"{NAMES[curve.kind]} ({curve.seeds} seed{'s' if curve.seeds > 1 else ''})"
        for curve in curves
    ]
    lines = [f"# Who searches? {title}", ""]
    for name, head in (("search", "P(search) in the first choice"), ("total", "sum of scores")):
        rows = [
            [f"{row[0].safe:g}", *(_show(getattr(point, name)) for point in row)]
            for row in zip(*(curve.points for curve in curves), strict=True)
        ]
        lines += [*pipe_table([f"{head}, s", *names], rows), ""]
    exact = ", ".join(f"{NAMES[curve.kind]} {curve.line:.4f}" for curve in curves)
    return "\n".join([*lines, f"Exact lines: {exact}.", ""])


def _show(found: Estimate) -> str:
    if found.count == 1:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
