"""The two styles of prompts (`agent.prompts`): `chat`, which is ours, and `published`.

A style opens the dialogue of an episode, asks for reflections and reads them.
"""

import re
from abc import ABC, abstractmethod

from mage.agent.agent import LONGEST_NOTE, Agent, reflect_text
from mage.agent.chat import Ids
from mage.agent.dialogue import ChatDialogue, Dialogue
from mage.agent.published import PublishedDialogue, question_text, reflection_text
from mage.environments.base import Environment, Wording
from mage.types import Completion, Episode

Place = tuple[int, int]  # an episode, from 1, and the number of episodes

_REMARK = re.compile(r"<remark>((?:(?!<remark>).)*?)</remark>", re.DOTALL)


class Style(ABC):
    """How an agent is spoken to."""

    dialogue: type[Dialogue]

    @abstractmethod
    def opening(self, environment: Environment, seat: int, observation: str) -> str:
        """The opening of an episode from its first observation. Memories compare openings."""

    @abstractmethod
    def reflect(
        self, agent: Agent, environment: Environment, seat: int, place: Place, episode: Episode
    ) -> Ids:
        """The prompt for a reflection on an episode."""

    @abstractmethod
    def ask(self, agent: Agent, environment: Environment, seat: int, question: str) -> Ids:
        """The prompt of a question that a memory asks the model."""

    @abstractmethod
    def read_note(self, agent: Agent, completion: Completion) -> str | None:
        """A reflection as memories keep it; None if the reply has none."""

    @abstractmethod
    def write_note(self, note: str) -> str:
        """A reply whose reflection is `note`."""


class ChatStyle(Style):
    dialogue = ChatDialogue

    def opening(self, environment: Environment, seat: int, observation: str) -> str:
        return f"{environment.instance(seat)} {observation}"

    def reflect(
        self, agent: Agent, environment: Environment, seat: int, place: Place, episode: Episode
    ) -> Ids:
        return agent.begin(environment, reflect_text(environment, seat, *place, episode.recap))

    def ask(self, agent: Agent, environment: Environment, seat: int, question: str) -> Ids:
        return agent.begin(environment, question)

    def read_note(self, agent: Agent, completion: Completion) -> str | None:
        """The whole reply without thoughts, in one line."""
        return " ".join(agent.read_text(completion).split())[:LONGEST_NOTE]

    def write_note(self, note: str) -> str:
        return note


class PublishedStyle(Style):
    dialogue = PublishedDialogue

    def opening(self, environment: Environment, seat: int, observation: str) -> str:
        return observation

    def reflect(
        self, agent: Agent, environment: Environment, seat: int, place: Place, episode: Episode
    ) -> Ids:
        won, told = episode.outcome == "won", episode.review or episode.recap
        return agent.chat.alone(reflection_text(environment, seat, told, won))

    def ask(self, agent: Agent, environment: Environment, seat: int, question: str) -> Ids:
        return agent.chat.alone(question_text(environment, seat, question))

    def read_note(self, agent: Agent, completion: Completion) -> str | None:
        """The text of the last tag after the thoughts.

        >>> _REMARK.findall("<remark>a <remark>b</remark>")
        ['b']
        """
        found = _REMARK.findall(agent.read_text(completion))
        return found[-1].strip()[:LONGEST_NOTE] if found else None

    def write_note(self, note: str) -> str:
        return f"<remark>{note}</remark>"


STYLES: dict[str, Style] = {"chat": ChatStyle(), "published": PublishedStyle()}


def style_of(agent: Agent) -> Style:
    """The style in which this agent is spoken to."""
    return STYLES[agent.prompts]


def wording_of(agent: Agent, environment: Environment) -> Wording:
    """How this agent spells the moves of an environment."""
    return environment.wording() if agent.prompts == "published" else Wording(environment)


def open_dialogue(
    agent: Agent, environment: Environment, seat: int, number: int, count: int
) -> Dialogue:
    """The dialogue of episode `number` (from 1) of `count`."""
    return style_of(agent).dialogue(agent, environment, seat, number, count)
