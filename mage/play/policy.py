"""A plain function as the agent: it sees what a model would see and returns its move as text."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mage.agent.agent import Agent
from mage.agent.dialogue import Dialogue
from mage.agent.messages import MessageChat
from mage.agent.tool_process import answer_call
from mage.agent.tools import write_call
from mage.config.errors import UserError
from mage.engines.base import Engine, ScriptedEngine
from mage.environments.base import State
from mage.types import Completion, Request, ToolCall


@dataclass(frozen=True, slots=True)
class Seen:
    """What a policy knows when it moves.

    `messages` is the prompt of a model: rules, task, memory and the turns of this episode.
    `observation`, `memory` and `legal` are parts of it, or follow from it. `episode` and `turn`
    count from 1. `notes` is the policy's own memory: empty when a task begins, then kept for all
    its episodes. `rng` is for random moves; its seed derives from those of the run, group, member,
    episode and turn. `call` calls a tool of the environment and returns its result:
    `seen.call("search", word="cup")`.
    """

    messages: Sequence[Mapping[str, str]]
    observation: str
    legal: tuple[str, ...]
    memory: str
    seat: int
    episode: int
    turn: int
    notes: dict[str, Any]
    rng: random.Random
    call: Callable[..., str]


Policy = Callable[[Seen], str]


@dataclass(frozen=True, slots=True)
class PolicyPlayer:
    """A policy in an evaluation, with the notes of every meta-episode by its seed."""

    policy: Policy
    chat: MessageChat
    notes: dict[int, dict[str, Any]] = field(default_factory=dict)

    def reply(self, seen: Seen) -> Completion:
        """The move as a model would write it. The policy may also write the action tags."""
        text = self.policy(seen)
        if not isinstance(text, str):
            raise UserError(f"the policy returned {text!r}: it must return a move as text")
        return self.write(text if "<action>" in text else f"<action>{text}</action>")

    def write(self, text: str) -> Completion:
        """A text as the completion of a model."""
        return Completion(ids := self.chat.encode(text), (0.0,) * len(ids), text, "stop", 0)


class PolicyCalls:
    """The calls of tools in one turn of a policy, kept as those of a model are.

    The last result lacks the line that tells a model that it was the last one. `seed` belongs to
    the episode, as the results do.
    """

    def __init__(
        self, player: PolicyPlayer, agent: Agent, dialogue: Dialogue, state: State, seed: int
    ) -> None:
        self.player, self.agent, self.state, self.seed = player, agent, state, seed
        self.tools = agent.tools(dialogue.environment)
        self.prompt = dialogue.ask(state)
        self.made: list[ToolCall] = []

    def call(self, name: str, **arguments: Any) -> str:
        """Call a tool. Errors of the call are its result, as a model reads them."""
        most = self.agent.limits.calls if self.tools else 0
        if len(self.made) == most:
            why = f"agent.tool_calls = {most}" if self.tools else "the environment offers no tools"
            raise UserError(f"the policy cannot call {name}: {why}")
        completion = self.player.write(write_call(name, arguments))
        content = self.agent.read_call(completion)
        assert content is not None, "write_call writes a call"
        answer = answer_call(self.tools, self.agent.limits, self.state, content, self.seed)
        self.made.append(ToolCall(self.prompt.ids, completion, answer.text, answer.failed))
        ids = self.prompt.ids + completion.token_ids + self.player.chat.result(answer.text)
        self.prompt = replace(self.prompt, ids=ids)
        return answer.text


def silent_engine(chat: MessageChat) -> Engine:
    """The engine beside a policy: whatever asks for other texts than moves gets an error."""
    return ScriptedEngine(_refuse, chat.encode)


def _refuse(request: Request) -> str:
    raise UserError(
        "a policy writes moves only, but this memory asks for notes: use memory='history' or 'none'"
    )
