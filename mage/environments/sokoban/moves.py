"""Actions of Sokoban: sequences of moves, and the spellings that an agent may use."""

import itertools
import re
from functools import cache

from mage.environments.sokoban.rooms import MOVES

_LONGEST = 100  # characters of an action
_SPELLINGS = {
    **{move: move for move in MOVES},
    **dict(zip("udlr↑↓←→⬆⬇⬅➡", MOVES * 3, strict=True)),
}


@cache
def all_actions(most: int) -> tuple[str, ...]:
    """All sequences of one to `most` moves, short ones first."""
    return tuple(
        " ".join(row)
        for length in range(1, most + 1)
        for row in itertools.product(MOVES, repeat=length)
    )


def read_moves(written: str, most: int) -> str | None:
    """Parse moves with or without commas, as words, first letters or arrows."""
    if len(written) > _LONGEST:
        return None
    marked = re.sub("([↑↓←→⬆⬇⬅➡])\N{VARIATION SELECTOR-16}?", r" \1 ", written.lower())
    words = [_SPELLINGS.get(word) for word in re.split("[ ,]+", marked.strip(" ,."))]
    found = " ".join(word for word in words if word is not None)
    return found if None not in words and found in all_actions(most) else None
