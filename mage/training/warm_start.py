"""The warm-up of a recipe: teach the model the answer format on scripted play. Loads torch.

The result is a model folder (or adapters) that training starts from.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from mage.config.loading import change_recipe, recipe_tables
from mage.config.recipe import Recipe
from mage.learn.trainable import make_trainable
from mage.learn.warmup import Warmup, Watch, save_warm, warm_up
from mage.models.base import base_name, is_adapter
from mage.training.build import build_components, fit_to_gpu
from mage.training.tasks import draw_tasks
from mage.types import Task


def make_warm_start(recipe: Recipe, target: Path, watch: Watch) -> Warmup:
    """Warm up the recipe's model and write it, or its adapters, to `target`.

    A warm-up of 0 steps writes nothing.
    """
    source = recipe.model_folder()
    # A short stage with a small learning rate needs float32. Expert play is a long stage: it uses
    # the number format of training, which is several times faster on a GPU.
    short = recipe.warmup.play == "random"
    components = build_components(
        fit_to_gpu(change_recipe(recipe, ["--model.dtype=float32"]) if short else recipe)
    )
    model, seed = components.weights(), recipe.run.seed
    trainable = make_trainable(
        model,
        recipe.learn.model_copy(update={"kl": 0.0}),
        seed=seed,
        start=source if is_adapter(source) else None,
    )
    found = warm_up(
        model,
        components.setting(),
        _tasks(recipe),
        recipe.warmup,
        seed,
        learn=recipe.learn,
        trainable=trainable,
        watch=watch,
    )
    if recipe.warmup.steps:
        record = {
            "source": recipe.model.path,
            "seed": seed,
            "recipe": recipe_tables(recipe),
            **found.to_json(),
        }
        save_warm(
            trainable, recipe.base_folder(), base_name(source, recipe.model.path), target, record
        )
    return found


def _tasks(recipe: Recipe) -> Iterator[Task]:
    """Tasks drawn as in training, with negative update numbers: training never repeats them."""
    return (row[0] for update in itertools.count(1) for row in draw_tasks(recipe, -update))
