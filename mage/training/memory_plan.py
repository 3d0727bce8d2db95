"""GPU memory of a run, planned before anything is loaded.

`memory_bytes.py` has what the recipe and the model fix. `MemoryPlan` adds the choices: the
key/value pools get what is left beside the parts of both phases, and recompute and the micro-batch
size are chosen so that learning fits.
"""

from dataclasses import dataclass

from mage.config.recipe import Recipe
from mage.config.sections import LearnOptions
from mage.models.shapes import ModelShape
from mage.training.memory_bytes import GB, FixedBytes, PlanRequest, Use, fixed_bytes, planned_option

# Candidates in order of speed: (recompute, tokens of a micro-batch).
_CANDIDATES = (
    (False, 16384), (False, 8192), (True, 16384), (False, 4096), (True, 8192), (True, 4096),
    (True, 2048),
)  # fmt: skip
_SIZES = tuple(sorted({tokens for _, tokens in _CANDIDATES}, reverse=True))
# A model of 4 B learned as fast with 8,192 tokens as with 16,384 (an H200, LoRA), which took twice
# the memory for activations and brought the card to its limit.
_LARGE, _ENOUGH = 2 * 10**9, 8192  # parameters, tokens
LEAST_SLOTS = 2
Choices = dict[str, int | bool]  # of a plan: slots, micro_tokens, recompute


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
    def recorded(self) -> float:
        """Activations in the CUDA graphs of learn.graphs, in both phases."""
        return _recorded(self.fixed, self.micro_tokens)

    @property
    def playing_bytes(self) -> float:
        return self.fixed.both_phases + self.recorded + self.fixed.engines + self.pool

    @property
    def learning_bytes(self) -> float:
        needed = self.fixed.learning_bytes(recompute=self.recompute, tokens=self.micro_tokens)
        return needed + self.recorded

    @property
    def peak(self) -> float:
        loading = self.fixed.both_phases + self.fixed.loaded_masters
        return max(self.playing_bytes, self.learning_bytes, loading)

    @property
    def keeps_pool(self) -> bool:
        """Whether learning fits beside all that play holds, so that nothing has to be freed."""
        twice = self.fixed.both_phases + self.recorded
        return self.playing_bytes + self.learning_bytes - twice <= self.usable

    @property
    def fits(self) -> bool:
        return self.peak <= self.usable and self.slots >= LEAST_SLOTS

    def choices(self) -> Choices:
        return {
            "slots": self.slots,
            "micro_tokens": self.micro_tokens,
            "recompute": self.recompute,
        }

    def parts(self) -> dict[str, float]:
        """Gigabytes of every part, in the order of the table."""
        fixed = self.fixed
        peak = fixed.backward_peak(recompute=self.recompute, tokens=self.micro_tokens)
        sampler = {"sampler": fixed.engine_share / GB} if fixed.engine_share else {}
        copies = fixed.league_copies * fixed.bytes_per_league_copy
        return {
            "weights": fixed.weights / GB,
            "masters": fixed.masters / GB,
            "optimizer": fixed.optimizer / GB,
            "KL reference": fixed.reference / GB,
            "gradients": peak.gradients / GB,
            "activations": peak.activations / GB,
            "engine": fixed.engines / GB,
            "key/value pool": self.pool / GB,
            **sampler,
            **({"recorded layers": self.recorded / GB} if self.recorded else {}),
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
    recipe, fixed = request.recipe, fixed_bytes(request)
    recompute, micro_tokens, learn_reasons = _choose_learning(fixed, recipe.learn)
    slots, slots_reason = _choose_slots(fixed, recipe, _recorded(fixed, micro_tokens))
    return MemoryPlan(
        request, fixed, recompute, micro_tokens, slots, (*learn_reasons, slots_reason)
    )


def _choose_learning(fixed: FixedBytes, learn: LearnOptions) -> tuple[bool, int, list[str]]:
    """Recompute, tokens of a micro-batch, and the reasons: as given, else the fastest that fits."""
    candidates = _candidates(learn, fixed)
    fitting = (
        (recompute, tokens)
        for recompute, tokens in candidates
        if fixed.learning_bytes(recompute=recompute, tokens=tokens) + _recorded(fixed, tokens)
        <= fixed.usable
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


def _candidates(learn: LearnOptions, fixed: FixedBytes) -> list[tuple[bool, int]]:
    """What the recipe allows, in order of speed; the last one needs the least memory."""
    most = _ENOUGH if fixed.shape.parameters >= _LARGE else _SIZES[0]
    given_recompute = False if fixed.records else learn.recompute  # graphs keep the activations
    if given_recompute is None and learn.micro_tokens is None:
        return [(recompute, tokens) for recompute, tokens in _CANDIDATES if tokens <= most]
    given, sizes = learn.micro_tokens, [tokens for tokens in _SIZES if tokens <= most]
    return [
        (recompute, tokens)
        for recompute in ((False, True) if given_recompute is None else (given_recompute,))
        for tokens in (sizes if given is None else [given])
    ]


def _recorded(fixed: FixedBytes, tokens: int) -> float:
    """Activations that CUDA graphs keep, beside those of a length that is computed first."""
    peak = fixed.backward_peak(recompute=False, tokens=tokens)
    return peak.activations if fixed.records else 0.0


def _choose_slots(fixed: FixedBytes, recipe: Recipe, recorded: float) -> tuple[int, str]:
    """The conversations that are played at once, and the reason."""
    asked = int(planned_option(recipe, "slots"))
    if fixed.engine_share:
        return asked, f"the engine holds {fixed.engine_share / GB:.0f} GB (engines.gpu_memory)"
    groups, members = recipe.play.groups, recipe.play.members
    needed = min(asked, groups * members)
    room = fixed.usable - fixed.both_phases - recorded - fixed.engines  # of all pools
    slots = max(0, min(needed, int(room // fixed.bytes_per_slot_of_all) - 1))
    if slots < needed:
        reason = f"{slots} of {needed} slots fit; play runs {slots} conversations at a time"
        return slots, reason + _shorter_context(fixed, recipe, needed, room)
    if slots == asked < groups * members:
        return slots, f"{slots} slots, as in engines.slots"
    return slots, f"{slots} slots: one for each of the {groups} x {members} meta-episodes"


def _shorter_context(fixed: FixedBytes, recipe: Recipe, needed: int, room: float) -> str:
    """The context at which all slots would fit; empty if not even a reply would fit into it."""
    bytes_per_token = fixed.bytes_per_slot_of_all / planned_option(recipe, "context")
    fitting = int(room // (needed + 1) / bytes_per_token) // 256 * 256
    if fitting < 2 * recipe.agent.max_tokens:
        return ""
    return f" (all {needed} with engines.context = {fitting})"
