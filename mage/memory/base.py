"""The memory contract: what an agent keeps of finished episodes and sees in the next one.

A `Memory` holds options; `open()` returns the notebook of one meta-episode. Writing and recalling
are coroutines, because a memory may ask the model (`ask`) to write or to choose.

A memory may also keep information from task to task. Tasks are played concurrently, so the content
must not depend on which task ends first: `tasks_at_once` tasks are played with the same memory,
then `after` makes the memory of the next tasks. Every panel and update starts with an empty memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from mage.config import returned
from mage.types import Outcome, PromptStyle

Ask = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished episode.

    `number` starts at 1; `opening` is its first observation, `recap` what the agent saw of it, and
    `reflection` the agent's note on it (without thoughts). `prompts` is the style in which the
    agent is spoken to: the published one calls episodes trials and names their outcome.
    """

    number: int
    opening: str
    recap: str
    outcome: Outcome
    reflection: str
    prompts: PromptStyle = "chat"


class Notebook(ABC):
    """The memory of one meta-episode."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        returned.check_class(cls, _NOTEBOOK)

    @abstractmethod
    async def add(self, entry: Entry, ask: Ask) -> None:
        """Store a finished episode."""

    @abstractmethod
    async def show(self, opening: str, ask: Ask) -> str:
        """The text shown before an episode with this opening; empty if there is none.

        Later texts should start with the earlier ones, so that cached prompts stay valid.
        """


_NOTEBOOK = {"add": returned.AWAITED, "show": replace(returned.TEXT, awaited=True)}


class Memory(BaseModel, ABC):
    """Options of a memory. A subclass in a file of this folder is found by the file name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        returned.check_class(cls, _MEMORY)

    @property
    @abstractmethod
    def reflects(self) -> bool:
        """Whether the agent is asked for a reflection after each episode but the last."""

    @property
    def is_plain_record(self) -> bool:
        """Whether the text depends on the recaps only. Then exact scores can be computed."""
        return False

    @property
    def tasks_at_once(self) -> int | None:
        """Number of tasks played before `after` is called; None = nothing is kept between tasks."""
        return None

    @abstractmethod
    def open(self) -> Notebook:
        """The notebook of a new meta-episode."""

    def after(self, entries: Sequence[Entry]) -> "Memory":
        """The memory of the next tasks, with all episodes just played, in task order."""
        return self


_MEMORY = {
    "reflects": returned.ANYTHING,
    "is_plain_record": returned.ANYTHING,
    "tasks_at_once": returned.WHOLE_OR_NONE,
    "open": returned.instance_of(Notebook),
    "after": returned.instance_of(Memory),
}
