"""The plan: arm x environment x seed, each an ordinary run folder with its own recipe.

All arms of an environment share its panels: the opponents and episodes of evaluation are fixed to
those of the base recipe before an arm changes training. An arm without training does not depend on
the seed (panels have seeds of their own), so it runs once. The name of a run folder contains only
arm, environment and seed, so runs from another machine can be copied in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mage.config.errors import UserError, did_you_mean
from mage.config.loading import change_recipe, load_recipe
from mage.config.recipe import Recipe
from mage.config.toml import Tables, show_value
from mage.models.base import pin_model
from mage.opponents.base import population_of
from mage.reproduce import scales, tables
from mage.reproduce.scales import SCALES, Scale
from mage.reproduce.tables import TABLES, Arm, Table
from mage.run_folder import RunError, RunFolder

_MODEL = "model.path"
FIRST = 0  # the seed of arms without training
_STAGES = 2  # final panels of a training besides that before it: after, without memory
_IDLE = {  # options that do not change results
    *("run.name", "run.device", "run.threads", "run.loggers"),
    *("run.save_every", "run.keep", "run.episodes_every", "run.keep_transcripts"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One run. `core_seconds` is an estimate for one core; None if unknown for this model."""

    world: str
    arm: Arm
    seed: int
    recipe: Recipe
    core_seconds: float | None

    @property
    def trains(self) -> bool:
        return self.recipe.run.updates > 0

    @property
    def name(self) -> str:
        return f"{self.world}-{'+'.join(self.arm.parts)}" + (
            f"-seed{self.seed}" if self.trains else ""
        )

    @property
    def training_episodes(self) -> int:
        return self.recipe.run.updates * episodes_of_update(self.recipe)

    @property
    def evaluation_episodes(self) -> int:
        sizes, updates = self.recipe.evaluate, self.recipe.run.updates
        every = self.recipe.run.evaluate_every
        selects = 1 + (-(-updates // every) if every else 1) if updates else 0
        panels = selects * sizes.size + len(sizes.splits) * sizes.final_size * sizes.plays * (
            _STAGES + sizes.before if updates else 1
        )
        return panels * self.recipe.evaluation_episodes()


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs of a table. `seeds` are the seeds of the trained arms."""

    name: tables.Name
    table: Table
    scale: scales.Name
    worlds: tuple[str, ...]
    seeds: tuple[int, ...]
    jobs: tuple[Job, ...]


def make_plan(
    name: tables.Name,
    *,
    scale: scales.Name = "small",
    worlds: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    model: str | None = None,
    budget: int | None = None,
    overrides: Sequence[str] = (),
) -> Plan:
    """All runs of a table. `budget`: training episodes per run. `overrides` change every recipe."""
    table, size = TABLES[name], SCALES[scale]
    if name in size.without:
        raise UserError(f"table {name} is not for scale {scale}: use --scale small or paper")
    chosen = tuple(worlds) or tuple(world for world in size.worlds if world in table.worlds)
    if not chosen:
        raise UserError(
            f"table {name} has no environment of scale {scale}: use --scale small, or name "
            f"environments with --environment ({', '.join(table.worlds)})"
        )
    _check_names("world", chosen, table.worlds, f"table {name}")
    _check_names("arm", only, [arm.label for arm in table.arms], f"table {name}")
    arms = [arm for arm in table.arms if not only or arm.label in only]
    recipes = [
        (world, arm, _make_recipe(size, world, arm, budget, overrides, model))
        for world in chosen
        for arm in arms
    ]
    found = [
        _make_job(size, world, arm, seed, recipe)
        for world, arm, recipe in recipes
        for seed in seeds
    ]
    jobs = [job for job in found if job.trains or job.seed == FIRST]
    return Plan(name, table, scale, chosen, tuple(seeds), tuple(jobs))


def _check_names(kind: str, given: Iterable[str], known: Sequence[str], where: str) -> None:
    for one in given:
        if one not in known:
            raise UserError(
                f"{where} has no {kind} {one!r}{did_you_mean(one, known)}: "
                f"choose from {', '.join(known)}"
            )


def _make_recipe(
    scale: Scale, world: str, arm: Arm, budget: int | None, extra: Sequence[str], model: str | None
) -> Recipe:
    """The recipe of an arm, for any seed."""
    base = scale.base_of(world)
    plain = load_recipe("+".join((base, *arm.parts)))
    pinned = plain.changed(**_pinned(base))
    recipe = change_recipe(pinned, [*scale.overrides(world, arm.parts, plain), *extra])
    if model is not None:
        recipe = recipe.changed(model={"path": model})
    if not plain.run.updates:
        return recipe.changed(run={"updates": 0})
    if budget is None:
        return recipe
    return recipe.changed(run={"updates": _updates_for(budget, recipe)})


@cache
def paper_recipe(world: str, arm: Arm) -> Recipe:
    """The recipe of an arm at scale `paper` without changes."""
    return _make_recipe(SCALES["paper"], world, arm, None, (), None)


def _make_job(scale: Scale, world: str, arm: Arm, seed: int, recipe: Recipe) -> Job:
    seeded = recipe.model_copy(update={"run": recipe.run.model_copy(update={"seed": seed})})
    return Job(world, arm, seed, seeded, _cost(scale, Job(world, arm, seed, seeded, None)))


@cache
def _pinned(name: str) -> dict[str, Tables]:
    """Options that give every arm of an environment the same panels."""
    base = load_recipe(name)
    population, many = population_of(base), base.environment().multi_agent
    splits = ["test", *(["ood"] if population.pool("ood") or not many else [])]
    pool = {"opponents": {"test": population.pool("test")}} if many else {}
    return {"evaluate": {"episodes": base.evaluation_episodes(), "splits": splits}, **pool}


def episodes_of_update(recipe: Recipe) -> int:
    """Episodes of one update if no meta-episode stops early."""
    return recipe.play.groups * recipe.play.members * recipe.play.episodes


def _updates_for(budget: int, recipe: Recipe) -> int:
    if budget < episodes_of_update(recipe):
        raise UserError(
            f"a budget of {budget:,} episodes is less than one update of "
            f"{episodes_of_update(recipe):,} episodes. Increase --budget or lower play.groups"
        )
    return budget // episodes_of_update(recipe)


def _cost(scale: Scale, job: Job) -> float | None:
    pace = scale.pace.get(job.world) if job.recipe.model.path == "embedded" else None
    if pace is None:
        return None
    return (
        job.training_episodes * pace.training + job.evaluation_episodes * pace.evaluation
    ) / 1000


# --- Folders


def open_runs(plan: Plan, runs: Path) -> dict[str, RunFolder]:
    """The existing run folders of a plan, by name; raises if one was made with other options."""
    found = {
        job.name: RunFolder.open(runs / job.name)
        for job in plan.jobs
        if (runs / job.name / "recipe.toml").is_file()
    }
    for job in plan.jobs:
        if job.name in found:
            _check_same(found[job.name], job.recipe)
    return found


def finished_runs(plan: Plan, runs: Path) -> dict[str, RunFolder]:
    """As `open_runs`, without the runs that are not finished."""
    there = open_runs(plan, runs).items()
    return {name: one for name, one in there if (one.path / "summary.json").is_file()}


def pin_models(plan: Plan, runs: Path) -> Plan:
    """The plan with the commit of its model on the hub, which is that of its runs if there are any.

    So all runs of a table have the same weights. The model is downloaded if it is not here.
    """
    stored = [folder.recipe.model.path for folder in open_runs(plan, runs).values()]
    known = {path.partition("@")[0]: path for path in stored if "@" in path}
    jobs = tuple(replace(job, recipe=_pinned_recipe(job.recipe, known)) for job in plan.jobs)
    return replace(plan, jobs=jobs)


def _pinned_recipe(recipe: Recipe, known: dict[str, str]) -> Recipe:
    """The recipe with a commit in model.path; `known` collects them by name."""
    path = recipe.model.path
    if path not in known:
        known[path] = pin_model(recipe).model.path
    return recipe if known[path] == path else recipe.changed(model={"path": known[path]})


def _check_same(folder: RunFolder, planned: Recipe) -> None:
    """Raise if the options of a run differ from the plan: one table holds equal options only."""
    there, wanted = figures_of(folder.recipe), figures_of(planned)
    if there.get(_MODEL, "").partition("@")[0] == wanted.get(_MODEL):
        there[_MODEL] = wanted[_MODEL]  # the run has the commit of the model, the plan does not
    differing = [key for key in sorted({*there, *wanted}) if there.get(key) != wanted.get(key)]
    if differing:
        details = "; ".join(
            f"{key} is {show_value(there.get(key, 'not given'))}, "
            f"planned {show_value(wanted.get(key, 'not given'))}"
            for key in differing[:4]
        )
        raise RunError(
            f"{folder.path} was made with other options: {details}. "
            "Move the folder away, or choose another folder with --out"
        )


def figures_of(recipe: Recipe) -> Tables:
    """The options that change results: `section.option` -> value.

    How meta-episodes are dealt to ranks counts only if the recipe itself starts several.
    """
    idle = _IDLE if recipe.run.workers > 1 else _IDLE | {"run.deal"}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in recipe.flat().items()
        if key not in idle
    }
