"""`mage reproduce`: run one of the paper's tables and write its page."""

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from mage.cli.arguments import OVERRIDES, split_words
from mage.cli.terminal import UsageError, console
from mage.cli.terminal.markdown import show_markdown
from mage.cli.terminal.tables import plain_table
from mage.config.errors import EXIT_STOPPED
from mage.reproduce import scales, tables

if TYPE_CHECKING:
    from mage.ranks.stop import StopSignals
    from mage.reproduce.executors import Executor
    from mage.reproduce.plan import Job, Plan
    from mage.reproduce.runner import Runner, RunnerProgress

verbs = typer.Typer()
_SAME_FIGURES = ("--run.deal=members",)  # so that results do not depend on the number of ranks
_NEEDS_MORE = "--scale paper needs more than this machine has:"
_EVERY = 30.0  # seconds between lines without a terminal
_PLAN_COLUMNS = (
    "world",
    "arm",
    "runs",
    "updates",
    "training episodes per run",
    "evaluation episodes per run",
)


@verbs.command(
    context_settings=OVERRIDES,
    epilog="Example: mage reproduce table1 --scale small --seeds 5 --out reproduction",
)
def reproduce(
    ctx: typer.Context,
    table: Annotated[
        tables.Name, typer.Argument(metavar="TABLE", help=f"One of {', '.join(tables.TABLES)}.")
    ],
    scale: Annotated[
        scales.Name,
        typer.Option(
            help="small: the embedded model on a CPU. qwen: Qwen2.5-1.5B on one GPU. paper: the "
            "sizes of the paper with Qwen3-4B. qwen and paper need the official data."
        ),
    ] = "small",
    environment: Annotated[
        str, typer.Option(metavar="NAME,...", help="Environments. Default: all of the scale.")
    ] = "",
    seeds: Annotated[
        str, typer.Option(metavar="K|A-B", help="K seeds from 0 on, or the seeds A to B.")
    ] = "5",
    only: Annotated[
        str, typer.Option(metavar="ARM,...", help="Only these rows of the table.")
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="M", help="Model instead of the recipes' own one; see `mage model list`."
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="EPISODES", help="Training episodes of a run. Default: as in the scale."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, help="Runs in parallel. 0: one per GPU, or one per core.")
    ] = 0,
    executor: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Where runs work: on this machine, or on a Ray cluster."),
    ] = "local",
    per_gpu: Annotated[int, typer.Option(min=1, help="Runs that share one GPU.")] = 1,
    ranks: Annotated[
        int,
        typer.Option(
            metavar="N", help="Ranks of each run, one GPU (or core) each, started by torchrun."
        ),
    ] = 1,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder of runs and pages. Runs copied into its runs/ are used."
        ),
    ] = Path("reproduction"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and its cost, and exit.")
    ] = False,
) -> None:
    """Run the missing parts of one of the paper's tables and write its page.

    Options of all recipes can be changed with --section.option=value.
    """
    from mage.reproduce.paper import find_missing
    from mage.reproduce.plan import make_plan, pin_models

    _, overrides = split_words(None, ctx.args, ctx.command)
    plan = make_plan(
        table,
        scale=scale,
        worlds=_words(environment),
        seeds=read_seeds(seeds),
        only=_words(only),
        model=model,
        budget=budget,
        overrides=[*(_SAME_FIGURES if ranks > 1 else ()), *overrides],
    )
    _check_ranks(plan, ranks, executor, per_gpu)
    if dry_run:
        _show_missing(plan)
        _show_plan(plan, out, jobs or os.cpu_count() or 1, ranks)
        return
    place = _make_executor(plan, executor, jobs, per_gpu, ranks)
    if missing := find_missing(plan):
        raise UsageError("\n- ".join([_NEEDS_MORE, *missing]))
    plan = pin_models(plan, out / "runs")
    _show_plan(plan, out, jobs or os.cpu_count() or 1, ranks)
    _run(plan, out, place)


