"""GPU memory of a training run, planned before anything is loaded.

Play and learning take turns. Both hold the weights, their float32 masters, the optimizer state and
the KL reference, and the models of a league's copies. Learning also holds gradients and
activations. Play also holds the key/value pools of the agent and of the copies, which are freed
during learning. So the pools get what is left beside the static parts, and recompute and the
micro-batch size are chosen so that learning fits.
"""

from dataclasses import dataclass, replace

from mage.config.errors import UserError
from mage.config.menus import engine_fields
from mage.config.recipe import Recipe
from mage.config.sections import EngineChoice, LearnOptions
from mage.models.shapes import ModelShape
from mage.opponents.base import find, population_of

GB = 1e9
# A card's memory that a run can use: the CUDA context and fragmentation take the rest.
_USABLE, _CONTEXT = 0.94, 1.0 * GB
# Candidates in order of speed: (recompute, tokens of a micro-batch).
_WAYS = (
    (False, 16384), (False, 8192), (True, 16384), (False, 4096), (True, 8192), (True, 4096),
    (True, 2048),
)  # fmt: skip
_LOGITS_AT_ONCE = 2**28  # as in mage.learn.loss on CUDA
_PREFILL_TOKENS = 8192  # as in mage.engines.local
_LEAST_SLOTS = 2
# Measured on an H200 (docs/log): share of the bfloat16 peak that an update with recompute reaches.
_PEAK_OPERATIONS = 989e12
_UTILISATION = ((135e6, 0.10), (360e6, 0.18), (1.7e9, 0.33), (4e9, 0.34))
_READ_SPEED = 3.0e12  # bytes per second while decoding, measured at 4 B


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of every part, what was chosen, and why."""

    shape: ModelShape
    usable: float
    weights: float
    masters: float
    optimizer: float
    reference: float
    gradients: float
    activations: float
    engine: float
    slot: float
    slots: int
    slots_asked: int
    micro_tokens: int
    recompute: bool
    lora_rank: int
    reasons: tuple[str, ...]
    sampler: float = 0  # an engine with its own weights and pool (vLLM)
    copies: int = 0  # frozen copies of a league that play at once, each in an engine of its own
    copy: float = 0  # what one of them holds in both phases

    @property
    def static(self) -> float:
        """Held in both phases."""
        own = self.weights + self.masters + self.optimizer + self.reference
        return own + self.sampler + self.copies * self.copy

    @property
    def engines(self) -> float:
        """Memory of the engines besides their pools: the agent's and one for each copy."""
        return (1 + self.copies) * self.engine

    @property
    def pool(self) -> float:
        """The key/value pools of all engines."""
        return (1 + self.copies) * (self.slots + 1) * self.slot  # one slot is spare

    @property
    def play(self) -> float:
        return self.static + self.engines + self.pool

    @property
    def learn(self) -> float:
        return self.static + self.gradients + self.activations

    @property
    def peak(self) -> float:
        return max(self.play, self.learn)

    @property
    def fits(self) -> bool:
        return self.peak <= self.usable and self.slots >= _LEAST_SLOTS

    def parts(self) -> dict[str, float]:
        """Gigabytes of every part, in the order of the table."""
        sampler = {"sampler": self.sampler / GB} if self.sampler else {}
        league = {"league copies": self.copies * self.copy / GB} if self.copies else {}
        return {
            "weights": self.weights / GB,
            "masters": self.masters / GB,
            "optimizer": self.optimizer / GB,
            "KL reference": self.reference / GB,
            "gradients": self.gradients / GB,
            "activations": self.activations / GB,
            "engine": self.engines / GB,
            "key/value pool": self.pool / GB,
            **sampler,
            **league,
        }

    def learned_tokens(self) -> float:
        """Computed tokens per second of learning, expected on an H200."""
        operations = 6 * (self.shape.parameters - self.shape.embedding_weights)
        speed = _utilisation(self.shape.parameters) * _PEAK_OPERATIONS / operations
        return speed if self.recompute else speed * 4 / 3

    def played_tokens(self) -> float:
        """Expected tokens per second of play on an H200, with a quarter of the context."""
        read = self.weights + self.slots * self.slot / 4
        return self.slots / (read / _READ_SPEED)


