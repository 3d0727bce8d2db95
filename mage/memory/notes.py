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
        keep = self.options.keep
        if keep != "none" and entry.prompts == "published":
            self.lines.append(_tell_trial(entry, keep != "reflections", self.options.reflects))
            return
        if keep in ("history", "both"):
            self.lines.append(f"Game {entry.number}: {entry.recap}")
        if self.options.reflects:
            self.lines.append(f"Note {entry.number}: {entry.reflection}")

    async def show(self, opening: str, ask: Ask) -> str:
        return "\n".join(self.lines)


def _tell_trial(entry: Entry, with_history: bool, with_reflection: bool) -> str:
    """A trial, its course, its outcome and the reflection on it, as in the published prompts."""
    outcome = "completed" if entry.outcome == "won" else "not completed"
    course = [f"In trial {entry.number} you saw and did this:", entry.recap] if with_history else []
    note = ["Your reflection on it:", entry.reflection] if with_reflection else []
    return "\n".join([*course, f"Trial {entry.number} was {outcome}.", *note])
