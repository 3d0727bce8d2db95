"""The trained weights of a run: load those of a checkpoint for play, or write them as a model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mage.config.recipe import Recipe
from mage.learn import checkpoint
from mage.learn.adapters import make_trainable, save_trained
from mage.learn.trainable import Trainable
from mage.models.base import adapter_folder, base_folder, base_name, model_folder
from mage.run_folder import RunError, RunFolder
from mage.training.build import Components, build_components
from mage.training.fit import fit_to_gpu
from mage.training.resume import check_base

Say = Callable[[str], None]  # shows one line to the user


@dataclass(frozen=True, slots=True)
class Loaded:
    """The components of a run with the weights of one of its checkpoints."""

    update: int
    components: Components
    trainable: Trainable


def load_player(
    folder: RunFolder, recipe: Recipe, which: str, say: Say, *, plays_only: bool = True
) -> tuple[int, Components]:
    """The update of a checkpoint, and the components of its run with its weights.

    The copies of the weights for training are freed before the key/value pool is allocated.
    """
    loaded = load_weights(folder, recipe, which, say, plays_only=plays_only)
    update, components = loaded.update, loaded.components
    del loaded
    components.engine.refresh(update)
    return update, components


def load_weights(
    folder: RunFolder, recipe: Recipe, which: str, say: Say, *, plays_only: bool = False
) -> Loaded:
    """Load the checkpoint `best`, `latest` or a number. `recipe` may change how the agent plays.

    The engine has no key/value pool until `refresh`.
    """
    path = _find_checkpoint(folder, which)
    recipe = fit_to_gpu(RunFolder(folder.path, recipe).begun_recipe(), use="checkpoint")
    components = build_components(recipe, plays_only=plays_only)
    components.release()
    learn, start = recipe.learn.model_copy(update={"kl": 0.0}), adapter_folder(recipe)
    trainable = make_trainable(components.weights(), learn, seed=recipe.run.seed, start=start)
    loaded = trainable.load(path, weights_only=True)
    check_base(loaded.state, recipe, folder.path)
    best = loaded.state.get("best")
    if which == "best" and best and best[1] != loaded.update:
        chosen = checkpoint.best_whole(folder.checkpoints, best[1], weights_only=True)
        for line in chosen.broken:
            say(line)
        loaded = trainable.load(chosen.path or path, weights_only=True)
    return Loaded(loaded.update, components, trainable)


def save_weights(loaded: Loaded, recipe: Recipe, target: Path) -> None:
    """Write a whole model, or the adapters alone, into a folder."""
    base = base_name(model_folder(recipe), recipe.model.path)
    save_trained(loaded.trainable, base_folder(recipe), base, target)


def _find_checkpoint(folder: RunFolder, which: str) -> Path:
    """The checkpoint with a number, else the newest one, which stores the best update."""
    there = sorted(map(checkpoint.update_of, checkpoint.newest_first(folder.checkpoints)))
    if which.isdigit() and int(which) in there:
        return checkpoint.place(folder.checkpoints, int(which))
    if which not in ("best", "latest"):
        numbers = ", ".join(map(str, there)) or "no number (no checkpoint is saved)"
        raise RunError(
            f"--checkpoint {which} does not exist. Allowed are best, latest and, in "
            f"{folder.path}, {numbers}."
        )
    found = checkpoint.latest(folder.checkpoints, weights_only=True)
    if found.broken:
        saved = f"Saved updates: {', '.join(map(str, there))}"
        raise RunError("\n".join([*found.broken, f"Choose another one with --checkpoint. {saved}"]))
    if found.path is None:
        raise RunError(f"{folder.path} has no checkpoint yet. Train it first.")
    return found.path
