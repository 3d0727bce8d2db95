"""`mage train` and `mage report`: train a recipe, and write the report of a run folder."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group

from mage.cli.arguments import OVERRIDES, AsJson, RecipeName, need_recipe, print_json, split_words
from mage.cli.terminal import UsageError, console, say
from mage.config.errors import EXIT_STOPPED
from mage.config.loading import load_recipe, title_of
from mage.config.menus import without_foreign_code
from mage.ranks.processes import stop_with_launcher
from mage.run_folder import RunError, RunFolder, list_stages, lock_run, run_of

if TYPE_CHECKING:  # slow to load
    from mage.ranks.ranks import Ranks
    from mage.ranks.stop import StopSignals

verbs = typer.Typer()


@verbs.command(
    context_settings=OVERRIDES, epilog="Example: mage train demo --run.seed=1 --play.groups=32"
)
def train(
    ctx: typer.Context,
    recipe: RecipeName = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue this run folder.")
    ] = None,
    runs: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of new run folders.")] = Path(
        "runs"
    ),
    as_json: AsJson = False,
) -> None:
    """Train a recipe and evaluate the agent before and after training.

    Any option of the recipe can be changed with --section.option=value.
    """
    name, overrides = split_words(recipe, ctx.args, ctx.command)
    if resume is not None and (name or overrides):
        given = " ".join(filter(None, (name, *overrides)))
        raise UsageError(f"--resume uses the run's own recipe: leave out {given}")
    title = "" if resume else need_recipe(name, "To continue a run, use --resume RUN.")

    def open_folder(job: str = "") -> RunFolder:
        return _open_to_resume(resume) if resume else _new_run(title, overrides, runs, job)

    if "TORCHELASTIC_RESTART_COUNT" in os.environ:
        with stop_with_launcher():
            from mage.cli.train_ranks import train_on_rank

            folder = train_on_rank(name, overrides, runs, open_folder, _train_stages)
    else:
        folder = open_folder()
        if not folder.is_finished:
            _train(folder, is_new=resume is None)
        else:
            _clear(RunFolder.open(folder.path))
            say(_tell_finished(RunFolder.open(folder.path)))
    _report(RunFolder.open(folder.path), as_json)


def _new_run(name: str, overrides: Sequence[str], runs: Path, job: str) -> RunFolder:
    recipe = load_recipe(name, overrides)  # errors of the recipe show before torch is loaded
    from mage.api.runs import create_run

    return create_run(recipe, runs, title_of(name), job)


def _open_to_resume(path: Path) -> RunFolder:
    """The run, also from the folder of one of its stages.

    If its newest checkpoint is broken, the user must decide what to do.
    """
    from mage.learn import checkpoint

    path = run_of(path)
    folder = RunFolder.open(path)
    found = checkpoint.latest(folder.checkpoints)
    if found.broken:
        moved = f"metrics.jsonl, metrics.sha256 and the checkpoints out of {folder.path}"
        rest = "the run restarts from its first update"
        if found.path:
            moved = f"the broken checkpoints out of {folder.checkpoints}"
            rest = f"the run continues from {found.path.name}"
        advice = f"Nothing was changed. Move {moved}; then {rest}."
        raise UsageError("\n".join([*found.broken, advice]))
    return RunFolder.open_whole(path)


def _tell_finished(folder: RunFolder) -> str:
    """That a run has ended, and how to train longer."""
    run, path = folder.recipe.run, run_of(folder.path)
    done = len(folder.metrics())
    option = "minutes" if run.minutes is not None and done < run.updates else "updates"
    return (
        f"{path} finished at update {done} of {run.updates}: nothing is left to train. To train "
        f"longer, begin a new run: mage train {path / 'recipe.toml'} --run.{option}=... "
        "--run.name=NAME"
    )


def _clear(folder: RunFolder) -> None:
    from mage.training.resume import clear_leftovers

    with lock_run(folder.path):
        clear_leftovers(folder)


def _train(run: RunFolder, is_new: bool) -> None:
    """Train a run in this process and those that it starts."""
    from mage.ranks.stop import StopSignals

    with StopSignals() as stop:
        _train_stages(run, is_new, None, stop)


def _train_stages(run: RunFolder, is_new: bool, ranks: "Ranks | None", stop: "StopSignals") -> None:
    """Train a run, or its stages one after another. `ranks` are those that torchrun has started."""
    err = console(stderr=True)

    def say(line: str) -> None:
        err.print(line, markup=False, soft_wrap=True)

    from mage.ranks.ranks import Ranks
    from mage.training.stages import begin_stages

    for folder in begin_stages(run, ranks or Ranks(), say):
        _train_folder(folder, run, is_new, ranks, stop)


def _train_folder(
    folder: RunFolder, run: RunFolder, is_new: bool, ranks: "Ranks | None", stop: "StopSignals"
) -> None:
    from mage.api.runs import open_display, train_shown
    from mage.ranks.stop import Stopped

    go_on = f"mage train --resume {run.path}"
    with open_display(folder) as display:
        stop.say = display.say
        try:
            train_shown(folder, run, display, stop, ranks=ranks)
        except (Stopped, KeyboardInterrupt) as end:
            saved = isinstance(end, Stopped)
            kept = "The run is saved" if saved else "The last checkpoint is kept"
            display.say(f"Stopped. {kept}. To continue: {go_on}")
            if saved and ranks is not None:
                raise  # the ranks leave their group together
            raise typer.Exit(EXIT_STOPPED) from None
        except Exception as error:
            if not (is_new and _delete_unused(run)):
                error.add_note(f"When this is fixed, continue with: {go_on}")
            raise


def _delete_unused(folder: RunFolder) -> bool:
    """Delete a new run without any results, unless another process has begun to use it."""
    try:
        with lock_run(folder.path):
            if any(map(_has_begun, (folder.path, *list_stages(folder.path)))):
                return False
            shutil.rmtree(folder.path, ignore_errors=True)
    except RunError:
        return False
    return True


def _has_begun(path: Path) -> bool:
    """Whether the folder holds any results."""
    return (path / "warm").exists() or any(
        any(path.glob(f"{name}/*")) for name in ("checkpoints", "evaluations", "episodes")
    )


@verbs.command(epilog="Example: mage report runs/demo-1", rich_help_panel="Look")
@without_foreign_code()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: AsJson = False,
) -> None:
    """Write the curves, transcripts and page of a run and show its table.

    The run may be unfinished. While it is active, use `mage view`: it only reads.
    """
    _report(RunFolder.open(run), as_json)


def _report(folder: RunFolder, as_json: bool) -> None:
    from mage.api.report import write_report
    from mage.cli.terminal.results import result_table
    from mage.report.run_results import read_run_results
    from mage.report.verdict import tell_verdict

    with lock_run(folder.path):
        folder.delete_leftovers()
        files = write_report(folder)
    results = read_run_results(folder)
    if as_json:
        summary = folder.read_summary() if results.finished else {"run": str(folder.path)}
        print_json(
            {**summary, "finished": results.finished, "files": [str(path) for path in files]}
        )
        return
    out = console()
    for one in (results, *results.by_world()):
        for split in one.splits:
            out.print(
                Group(
                    result_table(one, split),
                    *tell_verdict(one.overall(split), one.measure_of(split)),
                )
            )
    if not results.finished:
        out.print(
            f"not finished: update {results.updates} of {folder.recipe.run.updates}; "
            f"continue with mage train --resume {run_of(folder.path)}"
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
