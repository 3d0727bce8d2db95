"""The agents that are evaluated, shown or played against. Imports torch.

An agent is a run at one of its checkpoints, or the untrained model of a recipe.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mage.api.check_run import check_files
from mage.config.loading import change_recipe, load_recipe
from mage.config.recipe import Recipe, build_recipe
from mage.environments.base import Environment
from mage.evaluation.figures import Evaluation
from mage.evaluation.panels import PanelName, recipe_panel
from mage.evaluation.run import evaluate_panel
from mage.evaluation.shards import ShardStore
from mage.evaluation.swapped import evaluate_swapped
from mage.learn import checkpoint
from mage.memory.base import Memory
from mage.models.base import (
    atomic_folder,
    base_folder,
    base_name,
    base_of,
    find_model,
    model_folder,
    shipped_adapters,
)
from mage.opponents.base import population_of
from mage.play import PlaySetup
from mage.play.policy import PolicyPlayer
from mage.run_folder import RunError, RunFolder
from mage.run_folder.versions import versions
from mage.training.build import Components, build_components
from mage.training.fit import fit_to_gpu, runs_elsewhere
from mage.training.weights import Say, load_player, load_weights, save_weights
from mage.types import Split

OnRecipe = Callable[[Recipe], None]  # told about the recipe of an agent before it is loaded
RECIPE = "recipe.toml"
# Recipes of the embedded models that were made for one environment; the first one is the default.
# Other environments use the model `embedded`.
EMBEDDED_RECIPES = {
    "rock_paper_scissors": ("demo", "roshambo"),
    "alfworld": ("alfworld",),
    "sokoban": ("sokoban",),
    "doors": ("doors",),
}
# No embedded model has seen texts of these environments: it gives no legal move there.
_NOT_EMBEDDED = ("webshop",)
_SMALL = "smollm2"  # of several adapters for one environment, those of this model come first


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that plays. `sources`: the folders that its weights come from."""

    title: str
    update: int
    components: Components
    sources: tuple[Path, ...] = ()

    def identity(self) -> dict[str, Any]:
        """What decides its play, as JSON. Files of weights are known by their size and time."""
        files = [file for folder in self.sources for file in sorted(folder.iterdir())]
        stats = [(str(file), file.stat()) for file in files if file.is_file()]
        return {
            "title": self.title,
            "update": self.update,
            "recipe": self.components.recipe.tables(),
            "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
            "versions": versions(),
        }


def warn(line: str) -> None:
    """Show a line as a Python warning: the default without a terminal."""
    warnings.warn(line, stacklevel=3)


def find_candidate(
    name: str,
    overrides: Sequence[str],
    which: str | None,
    say: Say = warn,
    changes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    on_recipe: OnRecipe = lambda recipe: None,
    *,
    plays_only: bool = True,
) -> Candidate:
    """A run folder at a checkpoint (`best`, `latest`, a number), or a recipe before training.

    `overrides` are words of the command line, `changes` sections with other options. `on_recipe`
    is called before anything is loaded. `plays_only`: nobody computes probabilities with the model.
    """
    is_run = Path(name).is_dir()
    if which is not None and not is_run:
        raise RunError(f"--checkpoint {which} has no effect: {name} is not a run folder")
    recipe = _recipe_at(name, overrides).changed(**changes)
    recipe.environment().check_data()  # before a model is downloaded
    on_recipe(recipe)
    if is_run:
        return load_run(RunFolder.open(name), recipe, which or "best", say, plays_only=plays_only)
    return untrained(name, recipe, plays_only=plays_only)


def untrained(title: str, recipe: Recipe, *, plays_only: bool = True) -> Candidate:
    """The model of a recipe before training."""
    recipe = fit_to_gpu(recipe, use="model")
    return Candidate(title, 0, build_components(recipe, plays_only=plays_only), _models(recipe))


def _models(recipe: Recipe) -> tuple[Path, ...]:
    """The folders of the starting weights and of their base model; none behind an endpoint."""
    return () if runs_elsewhere(recipe) else (model_folder(recipe), base_folder(recipe))


