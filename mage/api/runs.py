"""Runs in Python: train, load, evaluate and play. Imports torch."""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from mage.agent.chat import Chat
from mage.agent.messages import MessageChat
from mage.api.agents import Candidate, find_candidate, play_panel, untrained, warn
from mage.api.recipes import load_recipe
from mage.api.recipes import recipe as make_recipe
from mage.api.report import write_report
from mage.config.errors import UserError
from mage.config.loading import title_of
from mage.config.menus import find_item
from mage.config.recipe import Recipe
from mage.engines.base import run as run_coroutines
from mage.environments.base import SEATS, Environment
from mage.evaluation.figures import Evaluation
from mage.evaluation.frames import make_frame
from mage.evaluation.panels import PanelName, check_panel_sizes
from mage.memory.base import Memory
from mage.models.base import base_folder, base_of, pin_model
from mage.opponents.base import find
from mage.play import play_meta_episode
from mage.play.policy import Policy, PolicyPlayer, silent_engine
from mage.ranks.ranks import Ranks
from mage.report.loggers import make_loggers
from mage.report.progress import TerminalCallback
from mage.report.run_results import read_run_results
from mage.run_folder import RunFolder, choose_path, run_of
from mage.training.build import Components, describe_model
from mage.training.callbacks import Callback, CallbackList
from mage.training.context import check_context
from mage.training.rivals import find_rival, rival_names
from mage.training.stages import begin_stages
from mage.training.start import train as train_folder
from mage.types import MetaEpisode, Split, Task

Keep = Literal["none", "reflections", "history", "both"]


