"""A recipe fitted to the memory of the GPU, if its model runs on one."""

import math
import os
from dataclasses import replace

import torch

from mage.agent.chat import Chat
from mage.config.describe import engine_option
from mage.config.menus import find_item
from mage.config.recipe import Recipe
from mage.models.base import base_folder
from mage.models.loading import free_memory, pick_cache, pick_device
from mage.models.shapes import read_shape
from mage.ranks.ranks import Ranks
from mage.training.memory_bytes import GB, PlanRequest, Use
from mage.training.memory_plan import Choices, plan_request
from mage.training.plan_advice import apply_plan, with_choices


def fit_to_gpu(recipe: Recipe, use: Use = "train") -> Recipe:
    """The recipe with micro-batch size, recompute and slots chosen for the memory of the GPU.

    With run.gpu_memory this also limits what torch may allocate in this process. Without a GPU, or
    with a model that runs elsewhere, the recipe stays as it is.
    """
    return fit_training(recipe, Ranks(), use)[0]


def fit_training(
    recipe: Recipe, ranks: Ranks, use: Use = "train", kept: Choices | None = None
) -> tuple[Recipe, bool]:
    """The fitted recipe, and whether the key/value pools can stay while the model learns.

    All `ranks` must call this; those on one card share its memory. `kept` are the choices at the
    start of the run. They stay if they fit: others change the rounding of its figures.
    """
    if runs_elsewhere(recipe):
        return recipe, False
    device = pick_device(recipe.run.device)
    if device.type == "cuda":
        free_memory()  # what this process used before: another agent, or the training before
    # A rank loads nothing before all ranks have measured, and the plans of all ranks are equal.
    measured = ranks.gather(torch.cuda.mem_get_info(device) if device.type == "cuda" else None)
    if device.type != "cuda":
        return recipe, False
    cache = recipe.engines.options.get("cache", "model")
    if pick_cache(cache, device) != cache:  # this card does not support it
        recipe = recipe.changed(engines={"cache": None})
    free, total = map(min, zip(*filter(None, measured), strict=True))
    memory = free / _ranks_on_card(ranks.size)
    if recipe.run.gpu_memory is not None:
        memory = min(memory, recipe.run.gpu_memory * GB)
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total), device.index or 0)
    request = PlanRequest(
        recipe=recipe,
        shape=read_shape(base_folder(recipe)),
        memory=memory,
        half_precision=recipe.model.dtype != "float32",
        ranks=ranks.size,
        use=use,
        card=total,
    )
    plan = plan_request(request)
    if kept is not None:
        same = plan_request(replace(request, recipe=with_choices(recipe, kept)))
        plan = same if same.fits and same.choices() == kept else plan
    return apply_plan(recipe, plan), plan.keeps_pool


def choices_of(recipe: Recipe) -> Choices | None:
    """The choices in a fitted recipe; None without a GPU."""
    if runs_elsewhere(recipe) or pick_device(recipe.run.device).type != "cuda":
        return None
    learn, slots = recipe.learn, engine_option(recipe.engines, "slots")
    return {"slots": slots, "micro_tokens": learn.micro_tokens, "recompute": learn.recompute}


def _ranks_on_card(ranks: int) -> int:
    """How many of the ranks share a card of this host."""
    here = min(ranks, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    return math.ceil(here / torch.cuda.device_count())


def runs_elsewhere(recipe: Recipe) -> bool:
    """Whether the agent's model is not on this machine: its engine sends requests to a server."""
    return find_own_chat(recipe) is not None


def find_own_chat(recipe: Recipe) -> Chat | None:
    """The chat format of an engine whose model runs elsewhere; None for a local model."""
    chat: Chat | None = find_item("engines", recipe.engines.name).own_chat()
    return chat
