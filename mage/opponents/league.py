"""The league: frozen earlier copies of the agent as opponents.

`league-20` in a training pool stands for all copies so far. The first copy is taken before the
first update, the others every 20 updates after it. Each update draws a few copies, hard ones more
often: a copy counts exp(-hardness * s), where s is the agent's mean score against it.
`mage.training.league` keeps the copies and their weights.

A copy is stationary: it plays without memory and sees the running episode only.
"""

import random
from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, Field, PrivateAttr

from mage.agent.agent import Agent
from mage.agent.dialogue import Dialogue
from mage.agent.styles import open_dialogue
from mage.agent.turns import take_turn
from mage.config.errors import UserError
from mage.environments.base import Environment, State
from mage.opponents.base import Knowledge, Opponent
from mage.seeds import derive
from mage.types import Task


class League(Opponent):
    """Frozen earlier copies of the agent; only in opponents.train."""

    name: ClassVar[str] = "league"
    policy_is: ClassVar[Knowledge] = "unknown"
    trains_only: ClassVar[bool] = True
    every: int = Field(20, ge=1, description="updates between two new copies")
    hardness: float = Field(
        1.0, ge=0, le=100, description="how much more often hard copies play; 0 = all equally often"
    )
    at_once: int = Field(2, ge=1, le=16, description="copies that play in one update")

    @classmethod
    def plays(cls, environment: Environment) -> bool:
        return environment.multi_agent

    def copies_at_once(self) -> int:
        return self.at_once

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        raise UserError(f"{self.name} plays in training only: its copies belong to a run")

    def freeze(self, agent: Agent, environment: Environment, episodes: int = 1) -> "FrozenAgent":
        """A player for the copies: the engine of this agent holds the weights of one of them.

        `episodes` is the number of episodes that the prompts of training name. A copy plays the
        prompt of the first of them. A prompt that training never shows has another policy.
        """
        return FrozenAgent(agent=agent, environment=environment, episodes=episodes)

    def copy_name(self, update: int) -> str:
        """The name of the copy that was taken after an update, as in `league-20-1.0-2-0-40`.

        Random numbers derive from it, so it keeps the 0 of an option that is gone.
        """
        options = (self.every, self.hardness, self.at_once, 0, update)
        return "-".join([self.name, *map(str, options)])


class FrozenAgent(Opponent):
    """One copy: an agent whose engine holds frozen weights. Tasks of its name are given to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    policy_is: ClassVar[Knowledge] = "unknown"
    agent: Any  # an Agent
    environment: Any  # an Environment
    episodes: int = 1
    _dialogues: WeakKeyDictionary[State, Dialogue] = PrivateAttr(default_factory=WeakKeyDictionary)

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        raise UserError("a frozen copy has no exact policy; it is asked with `think`")

    def in_world_of(self, task: Task) -> Opponent:
        world = self.environment.world_of(task)
        if world is self.environment:
            return self
        return self.model_copy(update={"environment": world})  # it shares the dialogues

    async def think(self, state: State, seat: int, rng: random.Random) -> str:
        """The copy's move; a random legal move if its reply names none."""
        agent: Agent = self.agent
        known = self._dialogues.get(state)
        if known is None:
            known = open_dialogue(agent, self.environment, seat, 1, self.episodes)
            self._dialogues[state] = known
        seed = derive(rng.getrandbits(60), "league")
        _, completion, calls = await take_turn(agent, known, state, seed, tool_seed=seed)
        written = agent.read(completion)
        action = None if written is None else known.wording.read(state, written)
        move = rng.choice(state.legal()) if action is None else action
        known.add(completion, written, move, calls)
        return move
