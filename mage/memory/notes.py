"""Notes: reflections, the history of play, both, or nothing; oldest first.

`reflections` is the paper's memory M_n = (m_1 .. m_n). `none` is also the control condition: a
trained agent is evaluated without its memory.
"""

from typing import ClassVar, Literal

from pydantic import Field

from mage.memory.base import Ask, Entry, Memory, Notebook


class Notes(Memory):
    name: ClassVar[str] = "notes"
    keep: Literal["none", "reflections", "history", "both"] = Field(
        "reflections", description="what is carried from episode to episode"
    )

    @property
    def reflects(self) -> bool:
        return self.keep in ("reflections", "both")

    @property
    def is_plain_record(self) -> bool:
        return not self.reflects

    def open(self) -> Notebook:
        return NotesNotebook(self)


class NotesNotebook(Notebook):
    def __init__(self, options: Notes) -> None:
        self.options = options
        self.lines: list[str] = []

    async def add(self, entry: Entry, ask: Ask) -> None:
        if self.options.keep in ("history", "both"):
            self.lines.append(f"Game {entry.number}: {entry.recap}")
        if self.options.reflects:
            self.lines.append(f"Note {entry.number}: {entry.reflection}")

    async def show(self, opening: str, ask: Ask) -> str:
        return "\n".join(self.lines)
