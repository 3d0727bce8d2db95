"""A plain function as the agent: it sees what a model would see and returns its move as text."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mage.agent.messages import MessageChat
from mage.config.errors import UserError
from mage.engines.base import Engine, ScriptedEngine
from mage.types import Completion, Request


@dataclass(frozen=True, slots=True)
class Seen:
    """What a policy knows when it moves.

    `messages` is the prompt of a model: rules, task, memory and the turns of this episode.
    `observation`, `memory` and `legal` are parts of it, or follow from it. `episode` and `turn`
    count from 1. `notes` is the policy's own memory: empty when a task begins, then kept for all
    its episodes. `rng` is for random moves; it depends on the task and the turn only.
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
        written = text if "<action>" in text else f"<action>{text}</action>"
        return Completion(ids := self.chat.encode(written), (0.0,) * len(ids), written, "stop", 0)


def silent_engine(chat: MessageChat) -> Engine:
    """The engine beside a policy: whatever asks for other texts than moves gets an error."""
    return ScriptedEngine(_refuse, chat.encode)


def _refuse(request: Request) -> str:
    raise UserError(
        "a policy writes moves only, but this memory asks for notes: use memory='history' or 'none'"
    )
