"""`mage reproduce`: run one of the paper's tables and write its page."""

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from mage.cli.arguments import OVERRIDES, split_words
from mage.cli.terminal import UsageError, console
from mage.cli.terminal.tables import plain_table
from mage.config.errors import EXIT_STOPPED
from mage.reproduce import scales, tables

if TYPE_CHECKING:
    from mage.ranks.stop import StopSignals
    from mage.reproduce.executors import Executor
    from mage.reproduce.plan import Job, Plan
    from mage.reproduce.runner import Runner, RunnerProgress

verbs = typer.Typer()
_EVERY = 30.0  # seconds between lines without a terminal
_PLAN_COLUMNS = (
    "world",
    "arm",
    "runs",
    "updates",
    "training episodes per run",
    "evaluation episodes per run",
    "core-minutes per run",
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
            help="small: the embedded model on a CPU. paper: the sizes of the paper; needs --model "
            "and the official data."
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
    from mage.reproduce.plan import make_plan

    _, overrides = split_words(None, ctx.args)
    plan = make_plan(
        table,
        scale=scale,
        worlds=_words(environment),
        seeds=read_seeds(seeds),
        only=_words(only),
        model=model,
        budget=budget,
        overrides=overrides,
    )
    if missing := find_missing(plan):
        raise UsageError("\n- ".join(["--scale paper needs more than this machine has:", *missing]))
    _show_plan(plan, out, jobs or os.cpu_count() or 1)
    if not dry_run:
        _run(plan, out, _make_executor(plan, executor, jobs, per_gpu))


def _make_executor(plan: "Plan", name: str, jobs: int, per_gpu: int) -> "Executor":
    from mage.reproduce.executors import LocalExecutor, RayExecutor, visible_gpus

    if name == "ray":
        return RayExecutor(jobs, per_gpu)
    on_gpu = any(job.recipe.run.device in ("auto", "cuda") for job in plan.jobs)
    gpus = visible_gpus() if on_gpu else ()
    chosen = LocalExecutor(jobs, gpus, per_gpu)
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


def _show_plan(plan: "Plan", out: Path, size: int) -> None:
    from mage.reproduce.plan import is_done, open_runs

    there = open_runs(plan, out / "runs")
    done = {name for name, folder in there.items() if is_done(folder)}
    rows = [
        _plan_row([job for job in plan.jobs if (job.world, job.arm.label) == key], done)
        for key in dict.fromkeys((job.world, job.arm.label) for job in plan.jobs)
    ]
    err = console(stderr=True)
    err.print(plain_table(_PLAN_COLUMNS, rows, f"{plan.name}: {plan.table.title}", group=1))
    left = [job.core_seconds for job in plan.jobs if job.name not in done]
    known = [cost for cost in left if cost is not None]
    cost = (
        f"about {timedelta(seconds=round(sum(known) / size))} on {size} free cores"
        if len(known) == len(left)
        else "the time is known after the first updates"
    )
    err.print(f"{len(plan.jobs)} runs in {out / 'runs'}, {len(left)} to do; {cost}", soft_wrap=True)


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
        "?" if first.core_seconds is None else f"{first.core_seconds / 60:.1f}",
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
    from mage.reproduce.page import write_page

    page, table, figures = write_page(plan, out)
    console().print(table.read_text("utf-8"), markup=False, soft_wrap=True)
    for title, path in {"page": page, "table": table, "figures": figures}.items():
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
    left = (
        ""
        if standing.seconds_left is None
        else f", {timedelta(seconds=round(standing.seconds_left))} left"
    )
    done = f"{standing.done} of {standing.total} runs, {100 * standing.fraction:.1f} %{left}"
    return f"{done}; now {', '.join(standing.running) or 'none'}"
