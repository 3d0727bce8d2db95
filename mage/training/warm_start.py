"""A recipe's warm-up: the model is taught the answer format on scripted play and kept as a folder to start from. Loads torch."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from mage.config.loading import change_recipe, recipe_tables
from mage.config.recipe import Recipe
from mage.learn.learner import make_trainable
from mage.learn.warmup import Warmup, Watch, save_warm, warm_up
from mage.models.base import base_name, is_adapter
from mage.training.build import build_components
from mage.training.tasks import draw_tasks
from mage.types import Task


def make_warm_start(recipe: Recipe, target: Path, watch: Watch) -> Warmup:
    """Warm up the recipe's model and write it, or its adapters alone, to `target`; nothing is written for a warm-up of no steps."""
    source = recipe.model_folder()
    components = build_components(
        change_recipe(recipe, ["--model.dtype=float32"])
    )  # a short stage at a small learning rate: half precision would lose most of it
    model, seed = components.weights(), recipe.run.seed
    trained = make_trainable(
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
        trained=trained,
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
            trained, recipe.base_folder(), base_name(source, recipe.model.path), target, record
        )
    return found


def _tasks(recipe: Recipe) -> Iterator[Task]:
    """Tasks as in training, from before its first update: training never meets one of them again."""
    return (row[0] for update in itertools.count(1) for row in draw_tasks(recipe, -update))
