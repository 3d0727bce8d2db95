"""GPU memory of a run, planned before anything is loaded.

Play and learning take turns. Both hold the weights, their float32 masters, the optimizer state and
the KL reference, and the models of opponents (copies of a league, other models). Learning also
holds gradients and activations. Play also holds the key/value pools of the agent and of these
models, which are freed during learning. So the pools get what is left beside the parts of both
phases, and recompute and the micro-batch size are chosen so that learning fits. Without training
(`mage evaluate`, `mage play`, exports) there is neither optimizer state nor a reference nor a
learning phase.

`FixedBytes` has what the recipe and the model fix. `MemoryPlan` adds the choices.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from mage.config.describe import engine_option
from mage.config.recipe import Recipe
from mage.config.sections import EngineChoice, LearnOptions
from mage.models.base import base_of
from mage.models.shapes import ModelShape, check_cache, read_shape
from mage.opponents.base import find, population_of
from mage.training.rivals import find_rival, rival_names

GB = 1e9
# What a plan is for: a training, its warm-up, which rank 0 does alone and so divides nothing, play
# with a checkpoint, or play with the model as it is.
Use = Literal["train", "warmup", "checkpoint", "model"]
# A card's memory that a run can use: the CUDA context and fragmentation take the rest.
_USABLE, _CONTEXT = 0.94, 1.0 * GB
# Candidates in order of speed: (recompute, tokens of a micro-batch).
_CANDIDATES = (
    (False, 16384), (False, 8192), (True, 16384), (False, 4096), (True, 8192), (True, 4096),
    (True, 2048),
)  # fmt: skip
_SIZES = tuple(sorted({tokens for _, tokens in _CANDIDATES}, reverse=True))
# LOGITS_AT_ONCE["cuda"] of mage.learn.token_logprobs; importing it would load torch.
_LOGITS_AT_ONCE = 2**28
_ENGINE_BUFFERS = 0.5 * GB  # CUDA graphs and small tensors of an engine; an allowance
LEAST_SLOTS = 2

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


class BackwardPeak(NamedTuple):
    """Bytes that the backward pass adds to those of both phases, at one of its peaks."""

    gradients: float
    activations: float


@dataclass(frozen=True, slots=True)
class FixedBytes:
    """Bytes of one rank that do not depend on the choices of a plan."""

    shape: ModelShape
    value_bytes: int  # of one weight or activation: 2 in half precision, otherwise 4
    lora_rank: int
    usable: float
    weights: float
    copies_of_weights: float  # float32 masters; with LoRA mostly the weights without adapters
    optimizer: float
    reference: float
    gradient_sums: float  # over all micro-batches of a step
    micro_batch_gradients: float  # of one micro-batch; the backward pass makes them layer by layer
    engine_bytes: float  # one engine besides its pool
    bytes_per_slot: float  # one conversation in a key/value pool
    sampler: float  # an engine with its own weights and pool (vLLM)
    copies: int  # frozen copies of a league that play at once, each in an engine of its own
    bytes_per_copy: float  # what one of them holds in both phases
    rivals: float  # models as opponents: what they hold in both phases
    rival_bytes_per_slot: float  # one conversation in all their key/value pools
    learns: bool  # False: nothing is trained, so there is no learning phase

    @property
    def both_phases(self) -> float:
        """Held in play and in learning."""
        own = self.weights + self.copies_of_weights + self.optimizer + self.reference
        return own + self.sampler + self.copies * self.bytes_per_copy + self.rivals

    @property
    def engines(self) -> float:
        """Memory of the engines besides their pools: the agent's and one for each copy."""
        return (1 + self.copies) * self.engine_bytes

    def pool(self, slots: int) -> float:
        """The key/value pools of all engines; one slot of each is spare."""
        return (slots + 1) * self.bytes_in_all_pools

    @property
    def bytes_in_all_pools(self) -> float:
        """One conversation in the pools of all engines."""
        return (1 + self.copies) * self.bytes_per_slot + self.rival_bytes_per_slot

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
        return max(start, halfway, end, key=sum)

    def learning_bytes(self, *, recompute: bool, tokens: int) -> float:
        """All that learning holds, with micro-batches of `tokens` tokens."""
        return self.both_phases + sum(self.backward_peak(recompute=recompute, tokens=tokens))


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is planned: a recipe and a model on `ranks` cards of `memory` bytes each."""

    recipe: Recipe
    shape: ModelShape
    memory: float
    half_precision: bool
    ranks: int
    use: Use = "train"

    @property
    def learns(self) -> bool:
        """Whether there is a learning phase."""
        return self.use in ("train", "warmup")

    @property
    def sharers(self) -> int:
        """The ranks among which learn.shard divides."""
        return self.ranks if self.use == "train" else 1


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What was chosen, why, and the bytes that follow."""

    request: PlanRequest
    fixed: FixedBytes
    recompute: bool
    micro_tokens: int
    slots: int
    reasons: tuple[str, ...]

    @property
    def shape(self) -> ModelShape:
        return self.fixed.shape

    @property
    def usable(self) -> float:
        return self.fixed.usable

    @property
    def pool(self) -> float:
        return self.fixed.pool(self.slots)

    @property
    def playing_bytes(self) -> float:
        return self.fixed.both_phases + self.fixed.engines + self.pool

    @property
    def learning_bytes(self) -> float:
        return self.fixed.learning_bytes(recompute=self.recompute, tokens=self.micro_tokens)

    @property
    def peak(self) -> float:
        return max(self.playing_bytes, self.learning_bytes)

    @property
    def fits(self) -> bool:
        return self.peak <= self.usable and self.slots >= LEAST_SLOTS

    def parts(self) -> dict[str, float]:
        """Gigabytes of every part, in the order of the table."""
        fixed = self.fixed
        peak = fixed.backward_peak(recompute=self.recompute, tokens=self.micro_tokens)
        sampler = {"sampler": fixed.sampler / GB} if fixed.sampler else {}
        copies = fixed.copies * fixed.bytes_per_copy
        return {
            "weights": fixed.weights / GB,
            "masters": fixed.copies_of_weights / GB,
            "optimizer": fixed.optimizer / GB,
            "KL reference": fixed.reference / GB,
            "gradients": peak.gradients / GB,
            "activations": peak.activations / GB,
            "engine": fixed.engines / GB,
            "key/value pool": self.pool / GB,
            **sampler,
            **({"league copies": copies / GB} if copies else {}),
            **({"opponent models": fixed.rivals / GB} if fixed.rivals else {}),
        }


