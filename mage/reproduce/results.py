"""Figures of a reproduction: every arm with intervals and budget, and every pair of arms.

All intervals are over tasks AND training seeds; those of rates stay between 0 and 1. A difference
is significant if its own interval excludes zero and Holm's correction over all pairs of the
environment agrees. The tables of the paper compare Pass@k, so a second comparison shows the last
episode itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from mage.config.errors import UserError
from mage.evaluation.rows import TaskRow, read_tasks
from mage.evaluation.statistics import Difference, Estimate, crossed_mean, crossed_rate, holm
from mage.report.run_results import read_evaluation
from mage.reproduce.paper import find_differences
from mage.reproduce.plan import Job, Plan, finished_runs
from mage.reproduce.tables import TABLES, Arm, MeasureName, Name
from mage.run_folder import RunFolder
from mage.types import Split, Task

LEVEL = 0.05
_METHOD_TABLES: tuple[Name, ...] = ("table1", "ood")
TOLERANCE = 0.1  # relative difference of generated tokens above which the page warns


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """Episode k of an arm, over all its tasks and seeds."""

    episode: int
    score: Estimate
    success: Estimate
    draws: Estimate
    pass_at: Estimate
    draw_at: Estimate


@dataclass(frozen=True, slots=True)
class Budget:
    """Episodes and generated tokens of one run of an arm, as means over its seeds."""

    training_episodes: float
    training_tokens: float
    evaluation_episodes: float
    evaluation_tokens: float


@dataclass(frozen=True, slots=True)
class ArmResult:
    """A line of the table.

    `by_seed`: the measure in the last episode for every seed. `curve`: the same on the select
    panel, by update. `paper`: the paper's rates where they are known, as (episode, rate).
    """

    label: str
    trains: bool
    seeds: tuple[int, ...]
    tasks: int
    episodes: tuple[EpisodeResult, ...]
    gain: Estimate
    by_seed: tuple[float, ...]
    budget: Budget
    curve: tuple[tuple[int, tuple[float, ...]], ...]
    paper: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Second minus first in the last episode, over the seeds that both arms have.

    An arm without training counts for every seed.
    """

    first: str
    second: str
    seeds: int
    difference: Difference
    adjusted: float
    trained: bool

    @property
    def is_real(self) -> bool:
        """Whether the difference is significant; one seed of a trained arm is not enough."""
        found = self.difference.difference
        return (
            (self.seeds > 1 or not self.trained)
            and self.adjusted < LEVEL
            and (found.low > 0 or found.high < 0)
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """All pairs of arms in one measure; Holm's correction covers them."""

    measure: MeasureName
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Exact best scores: without adapting, and of the best learner in every episode."""

    non_adapting: float
    learner: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class WorldResult:
    """The results of one environment, or of one variant of it (1 box, 3 boxes).

    `second` compares the last episode alone, where the table compares Pass@k or Draw@k. `missing`
    names runs that are not finished.
    """

    world: str
    variant: str
    split: Split
    measure: MeasureName
    arms: tuple[ArmResult, ...]
    pairs: tuple[Pair, ...]
    second: Comparison | None
    bounds: Bounds | None
    missing: tuple[str, ...]
    budget_faults: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.world}, {self.variant}" if self.variant else self.world


def read_results(plan: Plan, runs: Path) -> list[WorldResult]:
    """The figures of all finished runs of a plan."""
    there = finished_runs(plan, runs)
    return [
        _read_world(plan, world, variant, split, there)
        for split in (plan.table.split, *plan.table.more_splits)
        for world in plan.worlds
        for variant in _variants(plan, world, split)
    ]


def _variants(plan: Plan, world: str, split: Split) -> tuple[str, ...]:
    job = next(job for job in plan.jobs if job.world == world)
    return job.recipe.environment().for_split(split).variants() or ("",)


def _read_world(
    plan: Plan, world: str, variant: str, split: Split, there: dict[str, RunFolder]
) -> WorldResult:
    jobs = [job for job in plan.jobs if job.world == world]
    _check_split(jobs[0], split)
    held = _held(jobs, there)
    folders = [folder for found in held.values() for _, folder in found]
    bounds = next(filter(None, (_bounds(folder, split) for folder in folders)), None)
    by_episode: MeasureName = "score" if bounds else "success"
    measure = plan.table.measure_of(world, split) or by_episode
    played = _played(held, split, variant)
    arms = tuple(
        _arm(arm, played[arm], found, measure, _paper_rates(plan, found[0][0], variant, split))
        for arm, found in held.items()
    )
    return WorldResult(
        world,
        variant,
        split,
        measure,
        arms,
        _pairs(played, measure),
        _second(played, measure, by_episode),
        bounds,
        tuple(job.name for job in jobs if job.name not in there),
        _budget_faults(arms),
    )


_Held = dict[Arm, list[tuple[Job, RunFolder]]]


def _held(jobs: Sequence[Job], there: dict[str, RunFolder]) -> _Held:
    """The finished runs of every arm that has one."""
    found = {
        arm: [(job, there[job.name]) for job in jobs if job.arm == arm and job.name in there]
        for arm in dict.fromkeys(job.arm for job in jobs)
    }
    return {arm: runs for arm, runs in found.items() if runs}


def _played(held: _Held, split: Split, variant: str) -> "dict[Arm, _Played]":
    return {
        arm: _Played(
            [(job.seed, _rows(job, folder, split, variant)) for job, folder in found],
            found[0][0].trains,
        )
        for arm, found in held.items()
    }


def _second(
    played: "dict[Arm, _Played]", measure: MeasureName, by_episode: MeasureName
) -> Comparison | None:
    if measure not in ("pass_at", "draw_at"):
        return None
    last: MeasureName = "draws" if measure == "draw_at" else by_episode
    return Comparison(last, _pairs(played, last))


# --- Curves over episodes


@dataclass(frozen=True, slots=True)
class ArmCurve:
    """A measure of one arm after 1, 2, ... episodes, and the paper's points where known."""

    label: str
    trains: bool
    values: tuple[Estimate, ...]
    paper: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """Pass@k (or Draw@k) over the episodes of one panel, for all arms."""

    split: Split
    variant: str
    measure: MeasureName
    arms: tuple[ArmCurve, ...]


def read_curves(plan: Plan, world: str, runs: Path) -> list[CurvePanel]:
    """The curves of an environment in and out of domain, of all finished runs."""
    jobs = [job for job in plan.jobs if job.world == world]
    held = _held(jobs, finished_runs(plan, runs))
    return [
        _curve_panel(plan, world, variant, split, held)
        for split in jobs[0].recipe.evaluate.splits
        for variant in _variants(plan, world, split)
        if held
    ]


def _curve_panel(plan: Plan, world: str, variant: str, split: Split, held: _Held) -> CurvePanel:
    # `ood` knows for every table that only draws can be reached against MCTS-1000.
    wanted = TABLES["ood"].measure_of(world, split)
    measure: MeasureName = "draw_at" if wanted == "draw_at" else "pass_at"
    arms = []
    for arm, played in _played(held, split, variant).items():
        values = played.values[measure]
        rates = tuple(crossed_rate(values[:, :, k]) for k in range(values.shape[2]))
        paper = _paper_rates(plan, held[arm][0][0], variant, split)
        arms.append(ArmCurve(arm.label, played.trains, rates, paper))
    return CurvePanel(split, variant, measure, tuple(arms))


def _paper_rates(plan: Plan, job: Job, variant: str, split: Split) -> tuple[tuple[int, float], ...]:
    """The paper's rates for an arm; none if the settings of the run are not the paper's."""
    key = (f"{job.world}, {variant}" if variant else job.world, split)
    # The curves of both tables of methods show both panels.
    tables = [TABLES[name] for name in _METHOD_TABLES] if plan.name in _METHOD_TABLES else []
    rates = next((one for table in [plan.table, *tables] if (one := table.paper.get(key))), {})
    if plan.scale != "paper" or job.arm.label not in rates or find_differences(job):
        return ()
    return tuple(rates[job.arm.label].items())


def _check_split(job: Job, split: Split) -> None:
    if split not in job.recipe.evaluate.splits:
        raise UserError(
            f"{job.world} has no {split} panel: add opponents under opponents.{split} to its recipe"
        )


def _rows(job: Job, folder: RunFolder, split: Split, variant: str) -> tuple[TaskRow, ...]:
    """The rows of a panel; only those of one variant if it is given, by the first episode."""
    rows = read_tasks(folder.path / "evaluations" / f"after_{split}.tasks.jsonl")
    environment = job.recipe.environment().for_split(split)
    firsts = [environment.episode_seed(row.task.seed, 0) for row in rows] if variant else []
    kinds = [environment.task_kind(seed).partition(",")[0] for seed in firsts]
    return tuple(row for row, kind in zip(rows, kinds) if kind == variant) if variant else rows


class _Played:
    """The results of one arm as arrays [seed, task, episode], in the order of the panel.

    Several plays of a task (`evaluate.plays`) are averaged.
    """

    def __init__(self, found: Sequence[tuple[int, Sequence[TaskRow]]], trains: bool) -> None:
        self.trains = trains
        self.seeds = tuple(seed for seed, _ in found)
        self.tasks: list[Task] = list(dict.fromkeys(row.task for row in found[0][1]))
        self.plays = len(found[0][1]) // len(self.tasks)
        if any([row.task for row in rows] != self.tasks * self.plays for _, rows in found):
            raise UserError("runs of one arm were evaluated on different panels")
        self.rows = [rows for _, rows in found]
        outcomes = np.array([[row.outcomes for row in rows] for rows in self.rows])
        won, drawn = outcomes == "won", outcomes == "drawn"
        self.values: dict[MeasureName, np.ndarray] = {
            "score": self._by_task(np.array([[row.scores for row in one] for one in self.rows])),
            "success": self._by_task(won),
            "draws": self._by_task(drawn),
            "pass_at": self._by_task(np.maximum.accumulate(won, axis=2)),
            "draw_at": self._by_task(np.maximum.accumulate(drawn, axis=2)),
        }

    def _by_task(self, values: np.ndarray) -> np.ndarray:
        """The mean over the plays of each task, from [seed, row, episode]."""
        seeds, _, episodes = values.shape
        split = values.astype(float).reshape(seeds, self.plays, len(self.tasks), episodes)
        return split.mean(axis=1)


def _arm(
    arm: Arm,
    played: _Played,
    runs: Sequence[tuple[Job, RunFolder]],
    measure: MeasureName,
    paper: tuple[tuple[int, float], ...],
) -> ArmResult:
    values = played.values[measure]
    gain = crossed_mean(values[:, :, -1] - values[:, :, 0]).difference
    return ArmResult(
        label=arm.label,
        trains=runs[0][0].trains,
        seeds=played.seeds,
        tasks=len(played.tasks),
        episodes=tuple(_episode(played, k) for k in range(values.shape[2])),
        gain=gain,
        by_seed=tuple(values[:, :, -1].mean(axis=1).tolist()),
        budget=_budget(played, [folder for _, folder in runs]),
        curve=_curve([folder for _, folder in runs], measure),
        paper=paper,
    )


def _episode(played: _Played, k: int) -> EpisodeResult:
    now = {name: values[:, :, k] for name, values in played.values.items()}
    score = crossed_mean(now.pop("score")).difference
    rates = {str(name): crossed_rate(values) for name, values in now.items()}
    return EpisodeResult(episode=k + 1, score=score, **rates)


def _budget(played: _Played, folders: Sequence[RunFolder]) -> Budget:
    records = [record for folder in folders for record in folder.metrics()]
    runs = len(folders)
    rows = [row for one in played.rows for row in one]
    return Budget(
        training_episodes=sum(record["episodes"] for record in records) / runs,
        training_tokens=sum(record.get("generated_tokens", 0.0) for record in records) / runs,
        evaluation_episodes=sum(len(row.scores) for row in rows) / runs,
        evaluation_tokens=sum(row.generated for row in rows) / runs,
    )


def _curve(
    folders: Sequence[RunFolder], measure: MeasureName
) -> tuple[tuple[int, tuple[float, ...]], ...]:
    found: dict[int, list[float]] = {}
    for folder in folders:
        for name in folder.evaluation_names():
            if name.startswith("select_"):
                figures = read_evaluation(folder, name).overall.episodes[-1]
                # Select panels store no Draw@k; the draws of the last episode are the nearest.
                estimate = getattr(figures, "draws" if measure == "draw_at" else measure)
                assert estimate is not None, "the select panel plays every episode"
                found.setdefault(int(name.removeprefix("select_")), []).append(estimate.value)
    return tuple((update, tuple(values)) for update, values in sorted(found.items()))


def _bounds(folder: RunFolder, split: Split) -> Bounds | None:
    cell = read_evaluation(folder, f"after_{split}").overall
    if cell.non_adapting is None:
        return None
    return Bounds(cell.non_adapting, tuple(figures.ceiling for figures in cell.episodes))


# --- Pairs and budgets


def _pairs(played: dict[Arm, _Played], measure: MeasureName) -> tuple[Pair, ...]:
    found = [
        (a, b, one)
        for a, b in combinations(played, 2)
        if (one := _compare(played[a], played[b], measure)) is not None
    ]
    adjusted = holm([difference.p_value for _, _, (_, difference) in found])
    trained = {arm: one.trains for arm, one in played.items()}
    return tuple(
        Pair(a.label, b.label, seeds, difference, p, trained[a] or trained[b])
        for (a, b, (seeds, difference)), p in zip(found, adjusted, strict=True)
    )


def _compare(
    first: _Played, second: _Played, measure: MeasureName
) -> tuple[int, Difference] | None:
    """Paired by task, and by seed if both arms train; None if there is no common seed."""
    if first.tasks != second.tasks:
        raise UserError("two arms of one world were evaluated on different panels")
    a, b = (one.values[measure][:, :, -1] for one in (first, second))
    if first.trains and second.trains:
        shared = [seed for seed in first.seeds if seed in second.seeds]
        a, b = (
            values[[one.seeds.index(seed) for seed in shared]]
            for one, values in ((first, a), (second, b))
        )
    gaps = b - a
    return None if not len(gaps) else (len(gaps), crossed_mean(gaps))


def _budget_faults(arms: Sequence[ArmResult]) -> tuple[str, ...]:
    """Differences in budget: episodes must be equal, generated tokens within the tolerance."""
    trained = [arm for arm in arms if arm.trains]
    episodes = {arm.label: arm.budget.training_episodes for arm in trained}
    tokens = {arm.label: arm.budget.training_tokens for arm in trained}
    faults = []
    if len(set(episodes.values())) > 1:
        faults.append(
            "training episodes differ: "
            + ", ".join(f"{label} {count:,.0f}" for label, count in episodes.items())
        )
    if tokens and max(tokens.values()) > (1 + TOLERANCE) * min(tokens.values()):
        faults.append(
            f"generated tokens differ by more than {TOLERANCE:.0%}: "
            + ", ".join(f"{label} {count:,.0f}" for label, count in tokens.items())
        )
    return tuple(faults)
