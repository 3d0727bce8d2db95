"""Similarity of two texts as sets of words, 0 to 100: `thefuzz.fuzz.token_set_ratio` (0.22).

WebShop's reward uses it. It is implemented here because the package is 3 MB of compiled code for
one function. The tests hold values of the original.
"""

import re
from functools import lru_cache

_DROPPED: dict[int, str | None] = {
    **dict.fromkeys(range(128, 256)),
    0x130: "i",
}  # as the original; \u0130 has a lower case of two characters
_NO_WORD = re.compile(r"[\W_]")


@lru_cache(maxsize=1 << 16)
def token_set_ratio(one: str, other: str) -> int:
    """100 if one set of words contains the other; else the best of three comparisons.

    >>> token_set_ratio("essential oil", "essential oils")
    96
    >>> token_set_ratio("('number', 'pack of 1')", "pack of 12")
    82
    """
    first, second = _words(one), _words(other)
    if not first or not second:
        return 0
    common, left, right = first & second, _join(first - second), _join(second - first)
    if common and not (left and right):
        return 100
    shared = len(_join(common))
    gap = int(shared > 0)  # the space after the common words
    lengths = (shared + gap + len(left), shared + gap + len(right))
    best = _alike(len(left) + len(right) - 2 * _common_length(left, right), sum(lengths))
    if shared:
        best = max(
            best,
            _alike(gap + len(left), shared + lengths[0]),
            _alike(gap + len(right), shared + lengths[1]),
        )
    return round(best)


def _words(text: str) -> frozenset[str]:
    return frozenset(_NO_WORD.sub(" ", text.translate(_DROPPED)).lower().split())


def _join(words: frozenset[str]) -> str:
    return " ".join(sorted(words))


def _alike(distance: int, length: int) -> float:
    return 100.0 - 100.0 * distance / length if length else 100.0


def _common_length(one: str, other: str) -> int:
    """Length of the longest common subsequence, bit-parallel (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for at, char in enumerate(one):
        places[char] = places.get(char, 0) | 1 << at
    full = (1 << len(one)) - 1
    row = full
    for char in other:
        match = row & places.get(char, 0)
        row = ((row + match) | (row - match)) & full
    return len(one) - row.bit_count()