def plan_memory(
    recipe: Recipe,
    shape: ModelShape,
    memory: float,
    *,
    half_precision: bool = True,
    ranks: int | None = None,
    use: Use = "train",
) -> MemoryPlan:
    """The plan of a recipe for a card of `memory` bytes; `ranks` is run.workers by default."""
    return plan_request(
        PlanRequest(recipe, shape, memory, half_precision, ranks or recipe.run.workers, use)
    )


def plan_request(request: PlanRequest) -> MemoryPlan:
    """The plan of a request: the choices that are fastest among those that fit."""
    recipe, fixed = request.recipe, _fixed_bytes(request)
    recompute, micro_tokens, learn_reasons = _choose_learning(fixed, recipe.learn)
    slots, slots_reason = _choose_slots(fixed, recipe)
    return MemoryPlan(
        request, fixed, recompute, micro_tokens, slots, (*learn_reasons, slots_reason)
    )


def _fixed_bytes(request: PlanRequest) -> FixedBytes:
    """The bytes that the recipe and the model fix.

    With learn.shard = "optimizer" every rank holds an equal part of masters and optimizer state,
    with "full" also of the gradients. vLLM holds its share of the card in both phases. A copy of a
    league has weights and masters, but neither optimizer state nor gradients.
    """
    recipe, shape, memory = request.recipe, request.shape, request.memory
    learns, value_bytes = request.learns, 2 if request.half_precision else 4
    learn = recipe.learn
    adapters = bool(learn.lora_rank)
    sharers = 1 if learn.shard == "none" else request.sharers
    gradient_sharers = request.sharers if learn.shard == "full" else 1
    weights = value_bytes * shape.parameters
    weight_copies = 0.0
    if request.use != "model":
        weight_copies = _copies_of_weights(shape, learn, value_bytes, gradient_sharers > 1)
    sampler = memory * sampler_share(recipe)
    local = not sampler
    return FixedBytes(
        shape=shape,
        value_bytes=value_bytes,
        lora_rank=learn.lora_rank,
        usable=memory * _USABLE - _CONTEXT,
        weights=weights,
        copies_of_weights=weight_copies / (1 if adapters else sharers),
        optimizer=_MOMENT_BYTES * _trained(shape, learn) / sharers if learns else 0,
        reference=weights if learn.kl and learns and not adapters else 0,
        gradient_sums=_SUM_BYTES * _trained(shape, learn) / gradient_sharers,
        micro_batch_gradients=_micro_batch_gradients(shape, learn, value_bytes) / gradient_sharers,
        engine_bytes=_engine_bytes(recipe, shape, value_bytes) if local else 0,
        bytes_per_slot=_slot_bytes(recipe, shape, value_bytes) if local else 0,
        sampler=sampler,
        copies=_league_copies(recipe) if learns else 0,
        bytes_per_copy=weights + weight_copies + sampler,
        rivals=_rival_bytes(recipe, value_bytes, sampler),
        rival_bytes_per_slot=_rival_slot_bytes(recipe, value_bytes) if local else 0,
        learns=learns,
    )


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
    """Bytes of a token in a key/value pool; in 8 bits a key or value of a head has a scale too."""
    cache = str(planned_option(recipe, "cache"))
    check_cache(cache, shape.parameters)
    if cache == "int8":
        return shape.cached_values + 2 * shape.cached_values // shape.head_size
    return shape.cached_values * value_bytes


