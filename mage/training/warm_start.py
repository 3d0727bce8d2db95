"""The warm-up of a recipe: its model learns from scripted play, and from its own if asked for.

The result is a model folder (or adapters) that training starts from.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from mage.config.recipe import Recipe
from mage.learn.adapters import make_trainable
from mage.learn.imitate.batches import make_script
from mage.learn.imitate.warmup import Warmup, Watch, save_warm, warm_up
from mage.models.base import adapter_folder, base_folder, base_name, model_folder
from mage.models.loading import free_memory
from mage.training.build import build_components
from mage.training.demonstration_pool import DemonstrationPool
from mage.training.fit import fit_to_gpu
from mage.training.tasks import draw_tasks
from mage.types import Task

# Tasks of a warm-up have negative update numbers: scripted play has -1 and below, own play
# -1,000,000 and below.
_OWN_PLAY_FIRST = 1_000_000


def make_warm_start(recipe: Recipe, target: Path, watch: Watch) -> Warmup:
    """Warm up the recipe's model and write it, or its adapters, to `target`.

    A warm-up of 0 steps writes nothing. The memory of the GPU is free afterwards.
    """
    try:
        return _make_warm_start(recipe, target, watch)
    finally:
        free_memory()


def _make_warm_start(recipe: Recipe, target: Path, watch: Watch) -> Warmup:
    source = model_folder(recipe)
    # A short stage with a small learning rate needs float32. Expert play is a long stage: it uses
    # the number format of training, which is several times faster on a GPU.
    short = recipe.warmup.play == "random"
    components = build_components(
        fit_to_gpu(recipe.changed(model={"dtype": "float32"}) if short else recipe, use="warmup")
    )
    model, seed = components.weights(), recipe.run.seed
    learn = recipe.learn.model_copy(update={"kl": 0.0})
    trainable = make_trainable(model, learn, seed=seed, start=adapter_folder(recipe))
    with DemonstrationPool(recipe, make_script(recipe.warmup)) as pool:
        found = warm_up(
            model,
            components.begin_play(),
            _tasks(recipe, 1),
            recipe.warmup,
            seed,
            learn=components.recipe.learn,  # as the memory plan chose
            trainable=trainable,
            watch=watch,
            own_tasks=_tasks(recipe, _OWN_PLAY_FIRST),
            write=pool.write if recipe.warmup.processes > 1 else None,
        )
    if found.losses:
        record = {
            "source": recipe.model.path,
            "seed": seed,
            "recipe": recipe.tables(),
            **found.to_json(),
        }
        save_warm(
            trainable, base_folder(recipe), base_name(source, recipe.model.path), target, record
        )
    return found


def _tasks(recipe: Recipe, first: int) -> Iterator[Task]:
    """Tasks drawn as in training, with negative update numbers: training never repeats them."""
    return (row[0] for update in itertools.count(first) for row in draw_tasks(recipe, -update))