def plan_memory(
    recipe: Recipe,
    shape: ModelShape,
    memory: float,
    *,
    half_precision: bool = True,
    ranks: int | None = None,
) -> MemoryPlan:
    """The plan of a recipe for a card of `memory` bytes; `ranks` is run.workers by default.

    With learn.shard = "optimizer" every rank holds an equal part of masters and optimizer state,
    with "full" also of the gradients. vLLM holds its share of the card in both phases. A copy of a
    league has weights and masters, but neither optimizer state nor gradients.
    """
    learn = recipe.learn
    share = 1 if learn.shard == "none" else ranks or recipe.run.workers
    adapters = bool(learn.lora_rank)
    options = recipe.engines.options
    number = 2 if half_precision else 4
    slots, context = int(options.get("slots", 1024)), int(options.get("context", 2048))
    needed = min(slots, recipe.play.groups * recipe.play.members)
    sampler = memory * sampler_share(recipe)
    engine = 2 * _PREFILL_TOKENS * shape.layer_values * number + 0.5 * GB
    masters = _masters(shape, learn, number)
    plan = MemoryPlan(
        shape=shape,
        usable=memory * _USABLE - _CONTEXT,
        weights=number * shape.parameters,
        masters=masters / (1 if adapters else share),
        optimizer=8 * _trained(shape, learn) / share,
        reference=number * shape.parameters if learn.kl and not learn.lora_rank else 0,
        gradients=_gradients(shape, learn, number) / (share if learn.shard == "full" else 1),
        activations=0,
        engine=0 if sampler else engine,
        slot=0 if sampler else context * shape.cached_values * number,
        slots=needed,
        slots_asked=slots,
        micro_tokens=0,
        recompute=False,
        lora_rank=learn.lora_rank,
        reasons=(),
        sampler=sampler,
        copies=_copies(recipe),
        copy=number * shape.parameters + masters + sampler,
    )
    return _choose_slots(_choose_way(plan, learn, number), recipe)


def sampler_share(recipe: Recipe) -> float:
    """The share of the GPU that the engine takes for its own weights and pool: engines.gpu_memory.

    0 for the local engine, which shares the weights of the learner.
    """
    option = (engine_fields(recipe.engines.name) or {}).get("gpu_memory")
    return float(recipe.engines.options.get("gpu_memory", option.default)) if option else 0.0


def _copies(recipe: Recipe) -> int:
    """The frozen copies of a league that play at once; 0 without a league."""
    opponents = map(find, population_of(recipe).pool("train"))
    return max((one.copies_at_once() for one in opponents), default=0)


def _trained(shape: ModelShape, learn: LearnOptions) -> int:
    """Numbers that the optimizer changes."""
    return shape.lora_parameters(learn.lora_rank) if learn.lora_rank else shape.parameters


def _masters(shape: ModelShape, learn: LearnOptions, number: int) -> float:
    """Float32 copies of half-precision weights; with LoRA the weights without adapters and A, B."""
    if learn.lora_rank:
        adapters = 8 * shape.lora_parameters(learn.lora_rank)  # now and at the start
        return number * shape.layers * shape.linear_weights + adapters
    return 4 * shape.parameters if number == 2 else 0


def _gradients(shape: ModelShape, learn: LearnOptions, number: int) -> float:
    """Float32 sums of what is trained, and the gradients of one micro-batch."""
    if learn.lora_rank:
        return 4 * shape.lora_parameters(learn.lora_rank) + _ungraded(shape, number, lora=True)
    return (4 if number == 4 else 4 + number) * shape.parameters


def _ungraded(shape: ModelShape, number: int, *, lora: bool) -> int:
    """Gradients of weights in the module's precision, which do not exist before the backward pass.

    The compiled layers give A and B of LoRA their gradient; other layers compute that of W.
    """
    if lora:
        return 0 if shape.plain else number * shape.layers * shape.linear_weights
    return number * shape.parameters


def activation_bytes(
    shape: ModelShape, tokens: int, *, recompute: bool, lora: bool, number: int = 2
) -> float:
    """Activations of a micro-batch at the peak, minus what the gradients leave free there.

    The peak is either at the start of the backward pass (all stored activations and the logits,
    but no gradients of this micro-batch yet) or at its end (all gradients and one layer).
    """
    inside = tokens * shape.layer_values * number
    stored = float(tokens * shape.hidden * shape.layers * number)
    if not recompute:
        stored += 1.15 * inside * shape.layers
    logits = _LOGITS_AT_ONCE * 8 + (0 if lora else shape.embedding_weights * 6)
    ungraded = _ungraded(shape, number, lora=lora)
    at_start, at_end = stored + logits - ungraded, 1.7 * inside
    # Halfway, half of the layers have their gradients and half of the activations are left.
    halfway = 0.5 * stored - 0.5 * ungraded + 1.7 * inside
    return max(at_start, halfway, at_end)