@dataclass(frozen=True)
class Run:
    """A run folder. All figures are read from its files; of a run in stages, of its newest one."""

    path: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder.open(self.path)

    @property
    def recipe(self) -> Recipe:
        return self.folder.recipe

    @property
    def finished(self) -> bool:
        return RunFolder.open_whole(self.path).is_finished

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record per update; docs/metrics.md explains the names."""
        return self.folder.metrics()

    @property
    def summary(self) -> dict[str, Any]:
        """The final figures of a finished run: before, after, without memory."""
        return self.folder.read_summary()

    def transcripts(self, name: str = "after_test") -> list[MetaEpisode]:
        """Stored meta-episodes of a final panel: before_test, after_test or emptied_test."""
        return self.folder.read_episodes_of(name)

    def report(self) -> list[Path]:
        """Write curves, transcripts and the page of the run; the paths."""
        return write_report(self.folder)

    def to_pandas(self) -> Any:
        """The metrics as a pandas frame with one row per update; needs pandas."""
        return make_frame(self.metrics)


Source = Run | Recipe | str | Path  # a run, a run folder, or a recipe


def create_run(recipe: Recipe, runs: str | Path, title: str, job: str = "") -> RunFolder:
    """A new run folder. Data, panels and context are checked before the folder is created.

    A model of the hub is downloaded, and its commit is written into the recipe of the run.
    """
    for stage in recipe.in_stages().values() or (recipe,):
        stage.environment().check_data()
    recipe = pin_model(recipe)
    for stage in recipe.in_stages().values() or (recipe,):
        _check_run(stage)
    return RunFolder.create(choose_path(runs, recipe, title), recipe, job)


def _check_run(recipe: Recipe) -> None:
    if recipe.run.updates and (taken := recipe.final_tasks(recipe.evaluate.select_split)):
        options = recipe.evaluate
        check_panel_sizes(recipe.environment(), options.select_split, options.size, taken)
    check_context(recipe, Chat.load(base_folder(recipe), recipe.agent.thinking))
    for name in rival_names(recipe):
        Chat.load(base_of(find_rival(name)), recipe.agent.thinking)


def train(
    source: Source,
    *,
    runs: str | Path = "runs",
    callbacks: Sequence[Callback] = (),
    stop: Callable[[], bool] = lambda: False,
    progress: bool = True,
) -> Run:
    """Train a recipe in a new run folder, or continue a run; evaluate it before and after.

    A recipe with stages trains one after another, each in a folder of its own inside the run.
    `stop` is called after every update. If it returns true, the run is saved and
    `mage.Stopped` is raised; `train(run)` continues it. `progress` shows what `mage train` shows,
    on standard error.
    """
    if isinstance(source, Run):
        run = source
    elif not isinstance(source, Recipe) and Path(source).is_dir():
        run = Run(Path(source))
    else:
        recipe, title = _read_recipe(source)
        run = Run(create_run(recipe, runs, title).path)
    whole = RunFolder.open_whole(run_of(run.path))  # a stage continues with its run
    for stage in begin_stages(whole, Ranks(), warn):
        if not stage.is_finished:
            with open_display(stage, quiet=not progress) as display:
                train_shown(stage, whole, display, stop, callbacks)
    return Run(whole.path)


class _Lasting(Console):
    """A console that is silent when its reader has ended, as `tee` does after Ctrl-C."""

    def on_broken_pipe(self) -> None:
        """By default this ends the process, before the run is saved."""
        self.quiet = True


def open_display(folder: RunFolder, *, quiet: bool = False) -> TerminalCallback:
    """The live display of a run on standard error; a context manager."""
    live = False if quiet else None  # None: if standard error is a terminal
    console = _Lasting(stderr=True, quiet=quiet, highlight=False, force_terminal=live)
    return TerminalCallback(folder.recipe, console, read_run_results(folder).bounds)


def train_shown(
    folder: RunFolder,
    run: RunFolder,
    display: TerminalCallback,
    stop: Callable[[], bool],
    callbacks: Sequence[Callback] = (),
    ranks: Ranks | None = None,
) -> None:
    """Train a run or one of its stages, with the display and the loggers of its recipe."""
    recipe = folder.recipe
    display.say(describe_model(recipe))
    display.say(f"run folder {run.path}")
    if run.recipe.stages:
        display.say(f"stage {folder.path.name} of {len(run.recipe.stages)}")
    if (cores := os.cpu_count() or 1) < recipe.run.workers:
        display.say(
            f"warning: run.workers = {recipe.run.workers} on {cores} cores. More workers than "
            "cores are slower; lower run.workers."
        )
    loggers = make_loggers(recipe.run.loggers, display.say)
    train_folder(folder.path, CallbackList([display, *loggers, *callbacks]), stop, ranks=ranks)


def load_run(path: str | Path) -> Run:
    """A run folder that exists; an error if the folder is not a run."""
    return Run(RunFolder.open(path).path)


def evaluate(
    source: Source | None = None,
    *,
    policy: Policy | None = None,
    environment: str | Environment | type[Environment] | None = None,
    opponents: Any = None,
    checkpoint: str | None = None,
    split: Split = "test",
    panel: PanelName = "final",
    size: int | None = None,
    episodes: int | None = None,
    memory: Keep | Memory | Literal["swapped"] | None = None,
    writer: Source | None = None,
) -> Evaluation:
    """Play a fixed panel and compute all figures with their 95 % intervals.

    A recipe is evaluated with its untrained model. `memory` replaces the memory of the recipe;
    "none" is the control condition without memory, "swapped" shows every task the memory of
    another one. `writer`: another run or recipe writes the reflections.

    `policy` is a function that moves instead of a model: it gets a `mage.Seen` and returns a move.
    `environment` and `opponents` take the place of a source, as in `mage.recipe`.
    """
    if (source is None) == (environment is None):
        raise UserError("give a run or a recipe, or environment=...: one of them, not both")
    if source is None:
        assert environment is not None, "one of them is given"
        source = make_recipe(environment, opponents=opponents)
    elif opponents is not None:
        raise UserError("opponents= has no effect without environment=")
    swapped = memory == "swapped"
    held = None if swapped else memory
    held = find_item("memory", "notes")(keep=held) if isinstance(held, str) else held
    player = None
    if policy is None:
        candidate = _find(source, checkpoint, episodes)
    else:
        if checkpoint is not None:
            raise UserError("checkpoint= has no effect with policy=: no model plays")
        player = PolicyPlayer(policy, MessageChat())
        candidate = _stand_by(source, player.chat, episodes)
        if held is None and candidate.components.recipe.memory().reflects:
            held = find_item("memory", "notes")(keep="history")
    by_whom = None if writer is None else _find(writer, None, episodes)
    return play_panel(
        candidate, split, panel, size, held, swapped=swapped, writer=by_whom, policy=player
    )


def play_one(
    source: Source,
    opponent: str = "",
    *,
    seat: Literal["first", "second"] = "first",
    seed: int | None = None,
    episodes: int | None = None,
    checkpoint: str | None = None,
) -> MetaEpisode:
    """Play one meta-episode of an agent against an opponent and return its record."""
    components = _find(source, checkpoint).components
    setup = components.begin_play(evaluating=True)
    if setup.environment.multi_agent:
        find(opponent)
    setup = replace(setup, episodes=episodes or setup.episodes)
    seed = secrets.randbits(31) if seed is None else seed
    task = Task(setup.environment.name, seed, SEATS.index(seat), opponent, "test")
    return run_coroutines([play_meta_episode(setup, task, 0, 0, seed)])[0]


def _find(source: Source, checkpoint: str | None, episodes: int | None = None) -> Candidate:
    changes = {"evaluate": {"episodes": episodes}} if episodes else {}
    if isinstance(source, Run):
        source = source.path
    if isinstance(source, Recipe):
        return untrained("recipe", source.changed(**changes))
    return find_candidate(str(source), [], checkpoint, changes=changes)


def _stand_by(source: Source, chat: MessageChat, episodes: int | None) -> Candidate:
    """What a policy plays in: the tasks of a recipe or of a run, without a model."""
    if isinstance(source, Run) or (not isinstance(source, Recipe) and Path(source).is_dir()):
        recipe = load_run(source.path if isinstance(source, Run) else source).recipe
    else:
        recipe = _read_recipe(source)[0]
    recipe = recipe.changed(evaluate={"episodes": episodes}) if episodes else recipe
    recipe.environment().check_data()
    return Candidate("policy", 0, Components(recipe, None, chat, silent_engine(chat)))


def _read_recipe(source: Recipe | str | Path) -> tuple[Recipe, str]:
    if isinstance(source, Recipe):
        return source, source.environments.name.rpartition(".")[2]
    return load_recipe(str(source)), title_of(str(source))
