"""The memory contract: what an agent keeps of finished episodes and is shown in the next one.

A `Memory` holds options; `open()` gives the empty notebook of one meta-episode. Writing and recalling are coroutines,
because a memory may ask the model itself (`ask`) to write or to choose.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

Ask = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished episode: its number from 1, what the agent saw of it, and what it wrote about it."""

    number: int
    recap: str
    reflection: str


class Notebook(ABC):
    """The memory of one meta-episode."""

    @abstractmethod
    async def add(self, entry: Entry, ask: Ask) -> None:
        """Take in a finished episode."""

    @abstractmethod
    async def show(self, observation: str, ask: Ask) -> str:
        """The text shown before an episode that opens with this observation; empty when there is nothing.

        Texts of later episodes should start with those of earlier ones, so that cached prompts stay valid.
        """


class Memory(BaseModel, ABC):
    """Options of a memory; a subclass in a file of this folder is found by the file's name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]

    @property
    @abstractmethod
    def reflects(self) -> bool:
        """Whether the agent is asked for a reflection after each episode but the last."""

    @abstractmethod
    def open(self) -> Notebook:
        """The empty notebook of a new meta-episode."""
