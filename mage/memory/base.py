"""The memory contract: what an agent keeps of finished episodes and is shown in the next one.

A `Memory` holds options; `open()` gives the notebook of one meta-episode. Writing and recalling are coroutines,
because a memory may ask the model itself (`ask`) to write or to choose.

A memory may also keep something from task to task. Tasks are played side by side, so what a task finds there must not depend
on which of them happens to end first: `tasks_at_once` of them are played with the memory as it is, then `after` makes the
memory of the tasks that come next. Every panel and every update starts from the recipe's own, empty memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from mage.types import Outcome

Ask = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished episode: its number from 1, how it opened, what the agent saw of it, how it ended, and what it wrote about it."""

    number: int
    opening: str
    recap: str
    outcome: Outcome
    reflection: str


class Notebook(ABC):
    """The memory of one meta-episode."""

    @abstractmethod
    async def add(self, entry: Entry, ask: Ask) -> None:
        """Take in a finished episode."""

    @abstractmethod
    async def show(self, opening: str, ask: Ask) -> str:
        """The text shown before an episode that opens like this; empty when there is nothing.

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

    @property
    def is_plain_record(self) -> bool:
        """Whether what it shows follows from the recaps of the episodes alone, whatever the opening: then exact scores can be had."""
        return False

    @property
    def tasks_at_once(self) -> int | None:
        """How many tasks are played before `after` is asked; None = it keeps nothing from task to task."""
        return None

    @abstractmethod
    def open(self) -> Notebook:
        """The notebook of a new meta-episode."""

    def after(self, entries: Sequence[Entry]) -> "Memory":
        """The memory of the tasks that come next: this one and all episodes of the tasks just played, in the tasks' order."""
        return self
