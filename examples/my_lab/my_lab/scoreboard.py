"""Scoreboard: the agent sees its wins and losses and the last game, without reflections."""

from typing import ClassVar

from pydantic import Field

from mage.memory.base import Ask, Entry, Memory, Notebook


class Scoreboard(Memory):
    name: ClassVar[str] = "scoreboard"
    last_game: bool = Field(True, description="show the moves of the last game too")

    @property
    def reflects(self) -> bool:
        return False

    def open(self) -> Notebook:
        return ScoreboardNotebook(self.last_game)


class ScoreboardNotebook(Notebook):
    def __init__(self, last_game: bool) -> None:
        self.last_game = last_game
        self.entries: list[Entry] = []

    async def add(self, entry: Entry, ask: Ask) -> None:
        self.entries.append(entry)

    async def show(self, opening: str, ask: Ask) -> str:
        if not self.entries:
            return ""
        won = sum(entry.outcome == "won" for entry in self.entries)
        line = f"Games won so far: {won} of {len(self.entries)}."
        return f"{line} Last game: {self.entries[-1].recap}" if self.last_game else line
