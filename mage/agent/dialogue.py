"""The prompts of one episode, turn by turn.

`ChatDialogue` is a chat: rules in the system message, one message a turn, past actions as replies.
`mage.agent.published` has the other style.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mage.agent.agent import Agent, episode_text, illegal_text
from mage.agent.history import PastTurn, Prompt
from mage.environments.base import Environment, State, Wording
from mage.types import Completion, ToolCall

Calls = Sequence[ToolCall]  # of one turn, before its reply


class Dialogue(ABC):
    """One episode. Turns alternate: `ask` makes a prompt, `add` keeps the reply to it.

    `number` of `count` is the episode as prompts name it, from 1. `memory` is the text that a
    memory shows in this episode, set before the first prompt. `training`: not an evaluation.
    `observation` is what the agent sees in the turn of the latest prompt.
    """

    def __init__(
        self, agent: Agent, environment: Environment, seat: int, number: int, count: int
    ) -> None:
        self.agent, self.environment, self.seat = agent, environment, seat
        self.number, self.count = number, count
        self.memory = self.observation = ""
        self.training = False
        self.wording = self.find_wording()
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Set what a style keeps of an episode."""

    def find_wording(self) -> Wording:
        """The spelling of moves."""
        return Wording(self.environment)

    @abstractmethod
    def observe(self, state: State) -> str:
        """What the agent sees in this turn."""

    @abstractmethod
    def ask(self, state: State) -> Prompt:
        """The prompt of the next turn; sets `observation`."""

    @abstractmethod
    def shorten(self, prompt: Prompt) -> Prompt | None:
        """The prompt of the same turn with fewer past turns; None if it has none to leave out."""

    @abstractmethod
    def add(
        self, completion: Completion, written: str | None, move: str | None, calls: Calls = ()
    ) -> None:
        """Keep a reply, the action in it, the state's legal move that it names, if any, and the
        calls of tools before it."""

    @abstractmethod
    def review(self, state: State) -> str:
        """The finished episode as a reflection sees it; empty = its recap."""


class ChatDialogue(Dialogue):
    """A chat that only grows, until the window or the context is full."""

    def begin(self) -> None:
        self.history = self.agent.history()
        self.message, self.legal = "", True

    def observe(self, state: State) -> str:
        return state.observe(self.seat)

    def ask(self, state: State) -> Prompt:
        self.observation = seen = self.observe(state)
        self.message = seen if self.legal else illegal_text(seen)
        if self.history.turns and self.agent.window != 0:
            return self.history.next(self.message)
        text = episode_text(
            self.environment, self.seat, self.memory, self.number, self.count, self.message
        )
        return self.history.begin(self.agent.begin(self.environment, text))

    def shorten(self, prompt: Prompt) -> Prompt | None:
        return self.history.fold_more(prompt, self.message)

    def add(
        self, completion: Completion, written: str | None, move: str | None, calls: Calls = ()
    ) -> None:
        self.legal = move is not None
        reply = self.agent.past_calls(calls) + self.agent.past_reply(completion, written)
        self.history.add(PastTurn(self.message, reply, written))

    def review(self, state: State) -> str:
        return ""
