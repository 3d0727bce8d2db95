"""`mage train` and `mage report`: a recipe becomes a run folder, and a run folder tables, curves and pages."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from mage.cli.terminal import UsageError, console
from mage.cli.terminal.menus import names
from mage.cli.verbs.arguments import OVERRIDES, AsJson, print_json, split_words
from mage.config.errors import EXIT_STOPPED
from mage.config.loading import load_recipe
from mage.config.recipe import Recipe
from mage.run_folder import RunFolder, choose_path, lock_run

verbs = typer.Typer()
Overridden = Annotated[
    str | None,
    typer.Argument(metavar="RECIPE", help="A name of `mage list recipes` or a .toml file."),
]


@verbs.command(
    context_settings=OVERRIDES, epilog="Example: mage train demo --run.seed=1 --play.groups=32"
)
def train(
    ctx: typer.Context,
    recipe: Overridden = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with this run folder instead.")
    ] = None,
    runs: Annotated[Path, typer.Option(metavar="FOLDER", help="Where new run folders go.")] = Path(
        "runs"
    ),
    as_json: AsJson = False,
) -> None:
    """Train a recipe and measure it before and after. Any option of the recipe may be changed by --section.option=value."""
    name, overrides = split_words(recipe, ctx.args)
    if resume is not None:
        if name or overrides:
            raise UsageError(
                f"--resume goes on with the run's own recipe: leave out {' '.join(filter(None, (name, *overrides)))}"
            )
        folder = _open_to_resume(resume)
    elif name is None:
        raise UsageError(
            f"which recipe? There are {names('recipes')}, or a .toml file of your own; or go on with a run: --resume RUN"
        )
    else:
        folder = _new_run(name, overrides, runs)
    if not (folder.path / "summary.json").is_file():
        _train(folder, is_new=resume is None)
    _report(folder, as_json)


def _new_run(name: str, overrides: Sequence[str], runs: Path) -> RunFolder:
    from mage.agent.chat import Chat
    from mage.training.context import check_context  # loads torch

    recipe = load_recipe(name, overrides)
    recipe.environment().check_data()  # all checks come before the run folder is created
    _check_panels(recipe)
    check_context(recipe, Chat.load(recipe.base_folder(), recipe.agent.thinking))
    return RunFolder.create(choose_path(runs, recipe, Path(name).stem), recipe)


def _check_panels(recipe: Recipe) -> None:
    """A run that trains needs instances for both panels."""
    from mage.evaluation.panels import check_panel_sizes

    if recipe.run.updates and (taken := recipe.final_tasks(recipe.evaluate.select_split)):
        options = recipe.evaluate
        check_panel_sizes(recipe.environment(), options.select_split, options.size, taken)


def _open_to_resume(path: Path) -> RunFolder:
    """The run, unless one of its newest checkpoints is broken: what to do about it is the user's to say."""
    from mage.learn import checkpoint

    folder = RunFolder.open(path)
    found = checkpoint.latest(folder.checkpoints)
    if found.broken:
        rest = (
            f"the run goes on from {found.path.name}"
            if found.path
            else "the run starts again from its first update"
        )
        raise UsageError(
            "\n".join(
                [
                    *found.broken,
                    f"Nothing was changed. Move the broken ones out of {folder.checkpoints}, and {rest}.",
                ]
            )
        )
    return folder


def _train(folder: RunFolder, is_new: bool) -> None:
    err = console(stderr=True)
    err.print(f"run folder {folder.path}; loading the model", markup=False, soft_wrap=True)
    from mage.cli.terminal.progress import Interrupt, TerminalCallback
    from mage.report.run_results import read_run_results
    from mage.report.tensorboard import TensorBoardCallback
    from mage.training.callbacks import CallbackList, Stopped
    from mage.training.trainer import train as train_run

    go_on = f"go on with mage train --resume {folder.path}"
    with (
        TerminalCallback(folder.recipe, err, read_run_results(folder).bounds) as display,
        Interrupt(display.say) as interrupt,
    ):
        try:
            train_run(folder.path, CallbackList([display, TensorBoardCallback()]), interrupt)
        except (Stopped, KeyboardInterrupt) as stop:
            saved = (
                "saved"
                if isinstance(stop, Stopped)
                else "at once; all up to the last checkpoint is kept"
            )
            display.say(f"Stopped, {saved}. To finish, {go_on}")
            raise typer.Exit(EXIT_STOPPED) from None
        except (ValueError, OSError, RuntimeError) as error:
            if is_new and not _has_begun(folder):
                shutil.rmtree(folder.path, ignore_errors=True)
            else:
                error.add_note(f"Once that is mended: {go_on}")
            raise


def _has_begun(folder: RunFolder) -> bool:
    """Whether there is anything in the folder that a run has worked for."""
    return any(
        any((folder.path / name).iterdir()) for name in ("checkpoints", "evaluations", "episodes")
    )


@verbs.command(epilog="Example: mage report runs/demo-1")
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: AsJson = False,
) -> None:
    """Write a run's curves, transcripts and page anew and show its table; also of a run that is still going."""
    _report(RunFolder.open(run), as_json)


def _report(folder: RunFolder, as_json: bool) -> None:
    from mage.cli.terminal.results import result_table
    from mage.report.run_results import read_run_results
    from mage.report.verdict import tell_verdict
    from mage.viewer.report import write_report

    with lock_run(folder.path):
        files = write_report(folder)
    results = read_run_results(folder)
    if as_json:
        summary = folder.read_summary() if results.finished else {"run": str(folder.path)}
        print_json(
            {**summary, "finished": results.finished, "files": [str(path) for path in files]}
        )
        return
    out = console()
    for split in results.splits:
        out.print(
            Group(
                result_table(results, split),
                *tell_verdict(results.overall(split), results.measure_of(split)),
            )
        )
    if not results.finished:
        out.print(
            f"not finished: update {results.updates} of {folder.recipe.run.updates}; go on with mage train --resume {folder.path}"
        )
    paths = {
        "plot": files[0],
        "page": next((path for path in files if path.suffix == ".html"), None),
    }
    paths |= {
        "summary": folder.path / "summary.json" if results.finished else None,
        "run folder": folder.path,
    }
    for title, path in paths.items():
        if path is not None:
            out.print(f"{title:<10} {path}", soft_wrap=True)
