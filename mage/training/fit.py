"""A recipe fitted to the memory of the GPU, if its model runs on one."""

import math
import os

import torch

from mage.agent.chat import Chat
from mage.config.menus import find_item
from mage.config.recipe import Recipe
from mage.models.base import base_folder
from mage.models.loading import pick_cache, pick_device
from mage.models.shapes import read_shape
from mage.training.memory_bytes import GB, Use
from mage.training.memory_plan import plan_memory
from mage.training.plan_advice import apply_plan


def fit_to_gpu(recipe: Recipe, ranks: int | None = None, use: Use = "train") -> Recipe:
    """The recipe with micro-batch size, recompute and slots chosen for the memory of the GPU.

    `ranks` is the number of ranks, run.workers by default; those on one card share its memory.
    With run.gpu_memory this also limits what torch may allocate in this process. Without a GPU, or
    with a model that runs elsewhere, the recipe stays as it is.
    """
    return fit_training(recipe, ranks, use)[0]


def fit_training(
    recipe: Recipe, ranks: int | None = None, use: Use = "train"
) -> tuple[Recipe, bool]:
    """The fitted recipe, and whether the key/value pools can stay while the model learns."""
    if runs_elsewhere(recipe):
        return recipe, False
    device = pick_device(recipe.run.device)
    if device.type != "cuda":
        return recipe, False
    cache = recipe.engines.options.get("cache", "model")
    if pick_cache(cache, device) != cache:  # this card does not support it
        recipe = recipe.changed(engines={"cache": None})
    free, total = torch.cuda.mem_get_info(device)
    ranks = ranks or recipe.run.workers
    memory = free / _ranks_on_card(ranks)
    if recipe.run.gpu_memory is not None:
        memory = min(memory, recipe.run.gpu_memory * GB)
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total), device.index or 0)
    plan = plan_memory(
        recipe,
        read_shape(base_folder(recipe)),
        memory,
        half_precision=recipe.model.dtype != "float32",
        ranks=ranks,
        use=use,
    )
    return apply_plan(recipe, plan), plan.keeps_pool


def _ranks_on_card(ranks: int) -> int:
    """How many ranks share a card of this host."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return math.ceil(here / torch.cuda.device_count())


def runs_elsewhere(recipe: Recipe) -> bool:
    """Whether the agent's model is not on this machine: its engine sends requests to a server."""
    return find_own_chat(recipe) is not None


def find_own_chat(recipe: Recipe) -> Chat | None:
    """The chat format of an engine whose model runs elsewhere; None for a local model."""
    chat: Chat | None = find_item("engines", recipe.engines.name).own_chat()
    return chat
