"""Runs in Python: train, load, evaluate and play. Imports torch."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mage.agent.chat import Chat
from mage.api.agents import Candidate, find_candidate, play_panel, untrained, warn
from mage.api.recipes import load_recipe
from mage.api.report import write_report
from mage.config.menus import find_item
from mage.config.recipe import Recipe
from mage.engines.base import run as run_coroutines
from mage.environments.base import SEATS
from mage.evaluation.figures import Evaluation
from mage.evaluation.frames import make_frame
from mage.evaluation.panels import PanelName, check_panel_sizes
from mage.memory.base import Memory
from mage.models.base import base_folder, pin_model
from mage.opponents.base import find
from mage.play import play_meta_episode
from mage.ranks.ranks import Ranks
from mage.run_folder import RunFolder, choose_path
from mage.training.callbacks import Callback, CallbackList
from mage.training.context import check_context
from mage.training.stages import begin_stages
from mage.training.trainer import train as train_folder
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


def train(
    source: Source,
    *,
    runs: str | Path = "runs",
    callbacks: Sequence[Callback] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train a recipe in a new run folder, or continue a run; evaluate it before and after.

    A recipe with stages trains one after another, each in a folder of its own inside the run.
    `stop` is called after every update. If it returns true, the run is saved and
    `mage.Stopped` is raised; `train(run)` continues it.
    """
    if isinstance(source, Run):
        run = source
    elif not isinstance(source, Recipe) and Path(source).is_dir():
        run = Run(Path(source))
    else:
        recipe, title = _read_recipe(source)
        run = Run(create_run(recipe, runs, title).path)
    for stage in begin_stages(RunFolder.open_whole(run.path), Ranks(), warn):
        train_folder(stage.path, CallbackList(callbacks), stop)
    return run


def load_run(path: str | Path) -> Run:
    """A run folder that exists; an error if the folder is not a run."""
    return Run(RunFolder.open(path).path)


def evaluate(
    source: Source,
    *,
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
    """
    candidate = _find(source, checkpoint, episodes)
    by_whom = None if writer is None else _find(writer, None, episodes)
    swapped = memory == "swapped"
    held = None if swapped else memory
    held = find_item("memory", "notes")(keep=held) if isinstance(held, str) else held
    return play_panel(candidate, split, panel, size, held, swapped=swapped, writer=by_whom)


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
    setup = components.play_setup(evaluating=True)
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


def _read_recipe(source: Recipe | str | Path) -> tuple[Recipe, str]:
    if isinstance(source, Recipe):
        return source, source.environments.name.rpartition(".")[2]
    return load_recipe(str(source)), Path(source).stem
