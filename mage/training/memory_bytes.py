"""Bytes of GPU memory that a recipe and a model need, whatever a memory plan chooses.

Play and learning take turns. Both hold the weights, their float32 masters, the optimizer state and
the KL reference, and the models of opponents (copies of a league, other models). Learning also
holds gradients and activations. Play also holds the key/value pools of the agent and of these
models; they are freed for learning unless there is room for both. Without training (`mage
evaluate`, `mage play`, exports) there is neither optimizer state nor a reference nor a learning
phase, and a checkpoint has masters only while it is loaded.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from mage.config.describe import engine_option
from mage.config.recipe import Recipe
from mage.config.sections import EngineChoice
from mage.models.base import base_of
from mage.models.shapes import ModelShape, check_cache, read_shape
from mage.opponents.base import find, population_of
from mage.training.rivals import find_rival, rival_names

GB = 1e9
# What a plan is for: a training, its warm-up, which rank 0 does alone and so divides nothing, play
# with a checkpoint, or play with the model as it is.
Use = Literal["train", "warmup", "checkpoint", "model"]
_USABLE = 0.94  # the share of a card's memory that a run can use; fragmentation takes the rest
_CUDA_CONTEXT = 1.0 * GB  # taken by CUDA itself, of the usable share
# LOGITS_AT_ONCE["cuda"] of mage.learn.token_logprobs; importing it would load torch.
_LOGITS_AT_ONCE = 2**28
_ENGINE_BUFFERS = 0.5 * GB  # CUDA graphs and small tensors of an engine; an allowance

_SUM_BYTES = 4  # sums of gradients and masters are float32
_MOMENT_BYTES = 8  # AdamW: two float32 moments per trained number
_LOGIT_BYTES = 8  # a logit and its gradient, each in float32 at most
_HEAD_GRADIENT_BYTES = 6  # per weight: the float32 sum, and the half-precision product of one piece
# A layer in its backward pass holds its activations and gradients of some of them. With a factor of
# 1.7 the plan is within 7 % of six peaks measured with recompute on an H200
# (tests/test_memory_plan.py).
_LAYER_PEAK = 1.7
# Stored activations without recompute: 15 % more than `ModelShape.layer_values` counts. This is an
# estimate that no GPU has confirmed.
_STORED_EXTRA = 1.15


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is planned: a recipe and a model on `ranks` cards with `memory` bytes for each rank.

    `card` has the bytes of the whole card, if other programs or ranks use it too.
    """

    recipe: Recipe
    shape: ModelShape
    memory: float
    half_precision: bool
    ranks: int
    use: Use = "train"
    card: float | None = None

    @property
    def learns(self) -> bool:
        """Whether there is a learning phase."""
        return self.use in ("train", "warmup")

    @property
    def value_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return 2 if self.half_precision else 4

    @property
    def sharers(self) -> int:
        """The ranks among which learn.shard divides."""
        return self.ranks if self.use == "train" else 1


class BackwardPeak(NamedTuple):
    """Bytes that the backward pass adds to those of both phases, at one of its peaks."""

    gradients: float
    activations: float

    @property
    def total(self) -> float:
        return self.gradients + self.activations


