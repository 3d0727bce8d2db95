"""The context limit of a recipe: checked before a run, and watched during it.

Before a run, a few meta-episodes are played with random legal moves in all seats and with
reflections of full length, without a model. Their prompts show the sizes that the recipe needs.
"""

import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from mage.agent.agent import LONGEST_NOTE, Agent, SamplingOptions, random_move
from mage.agent.chat import Chat
from mage.config.errors import ConfigError
from mage.config.menus import find_item
from mage.config.recipe import Recipe
from mage.engines.base import ScriptedEngine, run
from mage.environments.base import State
from mage.memory.base import Entry, Notebook
from mage.play import PlaySetup, opening_text
from mage.seeds import derive
from mage.types import Completion

MOST_OVERFLOW = 0.05  # share of replies; training stops above it
_META_EPISODES = 4
_WORD = "note "


@dataclass(frozen=True, slots=True)
class PromptSizes:
    """Tokens of the shortest and the longest prompt of a move."""

    shortest: int
    longest: int


def check_context(recipe: Recipe, chat: Chat) -> tuple[str, ...]:
    """Compare the prompts of a recipe with the engine's context.

    Raises ConfigError if not even one prompt fits. Returns a warning if long episodes do not fit.
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
    if sizes.longest + reply <= limit:
        return ()
    return (
        f"the longest prompt in random play has {sizes.longest} tokens and a reply may have "
        f"{reply} (agent.max_tokens), but engines.context = {limit}: older turns will be folded "
        f"into one line. Set engines.context to {sizes.longest + reply} or more, or agent.window",
    )


def context_limit(recipe: Recipe) -> int | None:
    """The option `engines.context`, or its default; None for an engine without such an option."""
    item: Any = find_item("engines", recipe.engines.name)
    option = inspect.signature(item.__init__).parameters.get("context")
    found = recipe.engines.options.get("context", option and option.default)
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
    worlds, sizes = list(recipe.environment().inside().values()), list[int]()
    setup = _setting(recipe, chat)
    for world, number in product(worlds, range(_META_EPISODES)):
        setup = replace(setup, environment=world.for_split("train"))
        player = _RandomPlayer(setup, number % world.seats, number)
        (found,) = run([player.play()])
        sizes += found
        setup = replace(setup, memory=setup.memory.after(player.entries))
    return PromptSizes(min(sizes, default=0), max(sizes, default=0))


def _setting(recipe: Recipe, chat: Chat) -> PlaySetup:
    environment, own = recipe.environment(), recipe.agent
    sampling = SamplingOptions(max_tokens=own.max_tokens, reflection_tokens=own.reflection_tokens)
    engine = ScriptedEngine(lambda request: "", chat.encode)
    return PlaySetup(
        environment=environment,
        agent=Agent(engine, chat, sampling, *own.shown()),
        memory=recipe.memory(),
        episodes=max(recipe.play.episodes, recipe.evaluation_episodes()),
        numbered=recipe.play.numbered,
    )


class _RandomPlayer:
    """One meta-episode: random legal moves in all seats, notes of full length."""

    def __init__(self, setup: PlaySetup, seat: int, number: int) -> None:
        self.setup, self.seat = setup, seat
        self.seed = derive("prompt sizes", setup.environment.name, number) % 2**31
        self.rng = random.Random(self.seed)
        self.note = _longest_note(setup.agent)
        self.entries: list[Entry] = []

    async def play(self) -> list[int]:
        """The sizes of all prompts."""
        notebook, sizes = self.setup.memory.open(), list[int]()
        for number in range(self.setup.episodes):
            sizes += await self._play_episode(number, notebook)
            await notebook.add(self.entries[-1], self._ask)
        return sizes

    async def _play_episode(self, number: int, notebook: Notebook) -> list[int]:
        environment, dialogue = self.setup.environment, self.setup.talk(self.seat, number)
        state = environment.start(environment.episode_seed(self.seed, number))
        opening, sizes = "", list[int]()
        while (mover := state.turn()) is not None and len(sizes) < environment.max_turns:
            action = random_move(state, self.rng)
            if mover == self.seat:
                if not sizes:
                    opening = opening_text(self.setup, mover, dialogue.observe(state))
                    dialogue.memory = await notebook.show(opening, self._ask)
                sizes.append(len(dialogue.ask(state).ids))
                dialogue.add(*self._reply(dialogue.wording.word(action)), action)
            state.apply(action)
        told = dialogue.review(state) or self._recap(state)
        prompts = self.setup.agent.prompts
        self.entries.append(Entry(number + 1, opening, told, "lost", self.note, prompts))
        return sizes

    def _reply(self, word: str) -> tuple[Completion, str]:
        """A reply that is only this action, and the action."""
        agent = self.setup.agent
        ids = agent.action_reply(word)
        return Completion(ids, (0.0,) * len(ids), agent.chat.decode(ids), "stop", 0), word

    def _recap(self, state: State) -> str:
        known = state.turn() is None or not self.setup.environment.multi_agent
        return state.recap(self.seat) if known else ""

    async def _ask(self, question: str) -> str:
        return self.note


def _longest_note(agent: Agent) -> str:
    """A note with as many tokens and characters as a reflection may have."""
    limit = agent.sampling.reflection_tokens
    return agent.chat.decode(agent.chat.encode(_WORD * limit)[:limit])[:LONGEST_NOTE]
