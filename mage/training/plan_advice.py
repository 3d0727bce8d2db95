"""What would make a memory plan fit that does not. Every piece of advice was planned and fits."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mage.config.errors import ConfigError, UserError
from mage.config.loading import change_recipe
from mage.config.recipe import Recipe
from mage.config.sections import EngineChoice
from mage.models.shapes import PRESETS
from mage.training.memory_bytes import GB, PlanRequest, planned_option
from mage.training.memory_plan import LEAST_SLOTS, Choices, MemoryPlan, plan_request

_CARDS = (16, 24, 32, 40, 48, 80, 96, 141, 180, 288)  # GB of common cards
_COUNTS = (2, 4, 8, 16, 32, 64)
_SHARDS = ("optimizer", "full")
_ADAPTERS: tuple[str, ...] = ("--learn.lora_rank=16",)
_MOST = 3  # combinations of options that are shown


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that makes a plan fit; `words` are those of `mage plan`."""

    title: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.title}: {' '.join(self.words)}"


def advice(plan: MemoryPlan) -> list[Advice]:
    """What would make a plan fit; empty if it fits, or if nothing that was tried fits."""
    if plan.fits:
        return []
    request = plan.request
    options = _options(request)
    more_cards = request.use == "train" and not (options and request.ranks > 1)
    more = _more_cards(request) if more_cards else ()
    return [*options, *more, *_larger_card(request), *_smaller(request)]


def _options(request: PlanRequest) -> list[Advice]:
    """Single options of the recipe; if none is enough, two together, then three."""
    known = _changes(request)
    for count in (1, 2, 3):
        found: dict[str, Advice] = {}  # by title: of several sizes of a change, the smallest change
        for chosen in itertools.combinations(known, count):
            title = " and ".join(one.title for one in chosen)
            words = tuple(word for one in chosen for word in one.words)
            if _fits_with(request, words):
                found.setdefault(title, Advice(title, words))
        if found:
            return list(found.values())[:_MOST]
    return []


def _changes(request: PlanRequest) -> list[Advice]:
    """The options that save memory in this recipe."""
    recipe = request.recipe
    found = _learning_changes(recipe, request.sharers) if request.learns else []
    is_fixed = request.use == "warmup" and recipe.warmup.play == "random"  # always float32
    if recipe.model.dtype == "float32" and not is_fixed:
        found.append(Advice("half precision", ("--model.dtype=bfloat16",)))
    # A prompt needs room beside the longest reply. A run checks this before it starts.
    context = int(planned_option(recipe, "context"))
    shorter = (context // 2 // 256 * 256, context // 4 // 256 * 256)
    return found + [
        Advice("a shorter context", (f"--engines.context={size}",))
        for size in shorter
        if size >= 2 * recipe.agent.max_tokens and "context" in recipe.engines.options
    ]


def _learning_changes(recipe: Recipe, ranks: int) -> list[Advice]:
    learn, found = recipe.learn, list[Advice]()
    if not learn.lora_rank:
        found.append(Advice("train adapters", _ADAPTERS))
    if ranks > 1:
        found += [
            Advice(f"divide the {what} among the cards", (f"--learn.shard={name}",))
            for name, what in zip(_SHARDS, ("optimizer state", "training state"), strict=True)
            if name != learn.shard and learn.shard != "full"
        ]
    if learn.recompute is False:
        found.append(Advice("recompute activations", ("--learn.recompute=true",)))
    if learn.graphs:
        found.append(Advice("no CUDA graphs of layers", ("--learn.graphs=false",)))
    if learn.micro_tokens is not None:
        found.append(Advice("smaller micro-batches", ("--learn.micro_tokens=2048",)))
    return found


def _fits_with(request: PlanRequest, words: Sequence[str]) -> bool:
    keys = [word.partition("=")[0] for word in words]
    if len(set(keys)) < len(keys):
        return False
    try:
        recipe = change_recipe(request.recipe, words)
    except ConfigError:  # for example adapters with learn.shard = "full"
        return False
    half = recipe.model.dtype != "float32"
    return plan_request(replace(request, recipe=recipe, half_precision=half)).fits


def _more_cards(request: PlanRequest) -> Iterator[Advice]:
    """The smallest number of cards at which dividing the state is enough."""
    for count, shard in itertools.product(_COUNTS, _SHARDS):
        words = (f"--learn.shard={shard}",)
        if count > request.ranks and _fits_with(replace(request, ranks=count), words):
            yield Advice(f"{count} cards, one rank each", ("--gpus", str(count), *words))
            return


def _larger_card(request: PlanRequest) -> Iterator[Advice]:
    """The smallest card at which the recipe fits, and with adapters, if they need a larger one."""
    if card := _smallest_card(request, ()):
        yield Advice(f"cards with {card} GB", ("--gpu-memory", str(card)))
    if not request.learns or request.recipe.learn.lora_rank or _fits_with(request, _ADAPTERS):
        return
    if card := _smallest_card(request, _ADAPTERS):
        title = f"train adapters on cards with {card} GB"
        yield Advice(title, (*_ADAPTERS, "--gpu-memory", str(card)))


def _smallest_card(request: PlanRequest, words: Sequence[str]) -> int | None:
    """The GB of the smallest card above the present one at which the recipe fits."""
    larger = (card for card in _CARDS if card * GB > request.memory)
    on_card = replace(request, card=None)
    return next((n for n in larger if _fits_with(replace(on_card, memory=n * GB), words)), None)


def _smaller(request: PlanRequest) -> Iterator[Advice]:
    """The largest preset shape below the present one that fits."""
    sizes = sorted(PRESETS.items(), key=lambda item: item[1].parameters, reverse=True)
    for name, shape in sizes:
        smaller = shape.parameters < 0.9 * request.shape.parameters
        if smaller and plan_request(replace(request, shape=shape)).fits:
            yield Advice("a smaller model", ("--model", name))
            return


def explain_misfit(plan: MemoryPlan) -> str:
    """The message for a run that does not fit."""
    least = replace(plan, slots=max(plan.slots, LEAST_SLOTS))
    needed, there = math.ceil(10 * least.peak / GB) / 10, math.floor(10 * plan.usable / GB) / 10
    ways = [f"  {one}" for one in advice(plan)]
    told = ["What would make it fit:", *ways] if ways else ["No change that was tried fits."]
    use = plan.request.use
    whose = {"train": "the run", "warmup": "the warm-up"}.get(use, "the agent")
    first = f"{whose} needs {needed:.1f} GB of GPU memory, but {there:.1f} GB can be used."
    more = ["`mage plan` shows every part."] if use == "train" else []
    return "\n".join([f"{first} {told[0]}", *told[1:], *more])


def apply_plan(recipe: Recipe, plan: MemoryPlan) -> Recipe:
    """The recipe with the choices of a plan; raises if the plan does not fit."""
    if not plan.fits:
        raise UserError(explain_misfit(plan))
    choices = plan.choices()
    if plan.fixed.engine_share:  # the engine has its own pool
        del choices["slots"]
    return with_choices(recipe, choices)


def with_choices(recipe: Recipe, choices: Choices) -> Recipe:
    """The recipe with these choices of a plan."""
    options, learn = dict(recipe.engines.options), dict(choices)
    if "slots" in choices:
        options["slots"] = learn.pop("slots")
    engine = EngineChoice(name=recipe.engines.name, **options)
    return recipe.model_copy(
        update={"learn": recipe.learn.model_copy(update=learn), "engines": engine}
    )