@dataclass(frozen=True, slots=True)
class FixedBytes:
    """Bytes of one rank that do not depend on the choices of a plan."""

    # The model and its card.
    shape: ModelShape
    value_bytes: int
    lora_rank: int
    usable: float
    # Held in play and in learning.
    weights: float
    masters: float  # copies beside the weights that play, see `_whole_masters`
    optimizer: float
    reference: float
    engine_share: float  # of an engine with its own weights and pool (vLLM), otherwise 0
    league_copies: int  # frozen copies of a league that play at once, each in an engine of its own
    bytes_per_league_copy: float
    rivals: float  # models as opponents: weights, and engines besides their pools
    loaded_masters: float  # held while a checkpoint is loaded for play, before there is a pool
    # Held in learning only.
    gradient_sums: float  # over all micro-batches of a step
    micro_batch_gradients: float  # of one micro-batch; the backward pass makes them layer by layer
    learns: bool  # False: nothing is trained, so there is no learning phase
    records: bool  # learning uses CUDA graphs of the layers, which keep their activations
    # Held in play only.
    engine_bytes: float  # one engine besides its pool
    bytes_per_slot: float  # one conversation in a key/value pool
    rival_bytes_per_slot: float  # one conversation in the pools of all models as opponents

    @property
    def both_phases(self) -> float:
        """Held in play and in learning."""
        own = self.weights + self.masters + self.optimizer + self.reference
        copies = self.league_copies * self.bytes_per_league_copy
        return own + self.engine_share + copies + self.rivals

    @property
    def engines(self) -> float:
        """Engines besides their pools, in play: the agent's and one per copy of a league.

        Those of models as opponents are counted in both phases, in `rivals`.
        """
        return (1 + self.league_copies) * self.engine_bytes

    @property
    def bytes_per_slot_of_all(self) -> float:
        """One conversation in the pools of all engines."""
        return (1 + self.league_copies) * self.bytes_per_slot + self.rival_bytes_per_slot

    def pool(self, slots: int) -> float:
        """The key/value pools of all engines; one slot of each is spare."""
        return (slots + 1) * self.bytes_per_slot_of_all

    def backward_peak(self, *, recompute: bool, tokens: int) -> BackwardPeak:
        """The peak of learning that needs most, with micro-batches of `tokens` tokens.

        At the start of the backward pass there are all stored activations and the logits, but no
        gradients of this micro-batch yet. At its end there are all gradients and one layer.
        Halfway, half of the layers have gradients and half of the activations are left.
        """
        if not self.learns:
            return BackwardPeak(0.0, 0.0)
        shape, sums, gradients = self.shape, self.gradient_sums, self.micro_batch_gradients
        layer = float(tokens * shape.layer_values * self.value_bytes)
        stored = float(tokens * shape.hidden * shape.layers * self.value_bytes)  # inputs of layers
        if not recompute:
            stored += _STORED_EXTRA * layer * shape.layers
        head = 0 if self.lora_rank else shape.embedding_weights * _HEAD_GRADIENT_BYTES
        logits = _LOGITS_AT_ONCE * _LOGIT_BYTES + head
        start = BackwardPeak(sums, stored + logits)
        halfway = BackwardPeak(sums + 0.5 * gradients, 0.5 * stored + _LAYER_PEAK * layer)
        end = BackwardPeak(sums + gradients, _LAYER_PEAK * layer)
        return max(start, halfway, end, key=lambda peak: peak.total)

    def learning_bytes(self, *, recompute: bool, tokens: int) -> float:
        """All that learning holds, with micro-batches of `tokens` tokens."""
        return self.both_phases + self.backward_peak(recompute=recompute, tokens=tokens).total


def fixed_bytes(request: PlanRequest) -> FixedBytes:
    """The bytes that the recipe and the model fix.

    vLLM holds its share of the whole card in both phases. A copy of a league has weights and
    masters, but neither optimizer state nor gradients.
    """
    recipe, shape, value_bytes = request.recipe, request.shape, request.value_bytes
    learn, weights = recipe.learn, value_bytes * shape.parameters
    engine_share = (request.card or request.memory) * _engine_share(recipe)
    local = not engine_share
    return FixedBytes(
        shape=shape,
        value_bytes=value_bytes,
        lora_rank=learn.lora_rank,
        usable=request.memory * _USABLE - _CUDA_CONTEXT,
        weights=weights,
        masters=_masters(request) if request.use != "checkpoint" else 0,
        optimizer=_moments(request),
        reference=weights if learn.kl and request.learns and not learn.lora_rank else 0,
        engine_share=engine_share,
        league_copies=_league_copies(recipe) if request.learns else 0,
        bytes_per_league_copy=weights + _whole_masters(request) + engine_share,
        rivals=_rival_bytes(recipe, value_bytes, engine_share),
        loaded_masters=_masters(request) if request.use == "checkpoint" else 0,
        gradient_sums=_SUM_BYTES * _trained(request) / _gradient_sharers(request),
        micro_batch_gradients=_micro_batch_gradients(request),
        learns=request.learns,
        records=_records(request),
        engine_bytes=_engine_bytes(recipe, shape, value_bytes) if local else 0,
        bytes_per_slot=_slot_bytes(recipe, shape, value_bytes) if local else 0,
        rival_bytes_per_slot=_rival_slot_bytes(recipe, value_bytes) if local else 0,
    )


# -- training


def _state_sharers(request: PlanRequest) -> int:
    """The ranks that hold equal parts of the masters and of the optimizer state."""
    return 1 if request.recipe.learn.shard == "none" else request.sharers


def _gradient_sharers(request: PlanRequest) -> int:
    """The ranks that hold equal parts of the gradients."""
    return request.sharers if request.recipe.learn.shard == "full" else 1


def _trained(request: PlanRequest) -> int:
    """Numbers that the optimizer changes."""
    rank = request.recipe.learn.lora_rank
    return request.shape.lora_parameters(rank) if rank else request.shape.parameters


def _masters(request: PlanRequest) -> float:
    """Masters of one rank. learn.shard does not divide those of LoRA."""
    sharers = 1 if request.recipe.learn.lora_rank else _state_sharers(request)
    return _whole_masters(request) / sharers