def _recipe_at(name: str, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run folder, or a recipe by its name, with changes of the command line."""
    if Path(name).is_dir():
        return change_recipe(RunFolder.open(name).recipe, overrides)
    return load_recipe(name, overrides)


def find_player(
    name: str,
    world: Environment,
    options: Iterable[str],
    run: Path | None,
    model: str | None,
    say: Say = warn,
    on_recipe: OnRecipe = lambda recipe: None,
) -> Candidate:
    """The agent for an environment: the best checkpoint of `run`, else `model` as it is.

    `options` are the options of `world` that the user has given.
    Without both, the best model on this machine is used.
    """
    given = {option: getattr(world, option) for option in options}
    if run is None:
        notes: list[str] = []
        model = model or _best_model(name, notes.append)
        recipe = _recipe_of(name, world, given, model)
        on_recipe(recipe)
        for line in notes:
            say(line)
        return untrained(model, recipe)
    folder = RunFolder.open(run)
    trained, worlds = folder.recipe, folder.recipe.environments.options.get("worlds", {})
    if trained.environments.name != name and name not in worlds:
        raise RunError(f"{run} was trained on {trained.environments.name}, not on {name}")
    recipe = trained.in_world(name) if name in worlds else trained
    recipe = recipe.changed(environments=given)
    on_recipe(recipe)
    return load_run(folder, recipe, "best", say)


def _best_model(name: str, say: Say) -> str:
    """The shipped adapters for an environment if their base model is here, else an embedded one."""
    fitting = [one for one in shipped_adapters() if _trained_on(one) == name]
    fitting.sort(key=lambda one: base_name(find_model(one), "") != _SMALL)
    for adapters in fitting:
        try:
            base_of(find_model(adapters))
        except ValueError:
            continue
        return adapters
    if fitting:
        base = base_name(find_model(fitting[0]), "")
        if name in _NOT_EMBEDDED:
            raise RunError(
                f"no model on this machine can play {name}: the embedded models have never "
                f"seen it. Run `mage model add {base}`, which the adapters {fitting[0]} "
                "need, or name a run with --run or a model with --model."
            )
        say(
            f"using the embedded model; after `mage model add {base}` a model that was "
            "trained for this game is used"
        )
    own = EMBEDDED_RECIPES.get(name)
    return load_recipe(own[0]).model.path if own else "embedded"


def _trained_on(adapters: str) -> str:
    return load_recipe(find_model(adapters) / RECIPE).environments.name


def _recipe_of(name: str, world: Environment, options: Mapping[str, Any], model: str) -> Recipe:
    """The recipe with which a model plays: its own one if it was trained on this environment."""
    trained = _training_recipe(name, model)
    if trained is not None:
        return trained.changed(model={"path": model}, engines={"slots": 4}, environments=options)
    opponents = {"opponents": {"train": {"random": 1.0}}} if world.multi_agent else {}
    return build_recipe(
        {
            "environments": {"name": name, **world.model_dump()},
            "model": {"path": model},
            **opponents,
        }
    )


def _training_recipe(name: str, model: str) -> Recipe | None:
    """The recipe that trained a model on an environment, if there is one."""
    kept = find_model(model) / RECIPE
    if kept.is_file():
        recipe = load_recipe(kept)
        return recipe if recipe.environments.name == name else None
    embedded = map(load_recipe, EMBEDDED_RECIPES.get(name, ()))
    return next((recipe for recipe in embedded if recipe.model.path == model), None)


def load_run(
    folder: RunFolder, recipe: Recipe, which: str, say: Say = warn, *, plays_only: bool = True
) -> Candidate:
    """The components of a run with the weights of one of its checkpoints."""
    for line in check_files(folder):
        say(line)
    update, components = load_player(folder, recipe, which, say, plays_only=plays_only)
    sources = *_models(recipe), checkpoint.place(folder.checkpoints, update)
    return Candidate(str(folder.path), update, components, sources)


def export_run(folder: RunFolder, which: str, target: Path, say: Say = warn) -> int:
    """Write the weights of a checkpoint and its recipe to a folder; return the update.

    The folder appears only when it is complete.
    """
    for line in check_files(folder):
        say(line)
    loaded = load_weights(folder, folder.recipe, which, say)
    if folder.recipe.learn.lora_rank:
        say(
            "the adapters are rounded from float32 to bfloat16, so probabilities differ a little "
            "from those of the run; mage evaluate RUN uses them as they were trained"
        )
    with atomic_folder(target) as partial:
        save_weights(loaded, folder.recipe, partial)
        (partial / RECIPE).write_text(folder.recipe.changed(run={"name": None}).toml())
    return loaded.update


def play_panel(
    candidate: Candidate,
    split: Split,
    panel: PanelName,
    size: int | None,
    memory: Memory | None,
    *,
    after_episode: Callable[[], None] = lambda: None,
    swapped: bool = False,
    writer: Candidate | None = None,
    policy: PolicyPlayer | None = None,
    store: ShardStore | None = None,
) -> Evaluation:
    """A candidate's figures on a fixed panel.

    `swapped`: every task is played with the memory of another one. `writer` writes the reflections
    instead of the candidate. `policy` moves instead of the candidate. `store` holds finished parts
    of the panel; a swapped one is always played whole.
    """
    recipe = candidate.components.recipe
    setup = candidate.components.begin_play(evaluating=True, memory=memory)
    setup = replace(setup, policy=policy, after_episode=after_episode)
    if writer is not None:
        setup = _with_writer(setup, writer)
    common = dict[str, Any](plays=recipe.plays_of(panel), with_ceilings=recipe.evaluate.ceilings)
    tasks = recipe_panel(recipe, split, panel, size)
    if swapped:
        return evaluate_swapped(setup, population_of(recipe), tasks, panel, **common)
    common |= {"transcripts": 0, "store": store}
    return evaluate_panel(setup, population_of(recipe), tasks, panel, **common)[0]


def _with_writer(setup: PlaySetup, writer: Candidate) -> PlaySetup:
    """The setup in which another agent writes the reflections."""
    own, other = setup.environment.name, writer.components.recipe.environments.name
    if own != other:
        raise RunError(f"the writer {writer.title} plays {other}, not {own}")
    if not setup.memory.reflects:
        raise RunError(
            "a writer has no effect: this memory holds no reflections. Use --memory reflections "
            "or --memory both"
        )
    return replace(setup, writer=writer.components.agent(evaluating=True))
