"""From a recipe to a model, a chat format and an engine that share the same weights."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.config.recipe import Recipe
from mage.engines.base import Engine
from mage.memory.base import Memory
from mage.models.architecture import PreTrainedModel, trying
from mage.models.arithmetic import reset_arithmetic
from mage.models.base import base_folder, count_parameters, model_folder, read_model
from mage.models.loading import load_model, pick_device, pick_dtype
from mage.models.sources.hub import read_hub_id
from mage.opponents.base import Opponent
from mage.play import PlaySetup
from mage.play.rewards import find_rewards
from mage.training.context import check_context, make_agent
from mage.training.fit import find_own_chat, runs_elsewhere
from mage.training.kernel_cache import keep_kernels
from mage.training.metrics import MetricSums
from mage.training.rival_players import RivalPlayers, load_rival

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
    keeps_pools: bool = False  # there is memory to learn beside what only play needs

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
            rivals=RivalPlayers(copies, self.rivals, self._load_rival),
        )

    def _load_rival(self, name: str) -> Opponent:
        return load_rival(self.recipe, self.agent(evaluating=False), name)

    def rival_sums(self) -> MetricSums:
        """The share of illegal replies of models as opponents, since the last `begin_play`."""
        if not self.rivals:
            return {}
        refused, replies = zip(*(rival.illegal() for rival in self.rivals.values()), strict=True)
        return {"opponent_illegal_rate": (sum(refused), sum(replies))}

    def release(self) -> None:
        """Free memory that only play needs, if learning needs it.

        New pools need new CUDA graphs, and recording these takes longer than playing with them
        where the model is small.
        """
        if self.keeps_pools:
            return
        for engine in (self.engine, *(rival.agent.engine for rival in self.rivals.values())):
            engine.release()


def build_components(
    recipe: Recipe, keeps_pools: bool = False, *, plays_only: bool = False
) -> Components:
    """Check the data, load the model and create the engine around it.

    `plays_only`: nobody but the engine computes with the model, so it may load faster.
    """
    recipe.environment().check_data()
    own_chat = find_own_chat(recipe)
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
    alone = plays_only and recipe.engines.name == "local"
    model = load_model(folder, recipe.model.dtype, recipe.run.device, plays_only=alone)
    torch.set_num_threads(recipe.run.threads or _default_threads(model, recipe.run.workers))
    with trying(model, f"the engine {recipe.engines.name}"):
        engine = recipe.engine()(model, chat)
    return Components(recipe, model, chat, engine, warnings, keeps_pools=keeps_pools)


def describe_model(recipe: Recipe) -> str:
    """Which model plays, its size and its device, in one line."""
    if runs_elsewhere(recipe):
        name = recipe.engines.options.get("model", "")
        return f"model {name} behind the engine {recipe.engines.name}".replace("  ", " ")
    size = count_parameters(read_model(base_folder(recipe)).parameters)
    hub = read_hub_id(recipe.model.path)
    name = hub.short if hub else recipe.model.path
    return f"model {name}, {size}, on {pick_device(recipe.run.device)}"


def _check_thinking(recipe: Recipe) -> None:
    """A remote model has its own chat template, so the option would have no effect."""
    if recipe.agent.thinking != "auto":
        raise UserError(
            f'agent.thinking = "{recipe.agent.thinking}" has no effect with engines.name = '
            f'"{recipe.engines.name}": the server has the chat template. Set it there, or send its '
            "field with engines.extra"
        )


def _default_threads(model: PreTrainedModel, workers: int) -> int:
    """One thread for a small model, otherwise an equal share of the cores.

    The operations of a small model are too short to split: two threads on a busy machine made an
    update 20 times slower (53 s instead of 2.6 s).
    """
    if sum(weight.numel() for weight in model.parameters()) < _SMALL_MODEL:
        return 1
    return max(1, (os.cpu_count() or 1) // workers)
