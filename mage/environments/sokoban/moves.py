"""Actions of Sokoban: sequences of moves, and the spellings that an agent may use."""

import itertools
import re
from functools import cache
from typing import Literal

from mage.environments.sokoban.rooms import MOVES

Surplus = Literal["refuse", "cut"]
_LONGEST = 100  # characters of an action
_SPELLINGS = {**{move: move for move in MOVES}, **dict(zip("udlr↑↓←→⬆⬇⬅➡", MOVES * 3, strict=True))}


@cache
def all_actions(most: int) -> tuple[str, ...]:
    """All sequences of one to `most` moves, short ones first."""
    return tuple(
        " ".join(row)
        for length in range(1, most + 1)
        for row in itertools.product(MOVES, repeat=length)
    )


def read_moves(written: str, most: int, surplus: Surplus = "refuse") -> str | None:
    """Parse moves with or without commas, as words, first letters or arrows.

    More than `most` moves are no action, or only the first ones count (`surplus`).
    """
    if len(written) > _LONGEST and surplus == "refuse":
        return None
    marked = re.sub("([↑↓←→⬆⬇⬅➡])\N{VARIATION SELECTOR-16}?", r" \1 ", written.lower())
    words = [_SPELLINGS.get(word) for word in re.split("[ ,]+", marked.strip(" ,."))]
    if None in words or (len(words) > most and surplus == "refuse"):
        return None
    return " ".join(word for word in words[:most] if word is not None) or None
