"""Similarity of two texts as sets of words, 0 to 100: `thefuzz.fuzz.token_set_ratio` (0.22).

WebShop's reward uses it. The tests hold values of the original, which cleans texts as here.
"""

import re
from functools import lru_cache

from rapidfuzz import fuzz

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
    return round(fuzz.token_set_ratio(_clean(one), _clean(other)))


def _clean(text: str) -> str:
    return _NO_WORD.sub(" ", text.translate(_DROPPED)).lower()
