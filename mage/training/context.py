"""The context limit of a recipe: checked before a run, and watched during it.

Before a run, a few meta-episodes are played with random legal moves in all seats and with
reflections of full length, without a model. Their prompts show the sizes that the recipe needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from mage.agent.agent import LONGEST_NOTE, Agent, Sampler, SamplingOptions
from mage.agent.chat import Chat
from mage.agent.tools import ToolLimits
from mage.config.describe import engine_option
from mage.config.errors import ConfigError
from mage.config.recipe import Recipe
from mage.config.sections import AgentOptions
from mage.engines.base import ScriptedEngine
from mage.learn.imitate.scripted import Script, play_scripted
from mage.play import PlaySetup, in_order, keep_entries
from mage.seeds import derive
from mage.types import Task

MOST_OVERFLOW = 0.05  # share of replies; training stops above it
_META_EPISODES = 4
_WORD = "note "
_ROOM = 1 << 20  # tokens of a scripted reply: some moves are long texts


@dataclass(frozen=True, slots=True)
class PromptSizes:
    """Tokens of the shortest and the longest prompt of a move, and of the longest answer."""

    shortest: int
    longest: int
    answers: Mapping[str, int]  # by world


def check_context(recipe: Recipe, chat: Chat) -> tuple[str, ...]:
    """Compare the prompts of a recipe with the engine's context.

    Raises ConfigError if not even one prompt fits. Returns warnings if long episodes do not fit,
    and if an answer is longer than a reply may be.
    """
    limit = context_limit(recipe)
    if limit is None:
        return ()
    sizes, reply = measure_prompts(recipe, chat), recipe.agent.max_tokens
    if sizes.shortest + reply > limit:
        raise ConfigError(
            f"engines.context = {limit} is smaller than one prompt: the first prompt has "
            f"{sizes.shortest} tokens and a reply may have {reply} (agent.max_tokens). "
            f"Set engines.context to {sizes.longest + reply} or more, or a smaller agent.max_tokens"
        )
    warnings = _short_replies(sizes.answers, reply)
    if sizes.longest + reply <= limit:
        return warnings
    return (
        *warnings,
        f"the longest prompt in random play has {sizes.longest} tokens and a reply may have "
        f"{reply} (agent.max_tokens), but engines.context = {limit}: older turns will be folded "
        f"into one line. Set engines.context to {sizes.longest + reply} or more, or agent.window",
    )


def _short_replies(answers: Mapping[str, int], limit: int) -> tuple[str, ...]:
    """A warning if some moves of random play cannot be written in `limit` tokens."""
    long = {world: tokens for world, tokens in answers.items() if tokens > limit}
    if not long:
        return ()
    told = ", ".join(f"{tokens} in {world}" for world, tokens in long.items())
    return (
        f"agent.max_tokens = {limit} is too small: the longest answer of random play takes {told}, "
        f"and a reply that is cut is illegal. Set agent.max_tokens to {max(long.values())} or more",
    )


def context_limit(recipe: Recipe) -> int | None:
    """The option `engines.context`, or its default; None for an engine without such an option."""
    found = engine_option(recipe.engines, "context")
    return found if isinstance(found, int) else None


def check_overflow(figures: Mapping[str, Any], recipe: Recipe) -> None:
    """Raise ConfigError if too many prompts of an update did not fit into the context."""
    share = figures.get("overflow_rate", 0.0)
    if share > MOST_OVERFLOW:
        raise ConfigError(
            f"training stopped after update {figures.get('update')}: {100 * share:.1f} % of the "
            f"prompts did not fit into engines.context = {context_limit(recipe)} "
            f"({100 * MOST_OVERFLOW:g} % are allowed). Start a run with a larger engines.context, "
            "a smaller agent.max_tokens, or a smaller agent.reflection_tokens"
        )


def measure_prompts(recipe: Recipe, chat: Chat) -> PromptSizes:
    """Play random meta-episodes without a model and measure all prompts of moves."""
    setup, sizes = scripted_setup(recipe, chat, recipe.agent.reflection_tokens), list[int]()
    answers: dict[str, int] = {}
    script = Script(note=_longest_note(setup.agent))
    for (name, world), number in product(setup.environment.inside().items(), range(_META_EPISODES)):
        seed = derive("prompt sizes", name, number) % 2**31
        opponent = "random" if world.multi_agent else ""
        task = Task(name, seed, number % world.seats, opponent, "train")
        ((_, meta),) = play_scripted(setup, [task], seed, script)
        turns = [turn for episode in meta.episodes for turn in episode.turns]
        sizes += [len(turn.prompt_ids) for turn in turns]
        answers[name] = max(
            [answers.get(name, 0), *(len(turn.completion.token_ids) for turn in turns)]
        )
        entries = in_order([[keep_entries(setup, meta)]])
        setup = replace(setup, memory=setup.memory.after(entries))
    return PromptSizes(min(sizes, default=0), max(sizes, default=0), answers)


def scripted_setup(recipe: Recipe, chat: Chat, reflection_tokens: int = _ROOM) -> PlaySetup:
    """What scripted play of a recipe needs: no model, and replies of any length."""
    engine = ScriptedEngine(lambda request: "", chat.encode)  # replaced by the scripted player
    sampling = SamplingOptions(max_tokens=_ROOM, reflection_tokens=reflection_tokens)
    return PlaySetup(
        environment=recipe.environment(),
        agent=make_agent(recipe.agent, engine, chat, sampling),
        memory=recipe.memory(),
        episodes=max(recipe.play.episodes, recipe.evaluation_episodes()),
        numbered=recipe.play.numbered,
    )


def make_agent(
    options: AgentOptions, engine: Sampler, chat: Chat, sampling: SamplingOptions
) -> Agent:
    """An agent with the options of a recipe."""
    return Agent(
        engine=engine,
        chat=chat,
        sampling=sampling,
        window=options.shown_window(),
        fold=options.fold,
        think_first=options.think_first,
        example=options.example,
        prompts=options.prompts,
        limits=ToolLimits(
            calls=options.tool_calls,
            seconds=options.tool_seconds,
            characters=options.tool_characters,
        ),
    )


def _longest_note(agent: Agent) -> str:
    """A note with as many tokens and characters as a reflection may have."""
    limit = agent.sampling.reflection_tokens
    return agent.chat.decode(agent.chat.encode(_WORD * limit)[:limit])[:LONGEST_NOTE]
