"""A language model with fixed weights in the other seat: shared by `league` and `model`.

It is stationary: it plays without memory and sees the running episode only.
"""

import random
from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, PrivateAttr

from mage.agent.agent import Agent
from mage.agent.dialogue import Dialogue
from mage.agent.styles import open_dialogue
from mage.agent.turns import take_turn
from mage.config.errors import UserError
from mage.environments.base import Environment, State
from mage.opponents.base import Knowledge, Opponent
from mage.seeds import derive
from mage.types import Task


class Frozen(Opponent):
    """An opponent whose moves are replies of a model."""

    policy_is: ClassVar[Knowledge] = "unknown"
    has_weights: ClassVar[bool] = True

    @classmethod
    def plays(cls, environment: Environment) -> bool:
        return environment.multi_agent

    def freeze(self, agent: Agent, environment: Environment, episodes: int = 1) -> "FrozenAgent":
        """The player: the engine of this agent holds the fixed weights.

        `episodes` is the number of episodes that the prompts of training name. The player gets the
        prompt of the first of them. A prompt that training never shows has another policy.
        """
        return FrozenAgent(agent=agent, environment=environment, episodes=episodes)


class FrozenAgent(Opponent):
    """An agent whose engine holds fixed weights. Tasks that name its opponent are given to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    policy_is: ClassVar[Knowledge] = "unknown"
    agent: Any  # an Agent
    environment: Any  # an Environment
    episodes: int = 1
    _dialogues: WeakKeyDictionary[State, Dialogue] = PrivateAttr(default_factory=WeakKeyDictionary)
    _illegal: list[bool] = PrivateAttr(default_factory=list)  # of every reply since `count_anew`

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        raise UserError("a frozen model has no exact policy; it is asked with `think`")

    def in_world_of(self, task: Task) -> Opponent:
        world = self.environment.world_of(task)
        if world is self.environment:
            return self
        return self.model_copy(update={"environment": world})  # it shares the dialogues

    def count_anew(self) -> None:
        """Forget the replies that were counted."""
        self._illegal.clear()

    def illegal(self) -> tuple[float, float]:
        """Replies without a legal move, and all replies."""
        return float(sum(self._illegal)), float(len(self._illegal))

    async def think(self, state: State, seat: int, rng: random.Random) -> str:
        """The model's move; a random legal move if its reply names none."""
        agent: Agent = self.agent
        known = self._dialogues.get(state)
        if known is None:
            known = open_dialogue(agent, self.environment, seat, 1, self.episodes)
            self._dialogues[state] = known
        seed = derive(rng.getrandbits(60), "league")
        _, completion, calls = await take_turn(agent, known, state, seed, tool_seed=seed)
        written = agent.read(completion)
        action = None if written is None else known.wording.read(state, written)
        self._illegal.append(action is None)
        move = rng.choice(state.legal()) if action is None else action
        known.add(completion, written, move, calls)
        return move
