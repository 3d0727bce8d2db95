"""Memento (arXiv 2508.16153): a bank of cases; similar successes and failures are recalled.

A case is an episode as the agent saw it (opening, course, outcome). The model writes nothing and
nothing is trained. Before an episode the cases with the most similar openings are recalled. Among
equal similarities the newest comes first, so the games of the same meta-episode come first. The
published method recalls at every step; here prompts only grow, so it recalls once per episode.

The bank is kept from task to task. It is frozen while `wave` tasks are played concurrently. Then
all their episodes are added in task order, and the next wave starts. The finished episodes of a
meta-episode are available to it at once. So members of a group share a bank, and results depend on
the tasks and on `wave`, not on batching, the engine or the number of workers. Every panel and every
update starts with an empty bank: results do not depend on earlier play.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field, PrivateAttr

from mage.memory._embedding import Embedding, Vector, embed, rank
from mage.memory.base import Ask, Entry, Memory, Notebook


@dataclass(frozen=True, slots=True)
class Cases:
    """Episodes, oldest first, and the vectors of their openings (one row each)."""

    entries: tuple[Entry, ...] = ()
    vectors: Vector | None = None

    def with_more(self, entries: Sequence[Entry], embedding: Embedding, most: int) -> "Cases":
        """These and newer episodes; the oldest are dropped if there are more than `most`."""
        if not entries:
            return self
        new = np.stack([embed(entry.opening, embedding) for entry in entries])
        vectors = new if self.vectors is None else np.concatenate([self.vectors, new])
        return Cases((*self.entries, *entries)[-most:], vectors[-most:])


def nearest(query: Vector, banks: Sequence[Cases], won: bool, count: int) -> list[Entry]:
    """The successes or failures with the most similar openings; equal episodes count once."""
    held = [bank for bank in banks if bank.vectors is not None]
    entries = [entry for bank in held for entry in bank.entries]
    found: dict[tuple[str, str], Entry] = {}
    for row in (
        rank(query, *(bank.vectors for bank in held if bank.vectors is not None)) if held else ()
    ):
        entry = entries[row]
        if len(found) < count and (entry.outcome == "won") == won:
            found.setdefault((entry.opening, entry.recap), entry)
    return list(found.values())


class Memento(Memory):
    """A bank of cases kept from task to task; similar successes and failures are recalled."""

    name: ClassVar[str] = "memento"
    successes: int = Field(2, ge=0, description="number of similar won episodes shown")
    failures: int = Field(2, ge=0, description="number of similar episodes shown that were not won")
    wave: int = Field(
        32, ge=1, description="tasks played concurrently before their episodes join the bank"
    )
    most: int = Field(
        4096, ge=1, description="largest number of episodes in the bank; the oldest are dropped"
    )
    embedding: Embedding = "auto"
    _bank: Cases = PrivateAttr(Cases())

    @property
    def reflects(self) -> bool:
        return False

    @property
    def tasks_at_once(self) -> int:
        return self.wave

    def open(self) -> Notebook:
        return MementoNotebook(self, self._bank)

    def after(self, entries: Sequence[Entry]) -> "Memento":
        grown = self.model_copy()
        grown._bank = self._bank.with_more(entries, self.embedding, self.most)
        return grown


class MementoNotebook(Notebook):
    def __init__(self, options: Memento, bank: Cases) -> None:
        self.options, self.bank, self.own = options, bank, Cases()

    async def add(self, entry: Entry, ask: Ask) -> None:
        self.own = self.own.with_more([entry], self.options.embedding, self.options.most)

    async def show(self, opening: str, ask: Ask) -> str:
        query, banks = embed(opening, self.options.embedding), (self.bank, self.own)
        found = [
            *nearest(query, banks, True, self.options.successes),
            *nearest(query, banks, False, self.options.failures),
        ]
        return "\n".join(map(self._line, found))

    def _line(self, entry: Entry) -> str:
        is_own = any(entry is one for one in self.own.entries)
        source = f"Game {entry.number}" if is_own else "Another task"
        outcome = "won" if entry.outcome == "won" else "not won"
        return f"{source}, {outcome}: {entry.opening} {entry.recap}"