def _whole_masters(request: PlanRequest) -> float:
    """Copies beside the weights that play, over all ranks.

    - All weights in half precision: a float32 master of every weight. In float32 the weights are
      their own masters, except with learn.shard = "full": the divided copy that is trained is then
      not the module that plays.
    - LoRA: the module that plays holds W = W0 + scale * B A. So W0 of the linear layers is kept in
      the format of the model, and A and B in float32 twice: now and as they were at the start.
    - An untrained model: none.
    """
    shape, rank = request.shape, request.recipe.learn.lora_rank
    if request.use == "model":
        return 0
    if rank:
        linear_weights = request.value_bytes * shape.layers * shape.linear_weights  # W0
        adapters = 2 * _SUM_BYTES * shape.lora_parameters(rank)  # now and at the start
        return linear_weights + adapters
    has_masters = request.half_precision or _gradient_sharers(request) > 1
    return _SUM_BYTES * shape.parameters if has_masters else 0


def _moments(request: PlanRequest) -> float:
    """The optimizer state."""
    return _MOMENT_BYTES * _trained(request) / _state_sharers(request) if request.learns else 0


def _micro_batch_gradients(request: PlanRequest) -> float:
    """Gradients of one micro-batch, before they are added to the float32 sums.

    - All weights: one gradient per weight in half precision. A float32 model adds into the sums
      directly: 0.
    - LoRA: the compiled layers (`shape.plain`) compute the gradients of A and B alone: 0. The
      modules of transformers compute that of W, from which those of A and B follow.
    """
    shape, value_bytes = request.shape, request.value_bytes
    if request.recipe.learn.lora_rank:
        return 0 if shape.plain else value_bytes * shape.layers * shape.linear_weights
    if not request.half_precision:
        return 0
    return value_bytes * shape.parameters / _gradient_sharers(request)


def _records(request: PlanRequest) -> bool:
    """Whether learn.graphs has an effect. A warm-up on random play computes forests, not tries."""
    recipe = request.recipe
    forests = request.use == "warmup" and recipe.warmup.play == "random"
    return request.learns and recipe.learn.graphs and request.shape.plain and not forests


# -- engines


def planned_option(recipe: Recipe, name: str) -> Any:
    """An option of the engine, or its default. An engine without the option is taken as local."""
    own = engine_option(recipe.engines, name)
    return engine_option(EngineChoice(name="local"), name) if own is None else own


def _engine_bytes(recipe: Recipe, shape: ModelShape, value_bytes: int) -> float:
    """Memory of a local engine besides its pool."""
    prefill = 2 * planned_option(recipe, "max_batch_tokens") * shape.layer_values * value_bytes
    return float(prefill + _ENGINE_BUFFERS)


def _slot_bytes(recipe: Recipe, shape: ModelShape, value_bytes: int) -> float:
    """One conversation in the pool of a local engine."""
    return float(planned_option(recipe, "context")) * _token_bytes(recipe, shape, value_bytes)


def _token_bytes(recipe: Recipe, shape: ModelShape, value_bytes: int) -> int:
    """Bytes of a token in a key/value pool; an int8 key or value of a head has a scale too."""
    cache = str(planned_option(recipe, "cache"))
    check_cache(cache, shape.parameters)
    if cache == "model":
        return shape.cached_values * value_bytes
    scales = 2 * shape.cached_values // shape.head_size if cache == "int8" else 0
    return shape.cached_values + scales


def _engine_share(recipe: Recipe) -> float:
    """The share of the GPU that the engine takes for its own weights and pool: engines.gpu_memory.

    0 for the local engine, which shares the weights of the learner.
    """
    return float(planned_option(recipe, "gpu_memory") or 0.0)


# -- opponents


def _rival_bytes(recipe: Recipe, value_bytes: int, engine_share: float) -> float:
    """What the models that are opponents hold: weights, and an engine besides its pool.

    An engine that takes a share of the card (`engine_share`) holds its pool in it.
    """
    return sum(
        value_bytes * shape.parameters + (engine_share or _engine_bytes(recipe, shape, value_bytes))
        for shape in _rival_shapes(recipe)
    )


def _rival_slot_bytes(recipe: Recipe, value_bytes: int) -> float:
    """One conversation in the pools of all models that are opponents, with local engines."""
    return sum(_slot_bytes(recipe, shape, value_bytes) for shape in _rival_shapes(recipe))


def _rival_shapes(recipe: Recipe) -> list[ModelShape]:
    """The shapes of the models that are opponents."""
    return [read_shape(base_of(find_rival(name))) for name in rival_names(recipe)]


def _league_copies(recipe: Recipe) -> int:
    """The frozen copies of a league that play at once; 0 without a league."""
    opponents = map(find, population_of(recipe).pool("train"))
    return max((one.copies_at_once() for one in opponents), default=0)
