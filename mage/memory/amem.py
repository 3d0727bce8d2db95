"""A-MEM (arXiv 2502.12110): the model writes, describes, links and revises notes.

After an episode the model writes a note (the reflection) and is asked for keywords, a context and
tags. The note is embedded with these and linked to its nearest earlier notes. The model may give
those a new context and new tags. Before an episode the notes nearest to its opening are recalled,
each followed by its linked earlier notes, up to `recalled` notes. They are shown oldest first, so
the text only grows while nothing is revised and all notes fit.

These questions are neither trained nor stored as turns. An answer in another format changes
nothing. Notes live within one meta-episode.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from mage.memory._embedding import Embedding, Vector, embed, rank
from mage.memory.base import Ask, Entry, Memory, Notebook

_DESCRIBE = """{opening}
Game {number} is over. {recap}
Your note: {reflection}
Describe the note, so that it is found again when it is needed. Write three lines:
Keywords: three to five words
Context: one sentence that says when the note helps
Tags: two or three kinds of situation"""
_REVISE = """New note: {new}
Earlier notes:
{earlier}
Does the new note change when an earlier one helps? For each that changes write one line: \
its number, a colon, its new context, a bar (|), its new tags.
If none changes, write: none"""
_DIGITS = 10  # a longer number is not the number of a note
_REVISION = re.compile(r"\W*(\d+)\s*[:.)]\s*([^|]+)(?:\|(.*))?")  # one line


class AMem(Memory):
    """The model writes, describes, links and revises notes; the nearest ones are recalled."""

    name: ClassVar[str] = "amem"
    recalled: int = Field(5, ge=1, description="largest number of notes shown before an episode")
    links: int = Field(
        3,
        ge=0,
        description="number of nearest earlier notes that a new note is linked with and may "
        "revise; 0 = none",
    )
    embedding: Embedding = "auto"

    @property
    def reflects(self) -> bool:
        return True

    def open(self) -> Notebook:
        return AMemNotebook(self)


@dataclass(frozen=True, slots=True)
class Note:
    """A note with its description; `links` are the nearest earlier notes, nearest first."""

    entry: Entry
    keywords: str = ""
    context: str = ""
    tags: str = ""
    links: tuple[int, ...] = ()

    def text(self) -> str:
        parts = {"Context": self.context, "Tags": self.tags}
        return " ".join(
            [self.entry.reflection, *(f"{title}: {text}" for title, text in parts.items() if text)]
        )

    def vector(self, embedding: Embedding) -> Vector:
        return embed(
            " ".join(
                (self.entry.opening, self.entry.reflection, self.keywords, self.context, self.tags)
            ),
            embedding,
        )


class AMemNotebook(Notebook):
    def __init__(self, options: AMem) -> None:
        self.options = options
        self.notes: dict[int, Note] = {}  # by number, oldest first

    async def add(self, entry: Entry, ask: Ask) -> None:
        note = read_description(entry, await ask(_DESCRIBE.format(**asdict(entry))))
        near = self._nearest(note.vector(self.options.embedding))[: self.options.links]
        if near:
            await self._revise(note, near, ask)
        self.notes[entry.number] = replace(note, links=tuple(near))

    async def _revise(self, note: Note, near: list[int], ask: Ask) -> None:
        earlier = "\n".join(f"{number}: {self.notes[number].text()}" for number in sorted(near))
        answer = await ask(_REVISE.format(new=note.text(), earlier=earlier))
        for number, context, tags in read_revisions(answer):
            if number in near:
                held = self.notes[number]
                self.notes[number] = replace(held, context=context, tags=tags or held.tags)

    async def show(self, opening: str, ask: Ask) -> str:
        chosen = self._recall(embed(opening, self.options.embedding))
        return "\n".join(f"Note {number}: {self.notes[number].text()}" for number in sorted(chosen))

    def _recall(self, query: Vector) -> list[int]:
        """The nearest note and its linked notes, the next nearest, and so on; each once."""
        found = [
            one for number in self._nearest(query) for one in (number, *self.notes[number].links)
        ]
        return list(dict.fromkeys(found))[: self.options.recalled]

    def _nearest(self, query: Vector) -> list[int]:
        """All notes, most similar first."""
        if not self.notes:
            return []
        numbers = list(self.notes)
        return [
            numbers[row]
            for row in rank(
                query,
                np.stack([note.vector(self.options.embedding) for note in self.notes.values()]),
            )
        ]


def read_revisions(answer: str) -> Iterator[tuple[int, str, str]]:
    """Number, new context and new tags of every line in the expected format.

    >>> list(read_revisions("- 3: when it bluffs | bets, calls"))
    [(3, 'when it bluffs', 'bets, calls')]
    """
    for line in answer.splitlines():
        if (match := _REVISION.match(line)) is not None and len(match[1]) < _DIGITS:
            yield int(match[1]), _one_line(match[2]), _one_line(match[3] or "")


def read_description(entry: Entry, answer: str) -> Note:
    """A note with the description in the model's answer; missing lines stay empty.

    >>> read_description(Entry(1, "", "", "won", "It bluffs."), "Keywords: bluff, call").keywords
    'bluff, call'
    """
    lines = answer.splitlines()
    found = {
        match[1].lower(): _one_line(match[2])
        for line in lines
        if (match := re.match(r"\W*(keywords|context|tags)\W*:\W*(.*)", line, re.IGNORECASE))
    }
    return Note(entry, found.get("keywords", ""), found.get("context", ""), found.get("tags", ""))


def _one_line(text: str) -> str:
    return " ".join(text.split())