def _choose_way(plan: MemoryPlan, learn: LearnOptions, number: int) -> MemoryPlan:
    """Recompute and micro-batch size: as given, else the fastest way that fits."""
    ways = [
        (recompute, tokens)
        for recompute in ((False, True) if learn.recompute is None else (learn.recompute,))
        for tokens in (_sizes() if learn.micro_tokens is None else (learn.micro_tokens,))
    ]
    if learn.recompute is None and learn.micro_tokens is None:
        ways = list(_WAYS)
    for recompute, tokens in ways:
        activations = activation_bytes(
            plan.shape, tokens, recompute=recompute, lora=bool(plan.lora_rank), number=number
        )
        plan = replace(plan, activations=activations, recompute=recompute, micro_tokens=tokens)
        if plan.learn <= plan.usable:
            break
    given = [
        f"learn.{name} is given by the recipe"
        for name in ("recompute", "micro_tokens")
        if getattr(learn, name) is not None
    ]
    reason = "the fastest way to learn that fits" if plan.learn <= plan.usable else "nothing fits"
    return replace(plan, reasons=(*given, *([reason] if len(given) < 2 else [])))


def _sizes() -> tuple[int, ...]:
    return tuple(sorted({tokens for _, tokens in _WAYS}, reverse=True))


def _choose_slots(plan: MemoryPlan, recipe: Recipe) -> MemoryPlan:
    if plan.sampler:
        reason = f"the engine holds {plan.sampler / GB:.0f} GB (engines.gpu_memory)"
        return replace(plan, slots=plan.slots_asked, reasons=(*plan.reasons, reason))
    room = (plan.usable - plan.static - plan.engines) / (1 + plan.copies)  # of one pool
    slots = max(0, min(plan.slots, int(room // plan.slot) - 1))
    groups, members = recipe.play.groups, recipe.play.members
    if slots < plan.slots:
        reason = f"{slots} of {plan.slots} slots fit; play runs {slots} conversations at a time"
        reason += _shorter_context(plan, recipe, room)
    else:
        reason = f"{slots} slots: one for each of the {groups} x {members} meta-episodes"
        if slots == plan.slots_asked < groups * members:
            reason = f"{slots} slots, as in engines.slots"
    return replace(plan, slots=slots, reasons=(*plan.reasons, reason))


def _shorter_context(plan: MemoryPlan, recipe: Recipe, room: float) -> str:
    """The context at which all slots would fit; empty if not even a reply would fit into it."""
    context = int(recipe.engines.options.get("context", 2048))
    fitting = int(room // (plan.slots + 1) * context / plan.slot) // 256 * 256
    if fitting < 2 * recipe.agent.max_tokens:
        return ""
    return f" (all {plan.slots} with engines.context = {fitting})"


def advice(plan: MemoryPlan) -> list[str]:
    """What would make a plan fit that does not."""
    if plan.fits:
        return []
    lines = []
    if not plan.lora_rank:
        lines.append("train adapters: --learn.lora_rank=16")
    if plan.learn > plan.usable:
        if not plan.recompute:
            lines.append("recompute activations: --learn.recompute=true")
        if plan.micro_tokens > _sizes()[-1]:
            lines.append(f"smaller micro-batches: --learn.micro_tokens={_sizes()[-1]}")
    elif plan.slots < _LEAST_SLOTS:
        lines.append("a shorter context: --engines.context")
    smallest = replace(plan, slots=_LEAST_SLOTS)
    card = (max(smallest.play, plan.learn) + _CONTEXT) / _USABLE / GB
    return [*lines, f"a card with {card:.0f} GB, or a smaller model"]


def apply_plan(recipe: Recipe, plan: MemoryPlan) -> Recipe:
    """The recipe with the choices of a plan; raises if the plan does not fit."""
    if not plan.fits:
        needed, there = plan.peak / GB, plan.usable / GB
        ways = "\n".join(f"  {line}" for line in advice(plan))
        raise UserError(
            f"the run needs {needed:.1f} GB of GPU memory, but {there:.1f} GB can be used. "
            f"What would make it fit:\n{ways}\n`mage plan` shows every part."
        )
    learn = {"micro_tokens": plan.micro_tokens, "recompute": plan.recompute}
    slots = {} if plan.sampler else {"slots": plan.slots}
    engine = EngineChoice(name=recipe.engines.name, **{**recipe.engines.options, **slots})
    return recipe.model_copy(
        update={"learn": recipe.learn.model_copy(update=learn), "engines": engine}
    )


def _utilisation(parameters: float) -> float:
    """Measured utilisation at the nearest model size."""
    return min(_UTILISATION, key=lambda point: abs(point[0] - parameters))[1]
