"""From a recipe to a model, a chat format and an engine that share the same weights."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from transformers import PreTrainedModel

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.config.menus import find_item
from mage.config.recipe import Recipe
from mage.engines.base import Engine
from mage.memory.base import Memory
from mage.models.architecture import trying
from mage.models.arithmetic import reset_arithmetic
from mage.models.base import base_folder, base_of, count_parameters, model_folder, read_model
from mage.models.loading import load_model, pick_cache, pick_device, pick_dtype
from mage.models.shapes import read_shape
from mage.models.sources.hub import read_hub_id
from mage.opponents.base import Opponent, find
from mage.play import PlaySetup
from mage.play.rewards import find_rewards
from mage.training.context import check_context, make_agent
from mage.training.kernel_cache import keep_kernels
from mage.training.memory_bytes import GB, Use
from mage.training.memory_plan import plan_memory
from mage.training.metrics import MetricSums
from mage.training.plan_advice import apply_plan
from mage.training.rivals import find_rival

_SMALL_MODEL = 1_000_000  # parameters


@dataclass(frozen=True, slots=True)
class Components:
    """What a recipe builds. `model` is None if the engine's model runs elsewhere (an endpoint)."""

    recipe: Recipe
    model: PreTrainedModel | None
    chat: Chat
    engine: Engine
    warnings: tuple[str, ...] = ()
    rivals: dict[str, Any] = field(default_factory=dict)  # models as opponents that are loaded

    def weights(self) -> PreTrainedModel:
        """The local model, for code that changes or exports its weights."""
        if self.model is None:
            name = self.recipe.engines.name
            raise UserError(
                f'engines.name = "{name}" uses a model that runs elsewhere: it cannot be trained '
                "and has no checkpoints; use it with mage evaluate RECIPE"
            )
        return self.model

    def agent(self, evaluating: bool) -> Agent:
        options, recipe = self.recipe.agent, self.recipe
        sampler = recipe.evaluation_sampler() if evaluating else recipe.training_sampler()
        sampling = SamplingOptions(
            temperature=sampler.temperature,
            top_p=sampler.top_p,
            top_k=sampler.top_k,
            max_tokens=options.max_tokens,
            reflection_tokens=options.reflection_tokens,
        )
        return make_agent(options, self.engine, self.chat, sampling)

    def begin_play(
        self,
        evaluating: bool = False,
        memory: Memory | None = None,
        copies: Mapping[str, Opponent] = MappingProxyType({}),
    ) -> PlaySetup:
        """What meta-episodes need besides their task, in training or in evaluation.

        Call it before every update and every panel: it empties the caches of the models that are
        opponents and counts their illegal replies from 0. `copies` are the frozen copies of a
        league that play.
        """
        play = self.recipe.play
        for rival in self.rivals.values():
            rival.agent.engine.refresh(0)
            rival.count_anew()
        return PlaySetup(
            environment=self.recipe.environment(),
            agent=self.agent(evaluating),
            memory=memory or self.recipe.memory(),
            episodes=self.recipe.evaluation_episodes() if evaluating else play.episodes,
            numbered=play.numbered,
            stop_on_success=play.stop_on_success and not evaluating,
            illegal_penalty=play.illegal_penalty,
            length_penalty=play.length_penalty,
            rewards=find_rewards(play.rewards),
            rivals=Rivals(self, copies),
        )

    def rival_sums(self) -> MetricSums:
        """The share of illegal replies of models as opponents, since the last `begin_play`."""
        if not self.rivals:
            return {}
        refused, replies = zip(*(rival.illegal() for rival in self.rivals.values()), strict=True)
        return {"opponent_illegal_rate": (sum(refused), sum(replies))}

    def release(self) -> None:
        """Free memory that only play needs."""
        for engine in (self.engine, *(rival.agent.engine for rival in self.rivals.values())):
            engine.release()


class Rivals(Mapping[str, Opponent]):
    """Copies of a league and models as opponents, by name.

    A model is loaded when a task names it for the first time.
    """

    def __init__(self, components: Components, copies: Mapping[str, Opponent]) -> None:
        self.components, self.copies = components, copies

    def __getitem__(self, name: str) -> Opponent:
        loaded = self.components.rivals
        if name not in self.copies and name not in loaded:
            if not find(name).model_path():
                raise KeyError(name)
            loaded[name] = _load_rival(self.components, name)
        return self.copies[name] if name in self.copies else loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.components.rivals, **self.copies})

    def __len__(self) -> int:
        return len({**self.components.rivals, **self.copies})