def sampler_share(recipe: Recipe) -> float:
    """The share of the GPU that the engine takes for its own weights and pool: engines.gpu_memory.

    0 for the local engine, which shares the weights of the learner.
    """
    return float(planned_option(recipe, "gpu_memory") or 0.0)


def _rival_bytes(recipe: Recipe, value_bytes: int, sampler: float) -> float:
    """What the models that are opponents hold: weights, and an engine besides its pool.

    An engine that takes a share of the card (`sampler`) holds its pool in it.
    """
    return sum(
        value_bytes * shape.parameters + (sampler or _engine_bytes(recipe, shape, value_bytes))
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


def _trained(shape: ModelShape, learn: LearnOptions) -> int:
    """Numbers that the optimizer changes."""
    return shape.lora_parameters(learn.lora_rank) if learn.lora_rank else shape.parameters


def _copies_of_weights(
    shape: ModelShape, learn: LearnOptions, value_bytes: int, fully_sharded: bool
) -> float:
    """Float32 masters of half-precision weights; with LoRA the weights before A and B, and A, B.

    A fully sharded model has masters in float32 too, because the module that plays stays whole.
    """
    if learn.lora_rank:
        adapters = 2 * _SUM_BYTES * shape.lora_parameters(learn.lora_rank)  # now and at the start
        return value_bytes * shape.layers * shape.linear_weights + adapters
    return _SUM_BYTES * shape.parameters if value_bytes == 2 or fully_sharded else 0


def _micro_batch_gradients(shape: ModelShape, learn: LearnOptions, value_bytes: int) -> int:
    """Gradients of one micro-batch before they are added to the sums.

    A float32 model sums in place. The compiled layers give A and B of LoRA their gradient; other
    layers compute that of W.
    """
    if learn.lora_rank:
        return 0 if shape.plain else value_bytes * shape.layers * shape.linear_weights
    return value_bytes * shape.parameters if value_bytes == 2 else 0


def _choose_learning(fixed: FixedBytes, learn: LearnOptions) -> tuple[bool, int, list[str]]:
    """Recompute, tokens of a micro-batch, and the reasons: as given, else the fastest that fits."""
    candidates = _candidates(learn)
    fitting = (
        (recompute, tokens)
        for recompute, tokens in candidates
        if fixed.learning_bytes(recompute=recompute, tokens=tokens) <= fixed.usable
    )
    found = next(fitting, None)
    recompute, tokens = found or candidates[-1]
    reasons = [
        f"learn.{name} is given by the recipe"
        for name in ("recompute", "micro_tokens")
        if getattr(learn, name) is not None
    ]
    if len(reasons) < 2:
        reasons.append("the fastest way to learn that fits" if found else "nothing fits")
    return recompute, tokens, reasons


def _candidates(learn: LearnOptions) -> list[tuple[bool, int]]:
    """What the recipe allows, in order of speed; the last one needs the least memory."""
    if learn.recompute is None and learn.micro_tokens is None:
        return list(_CANDIDATES)
    return [
        (recompute, tokens)
        for recompute in ((False, True) if learn.recompute is None else (learn.recompute,))
        for tokens in (_SIZES if learn.micro_tokens is None else (learn.micro_tokens,))
    ]


def _choose_slots(fixed: FixedBytes, recipe: Recipe) -> tuple[int, str]:
    """The conversations that are played at once, and the reason."""
    asked = int(planned_option(recipe, "slots"))
    if fixed.sampler:
        return asked, f"the engine holds {fixed.sampler / GB:.0f} GB (engines.gpu_memory)"
    groups, members = recipe.play.groups, recipe.play.members
    needed = min(asked, groups * members)
    room = fixed.usable - fixed.both_phases - fixed.engines  # of all pools
    slots = max(0, min(needed, int(room // fixed.bytes_in_all_pools) - 1))
    if slots < needed:
        reason = f"{slots} of {needed} slots fit; play runs {slots} conversations at a time"
        return slots, reason + _shorter_context(fixed, recipe, needed, room)
    if slots == asked < groups * members:
        return slots, f"{slots} slots, as in engines.slots"
    return slots, f"{slots} slots: one for each of the {groups} x {members} meta-episodes"


def _shorter_context(fixed: FixedBytes, recipe: Recipe, needed: int, room: float) -> str:
    """The context at which all slots would fit; empty if not even a reply would fit into it."""
    bytes_per_token = fixed.bytes_in_all_pools / planned_option(recipe, "context")
    fitting = int(room // (needed + 1) / bytes_per_token) // 256 * 256
    if fitting < 2 * recipe.agent.max_tokens:
        return ""
    return f" (all {needed} with engines.context = {fitting})"
