"""What a reproduction with a real model costs: tokens and GPU-hours. An estimate, not a promise.

Every constant names its source. The reference card is an H200 with 141 GB.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mage.config.recipe import Recipe
from mage.models.shapes import find_shape
from mage.reproduce.plan import Job, episodes_of_update
from mage.training.memory_bytes import GB
from mage.training.memory_plan import MemoryPlan, plan_memory
from mage.training.speed_estimates import learned_tokens, played_tokens

CARD = 141.0  # GB of an H200
SHORT_REPLY = 256  # tokens; docs/performance.md measures updates with replies of this length
# Most decisions of the agent in an episode. Other environments: their limit, `max_turns`.
_DECISIONS = {"kuhn_poker": 2, "tic_tac_toe": 5}
# Tokens of prompts that learning computes for a reply, after shared prefixes are merged:
# (1.30 million - 0.64 million of replies) / 2,496 replies of `paper_webshop` (docs/performance.md).
_PROMPT_TOKENS = 265
# Speed of learning with a KL reference: 13,500 instead of 20,000 tokens/s (docs/performance.md).
_WITH_REFERENCE = 13_500 / 20_000
# GPU-seconds of an update on N cards divided by those on one; simulated for 4 B in docs/scaling.md:
# 76 + 52 s on one, 48 + 28 on two, 35 + 16 on four, 29 + 10 on eight.
_RANKS = {1: 1.0, 2: 2 * 76 / 128, 4: 4 * 51 / 128, 8: 8 * 39 / 128}
SOURCES = (
    "speeds: utilisation and memory bandwidth measured on an H200 (docs/performance.md), slots "
    "from the memory plan of a card with 141 GB",
    "replies: every reply has 256 tokens (the lower figures) or the limits agent.max_tokens and "
    "agent.reflection_tokens, as for long thoughts (the upper ones)",
    "turns: the most of an episode, and no meta-episode stops early, so both figures are high",
    "ranks: 1, 2, 4 or 8 cards as simulated in docs/scaling.md; no run on several cards was "
    "measured",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Generated tokens and GPU-hours of runs; `fits` is whether the memory plan fits the card."""

    tokens: float
    hours: float
    fits: bool

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens + other.tokens, self.hours + other.hours, self.fits and other.fits)


@dataclass(frozen=True, slots=True)
class CostRange:
    """The cost with short replies and with replies at their limits."""

    short: Cost
    long: Cost

    def __add__(self, other: "CostRange") -> "CostRange":
        return CostRange(self.short + other.short, self.long + other.long)


@dataclass(frozen=True, slots=True)
class _Replies:
    """Number of replies and their tokens."""

    count: float
    tokens: float


def estimate_cost(job: Job, ranks: int = 1) -> CostRange:
    """The cost of one run with `ranks` cards."""
    recipe = job.recipe
    plan = plan_memory(recipe, find_shape(recipe.model.path), CARD * GB, ranks=ranks)
    lengths = (
        (
            min(SHORT_REPLY, recipe.agent.max_tokens),
            min(SHORT_REPLY, recipe.agent.reflection_tokens),
        ),
        (recipe.agent.max_tokens, recipe.agent.reflection_tokens),
    )
    return CostRange(*(_cost(job, plan, ranks, *one) for one in lengths))


def sum_costs(costs: Iterable[CostRange]) -> CostRange:
    nothing = Cost(0.0, 0.0, True)
    return sum(costs, CostRange(nothing, nothing))


def update_seconds(recipe: Recipe, plan: MemoryPlan, reply: int, reflection: int) -> float:
    """Seconds of one update on one card."""
    replies = _replies(recipe, episodes_of_update(recipe), recipe.play.episodes, reply, reflection)
    return _play_seconds(replies, plan) + _learn_seconds(replies, plan, recipe)


def _cost(job: Job, plan: MemoryPlan, ranks: int, reply: int, reflection: int) -> Cost:
    recipe = job.recipe
    trained = _replies(recipe, job.training_episodes, recipe.play.episodes, reply, reflection)
    tested = _replies(
        recipe, job.evaluation_episodes, recipe.evaluation_episodes(), reply, reflection
    )
    seconds = job.recipe.run.updates * update_seconds(recipe, plan, reply, reflection)
    seconds += _play_seconds(tested, plan)
    fits = plan.fits or not job.trains
    return Cost(trained.tokens + tested.tokens, seconds * _factor(ranks) / 3600, fits)


def _replies(
    recipe: Recipe, episodes: float, of_meta: int, reply: int, reflection: int
) -> _Replies:
    """Replies of `episodes` episodes; the last of a meta-episode has no reflection."""
    decisions = _DECISIONS.get(recipe.environments.name, recipe.environment().max_turns)
    turns = episodes * decisions
    notes = episodes * (of_meta - 1) / of_meta if recipe.memory().reflects else 0.0
    return _Replies(turns + notes, turns * reply + notes * reflection)


def _play_seconds(replies: _Replies, plan: MemoryPlan) -> float:
    return replies.tokens / max(played_tokens(plan), 1.0)


def _learn_seconds(replies: _Replies, plan: MemoryPlan, recipe: Recipe) -> float:
    speed = learned_tokens(plan) * (_WITH_REFERENCE if recipe.learn.kl else 1.0)
    return (replies.tokens + replies.count * _PROMPT_TOKENS) / speed


def _factor(ranks: int) -> float:
    """GPU-seconds beside those of one card; other numbers take the next larger known one."""
    return next((_RANKS[known] for known in _RANKS if known >= ranks), _RANKS[8] * ranks / 8)
