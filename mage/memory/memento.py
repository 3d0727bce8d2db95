"""Memento: a bank of cases (how it opened, what was done, how it ended) with the most similar successes and failures (arXiv 2508.16153).

Nothing is trained and the model writes nothing: a case is an episode as the agent saw it. Before an episode the cases whose
openings are most like its own are recalled; of those equally alike the newest, so a meta-episode's own games come first.
The published method recalls anew at every step; here prompts only grow, so it is done once, when an episode opens.

The bank is kept from task to task. Tasks run side by side, and who ends first must not matter: the bank is frozen while
`wave` tasks are played, then all their episodes join it in the order of the tasks, and the next wave starts. Inside a
meta-episode its own finished episodes count at once. So members of a group share a bank, and results depend on the tasks
and on `wave`, never on batching, the engine or the number of workers. Every panel and every update starts with an empty
bank: a panel's result is the same whatever was played before it, no panel is answered out of another or out of an earlier
play of itself, and a run has no state beside its weights.
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
    """Episodes, oldest first, and the vectors of their openings, one row each."""

    entries: tuple[Entry, ...] = ()
    vectors: Vector | None = None

    def with_more(self, entries: Sequence[Entry], embedding: Embedding, most: int) -> "Cases":
        """These and newer ones; the oldest are dropped when there are more than `most`."""
        if not entries:
            return self
        new = np.stack([embed(entry.opening, embedding) for entry in entries])
        vectors = new if self.vectors is None else np.concatenate([self.vectors, new])
        return Cases((*self.entries, *entries)[-most:], vectors[-most:])


def nearest(query: Vector, banks: Sequence[Cases], won: bool, count: int) -> list[Entry]:
    """The successes or failures whose openings are most alike; the same course of play is taken once."""
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
    """A bank of cases kept from task to task; the most similar successes and failures are recalled."""

    name: ClassVar[str] = "memento"
    successes: int = Field(2, ge=0, description="most similar won episodes shown before an episode")
    failures: int = Field(2, ge=0, description="most similar episodes shown that were not won")
    wave: int = Field(
        32, ge=1, description="tasks played side by side before their episodes join the bank"
    )
    most: int = Field(4096, ge=1, description="episodes in the bank; the oldest make room")
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
        return "\n".join(map(self._tell, found))

    def _tell(self, entry: Entry) -> str:
        whose = (
            f"Game {entry.number}"
            if any(entry is one for one in self.own.entries)
            else "Another task"
        )
        return f"{whose}, {'won' if entry.outcome == 'won' else 'not won'}: {entry.opening} {entry.recap}"