def _check_ranks(plan: "Plan", ranks: int, executor: str, per_gpu: int) -> None:
    """Refuse --ranks that cannot work, before anything is loaded."""
    if ranks < 1:
        raise UsageError(f"--ranks {ranks} is not valid. Give the ranks of one run: 1 or more.")
    if ranks == 1:
        return
    if executor == "ray":
        raise UsageError(
            "--ranks needs --executor local. `mage cluster` starts the ranks of one run on a Ray "
            "cluster."
        )
    if per_gpu > 1:
        raise UsageError("--ranks gives every rank a GPU of its own. Leave out --per-gpu.")
    for job in plan.jobs:
        play, workers = job.recipe.play, job.recipe.run.workers
        if workers > 1:
            raise UsageError(
                f"--ranks {ranks} and run.workers = {workers} both start the ranks of a run. Leave "
                "out --run.workers, or set it to 1."
            )
        if job.recipe.run.deal != "members":
            raise UsageError(
                f'--ranks {ranks} needs run.deal = "members". With "{job.recipe.run.deal}" the '
                "results depend on the number of ranks."
            )
        if ranks > play.groups * play.members:
            raise UsageError(
                f"--ranks {ranks} is more than the {play.groups * play.members} meta-episodes of "
                f"an update of {job.name} (play.groups x play.members)."
            )


def _make_executor(plan: "Plan", name: str, jobs: int, per_gpu: int, ranks: int) -> "Executor":
    from mage.reproduce.executors import LocalExecutor, RayExecutor, visible_gpus

    if name == "ray":
        return RayExecutor(jobs, per_gpu)
    on_gpu = any(job.recipe.run.device in ("auto", "cuda") for job in plan.jobs)
    gpus = visible_gpus() if on_gpu else ()
    devices = len(gpus) or os.cpu_count() or 1
    if ranks > devices:
        kind = "GPUs" if gpus else "cores"
        raise UsageError(f"--ranks {ranks} is more than the {devices} {kind} of this machine.")
    chosen = LocalExecutor(jobs, gpus, per_gpu, ranks)
    if chosen.size < jobs:
        console(stderr=True).print(
            f"--jobs {jobs} is more than {len(gpus)} GPUs can hold: {chosen.size} runs at a time. "
            "--per-gpu N puts N runs on each GPU."
        )
    return chosen


def read_seeds(text: str) -> list[int]:
    """`5` means the seeds 0 to 4, `3-4` the seeds 3 and 4."""
    first, dash, last = text.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise UsageError(
            f"--seeds {text} is not valid. Write a number, as in 5, or a range, as in 3-4."
        )
    found = list(range(int(first), int(last) + 1) if dash else range(int(first)))
    if not found:
        raise UsageError(f"--seeds {text} contains no seed")
    return found


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _show_missing(plan: "Plan") -> None:
    """What a plan that is only shown still needs; a model that does not exist is an error."""
    from mage.reproduce.paper import missing_data, missing_model

    if plan.scale != "paper":
        return
    if missing := missing_model(plan, download=False):
        raise UsageError("\n- ".join([_NEEDS_MORE, *missing]))
    for line in missing_data(plan):
        console(stderr=True).print(f"still missing: {line}", markup=False, soft_wrap=True)


def _show_plan(plan: "Plan", out: Path, size: int, ranks: int) -> None:
    from mage.reproduce.plan import finished_runs

    done = set(finished_runs(plan, out / "runs"))
    left = [job for job in plan.jobs if job.name not in done]
    of_arms = [
        [job for job in plan.jobs if (job.world, job.arm.label) == key]
        for key in dict.fromkeys((job.world, job.arm.label) for job in plan.jobs)
    ]
    columns, cells, notes = (
        _in_gpu_hours(of_arms, left, ranks)
        if plan.scale == "paper"
        else _in_core_minutes(of_arms, left, size)
    )
    rows = [(*_plan_row(jobs, done), *more) for jobs, more in zip(of_arms, cells, strict=True)]
    err = console(stderr=True)
    title = f"{plan.name}: {plan.table.title}"
    err.print(plain_table((*_PLAN_COLUMNS, *columns), rows, title, group=1, head=2))
    first = f"{len(plan.jobs)} runs in {out / 'runs'}, {len(left)} to do; {notes[0]}"
    for line in (first, *notes[1:]):
        err.print(line, markup=False, soft_wrap=True)


# Titles and cells of the columns of a cost, and the lines below the table.
_Columns = tuple[Sequence[str], Sequence[Sequence[str]], Sequence[str]]


def _in_core_minutes(of_arms: "list[list[Job]]", left: "Sequence[Job]", size: int) -> _Columns:
    """The cost with the embedded model on a CPU."""
    costs = [jobs[0].core_seconds for jobs in of_arms]
    cells = [("?" if cost is None else f"{cost / 60:.1f}",) for cost in costs]
    seconds = [job.core_seconds for job in left]
    known = [cost for cost in seconds if cost is not None]
    note = "the time is known after the first updates"
    if len(known) == len(seconds):
        note = f"about {timedelta(seconds=round(sum(known) / size))} on {size} free cores"
    return ("core-minutes per run",), cells, [note]