def _load_rival(components: Components, name: str) -> Opponent:
    """A player with weights, tokenizer and engine of its own, and the sampling of training."""
    recipe, folder = components.recipe, find_rival(name)
    chat = Chat.load(base_of(folder), recipe.agent.thinking)
    model = load_model(folder, recipe.model.dtype, recipe.run.device)
    if _runs_elsewhere(recipe):
        recipe = recipe.changed(engines={"name": "local"})
    agent = replace(
        components.agent(evaluating=False), engine=recipe.engine()(model, chat), chat=chat
    )
    episodes = recipe.play.episodes if recipe.play.numbered else 1
    opponent: Any = find(name)
    return opponent.freeze(agent, recipe.environment(), episodes)


def build_components(recipe: Recipe) -> Components:
    """Check the data, load the model and create the engine around it."""
    recipe.environment().check_data()
    own_chat = _own_chat(recipe)
    if own_chat is not None:
        _check_thinking(recipe)
        return Components(recipe, None, own_chat, recipe.engine()(own_chat))
    folder = model_folder(recipe)
    chat = Chat.load(base_folder(recipe), recipe.agent.thinking)
    warnings = check_context(recipe, chat)
    device = pick_device(recipe.run.device)
    if device.type == "cuda":
        keep_kernels()
    reset_arithmetic(pick_dtype(recipe.model.dtype, device), device)
    model = load_model(folder, recipe.model.dtype, recipe.run.device)
    torch.set_num_threads(recipe.run.threads or _default_threads(model, recipe.run.workers))
    with trying(model, f"the engine {recipe.engines.name}"):
        engine = recipe.engine()(model, chat)
    return Components(recipe, model, chat, engine, warnings)


def describe_model(recipe: Recipe) -> str:
    """Which model plays, its size and its device, in one line."""
    if _runs_elsewhere(recipe):
        name = recipe.engines.options.get("model", "")
        return f"model {name} behind the engine {recipe.engines.name}".replace("  ", " ")
    size = count_parameters(read_model(base_folder(recipe)).parameters)
    hub = read_hub_id(recipe.model.path)
    name = hub.short if hub else recipe.model.path
    return f"model {name}, {size}, on {pick_device(recipe.run.device)}"


def _runs_elsewhere(recipe: Recipe) -> bool:
    """Whether the agent's model is not on this machine: its engine sends requests to a server."""
    return _own_chat(recipe) is not None


def _own_chat(recipe: Recipe) -> Chat | None:
    """The chat format of an engine whose model runs elsewhere; None for a local model."""
    chat: Chat | None = find_item("engines", recipe.engines.name).own_chat()
    return chat


def _check_thinking(recipe: Recipe) -> None:
    """A remote model has its own chat template, so the option would have no effect."""
    if recipe.agent.thinking != "auto":
        raise UserError(
            f'agent.thinking = "{recipe.agent.thinking}" has no effect with engines.name = '
            f'"{recipe.engines.name}": the server has the chat template. Set it there, or send its '
            "field with engines.extra"
        )


def fit_to_gpu(recipe: Recipe, ranks: int | None = None, use: Use = "train") -> Recipe:
    """The recipe with micro-batch size, recompute and slots chosen for the memory of the GPU.

    `ranks` is the number of ranks, run.workers by default; those on one card share its memory.
    With run.gpu_memory this also limits what torch may allocate in this process. Without a GPU, or
    with a model that runs elsewhere, the recipe stays as it is.
    """
    if _runs_elsewhere(recipe):
        return recipe
    device = pick_device(recipe.run.device)
    if device.type != "cuda":
        return recipe
    cache = recipe.engines.options.get("cache", "model")
    if pick_cache(cache, device) != cache:
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
    return apply_plan(recipe, plan)


def _ranks_on_card(ranks: int) -> int:
    """How many ranks share a card of this host."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return math.ceil(here / torch.cuda.device_count())


def _default_threads(model: PreTrainedModel, workers: int) -> int:
    """One thread for a small model, otherwise an equal share of the cores.

    The operations of a small model are too short to split: two threads on a busy machine made an
    update 20 times slower (53 s instead of 2.6 s).
    """
    if model.num_parameters() < _SMALL_MODEL:
        return 1
    return max(1, (os.cpu_count() or 1) // workers)