def _in_gpu_hours(of_arms: "list[list[Job]]", left: "Sequence[Job]", ranks: int) -> _Columns:
    """The estimated cost on an H200: from replies of 256 tokens to replies at their limits."""
    from mage.reproduce.cost import SHORT_REPLY, SOURCES, estimate_cost, sum_costs

    of_arm = {(jobs[0].world, jobs[0].arm.label): estimate_cost(jobs[0], ranks) for jobs in of_arms}
    titles = ("million tokens per run", "estimated H200 hours per run")
    cells = [
        (
            f"{one.short.tokens / 1e6:,.0f} to {one.long.tokens / 1e6:,.0f}",
            f"{one.short.hours:,.0f} to {one.long.hours:,.0f}"
            + ("" if one.long.fits else " (does not fit: see mage plan)"),
        )
        for one in of_arm.values()
    ]
    total = sum_costs(of_arm[job.world, job.arm.label] for job in left)
    note = (
        f"an estimate, not measured: {total.short.tokens / 1e6:,.0f} to "
        f"{total.long.tokens / 1e6:,.0f} million generated tokens and {total.short.hours:,.0f} to "
        f"{total.long.hours:,.0f} GPU-hours on H200 cards with {ranks} "
        f"{'rank' if ranks == 1 else 'ranks'} per run (replies of {SHORT_REPLY} tokens to replies "
        "at their limits)"
    )
    return titles, cells, [note, *(f"  {line}" for line in SOURCES)]


def _plan_row(jobs: "Sequence[Job]", done: set[str]) -> tuple[str, ...]:
    """The row of an arm in a world. Its jobs differ in their seeds only."""
    first, finished = jobs[0], sum(job.name in done for job in jobs)
    return (
        first.world,
        first.arm.label,
        f"{len(jobs)}" + (f" ({finished} done)" if finished else ""),
        f"{first.recipe.run.updates}",
        f"{first.training_episodes:,}",
        f"{first.evaluation_episodes:,}",
    )


def _run(plan: "Plan", out: Path, executor: "Executor") -> None:
    from mage.ranks.stop import StopSignals
    from mage.reproduce.runner import Runner

    err = console(stderr=True)
    (out / "runs").mkdir(parents=True, exist_ok=True)
    runner = Runner(plan, out / "runs", executor)
    with StopSignals(lambda _: err.print("Stopping. Active runs are saved first.")) as interrupt:
        finished = _follow(runner, err, interrupt)
    for failure in runner.failures:
        err.print(
            f"{failure.name} failed. Its whole output is in {out / 'runs' / failure.name}:"
            f"\n{failure.text}",
            markup=False,
            soft_wrap=True,
        )
    if not finished:
        err.print("Stopped. Run the same command to continue.")
        raise typer.Exit(EXIT_STOPPED)
    _write(plan, out)
    if runner.failures:
        raise typer.Exit(1)


def _write(plan: "Plan", out: Path) -> None:
    from mage.reproduce.exploration import write_exploration
    from mage.reproduce.page import write_page

    page, table, figures = write_page(plan, out)
    more = write_exploration(plan, out) if plan.name == "exploration" else []
    shown = console()
    for text in (table, *more[:1]):
        for part in show_markdown(text.read_text("utf-8")):
            shown.print(part, soft_wrap=isinstance(part, Text) and not shown.is_terminal)
    titles = {"page": page, "table": table, "figures": figures}
    titles |= dict(zip(("search", "values", "picture"), more, strict=False))
    for title, path in titles.items():
        console().print(f"{title:<8} {path}", markup=False, soft_wrap=True)


def _follow(runner: "Runner", err: Console, interrupt: "StopSignals") -> bool:
    """Run with a status line, or with a line from time to time if there is no terminal."""
    if err.is_terminal:
        with err.status("starting") as status:
            return runner.run(lambda standing: status.update(_line(standing)), interrupt)
    told = time.monotonic() - _EVERY

    def tell(standing: "RunnerProgress") -> None:
        nonlocal told
        if time.monotonic() - told >= _EVERY:
            told = time.monotonic()
            err.print(_line(standing), soft_wrap=True)

    return runner.run(tell, interrupt)


def _line(standing: "RunnerProgress") -> str:
    left = ""
    if standing.seconds_left is not None:
        left = f", {timedelta(seconds=round(standing.seconds_left))} left"
    done = f"{standing.done} of {standing.total} runs, {100 * standing.fraction:.1f} %{left}"
    return f"{done}; now {', '.join(standing.running) or 'none'}"
