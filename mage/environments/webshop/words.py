"""Index terms as in Lucene's English analysis.

Unicode words, no possessive 's, lower case, 33 stop words, Porter stems. Words follow UAX #29:
letters and digits stay together, `don't`, `size:xl` and `3.5` stay whole, `pop-up` is split. A text
is mapped to its character classes, then one pattern finds the words. Plain ASCII text skips the
mapping.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from mage.environments.webshop.porter import stem

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
_STOP = frozenset(_STOP_WORDS.split())
_LONGEST = 255  # Lucene splits longer words

# Classes: a letter, 0 digit, _ joins both, : between letters, , between digits, . between either,
# x belongs to the character before it, z joins pictures, h one word per character (Han, Hiragana),
# k Katakana, t scripts without spaces, e picture, - anything else.
_MIDDLE = {
    ":": ":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a",
    ".": "'.\u2018\u2019\u2024\ufe52\uff07\uff0e",
    ",": ",;\u037e\u0589\u2044\ufe50\ufe54\uff0c\uff1b",
}
_JOINS = "_\u203f\u2040\u2054\ufe33\ufe34\uff3f"
_PICTURES = (  # Unicode's Extended_Pictographic, with the flags
    (0x00A9, 0x00A9), (0x00AE, 0x00AE), (0x203C, 0x203C), (0x2049, 0x2049), (0x2122, 0x2122),
    (0x2139, 0x2139), (0x2194, 0x2199), (0x21A9, 0x21AA), (0x231A, 0x231B), (0x2328, 0x2328),
    (0x2388, 0x2388), (0x23CF, 0x23CF), (0x23E9, 0x23F3), (0x23F8, 0x23FA), (0x25AA, 0x25AB),
    (0x25B6, 0x25B6), (0x25C0, 0x25C0), (0x25FB, 0x25FE), (0x2600, 0x2605), (0x2607, 0x2612),
    (0x2614, 0x2685), (0x2690, 0x2705), (0x2708, 0x2712), (0x2714, 0x2714), (0x2716, 0x2716),
    (0x271D, 0x271D), (0x2721, 0x2721), (0x2728, 0x2728), (0x2733, 0x2734), (0x2744, 0x2744),
    (0x2747, 0x2747), (0x274C, 0x274C), (0x274E, 0x274E), (0x2753, 0x2755), (0x2757, 0x2757),
    (0x2763, 0x2767), (0x2795, 0x2797), (0x27A1, 0x27A1), (0x27B0, 0x27B0), (0x27BF, 0x27BF),
    (0x2934, 0x2935), (0x2B05, 0x2B07), (0x2B1B, 0x2B1C), (0x2B50, 0x2B50), (0x2B55, 0x2B55),
    (0x3030, 0x3030), (0x303D, 0x303D), (0x3297, 0x3297), (0x3299, 0x3299), (0x1F000, 0x1F0FF),
    (0x1F10D, 0x1F10F), (0x1F12F, 0x1F12F), (0x1F16C, 0x1F171), (0x1F17E, 0x1F17F),
    (0x1F18E, 0x1F18E), (0x1F191, 0x1F19A), (0x1F1AD, 0x1F20F), (0x1F21A, 0x1F21A),
    (0x1F22F, 0x1F22F), (0x1F232, 0x1F23A), (0x1F23C, 0x1F23F), (0x1F249, 0x1F3FA),
    (0x1F400, 0x1F53D), (0x1F546, 0x1F64F), (0x1F680, 0x1F6FF), (0x1F774, 0x1F77F),
    (0x1F7D5, 0x1F7FF), (0x1F80C, 0x1F80F), (0x1F848, 0x1F84F), (0x1F85A, 0x1F85F),
    (0x1F888, 0x1F88F), (0x1F8AE, 0x1F8FF), (0x1F90C, 0x1F93A), (0x1F93C, 0x1F945),
    (0x1F947, 0x1FAFF),
)  # fmt: skip
_HAN = (
    (0x2E80, 0x2FD5), (0x3005, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B), (0x3041, 0x309F),
    (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFD),
)  # fmt: skip
_KATAKANA = (
    (0x3031, 0x3035), (0x309B, 0x309C), (0x30A0, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F),
)  # fmt: skip
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF))


def _grammar(letter: str, digit: str, between: tuple[str, str], join: str, tail: str) -> str:
    """Letters and digits with the characters that join them, or joiners alone.

    A pattern that demands a letter or digit would try again at every joiner of a long row of them.
    """
    letters = f"{letter}{tail}(?:{between[0]}{tail}(?={letter}))?"
    digits = f"{digit}{tail}(?:{between[1]}{tail}(?={digit}))?"
    return f"(?:{letters}|{digits}|{join}{tail})+"


_ASCII = re.compile(_grammar("[A-Za-z]", "[0-9]", ("[:.']", "[,;.']"), "_", ""))
_LETTERS_AND_DIGITS = _grammar("a", "0", ("[:.]", "[,.]"), "_", "[xz]*")
_CLASSES = re.compile(f"{_LETTERS_AND_DIGITS}|h[xz]*|k[kxz]*|t[txz]*|ex*(?:zex*)*")


class _Classes(dict[int, str]):
    """Character number -> its class, computed on first use."""

    def __missing__(self, number: int) -> str:
        self[number] = found = _class_of(number)
        return found


def _class_of(number: int) -> str:
    char = chr(number)
    for kind, members in (*_MIDDLE.items(), ("_", _JOINS), ("z", "\u200d"), ("-", "\u200b")):
        if char in members:
            return kind
    for kind, ranges in (("e", _PICTURES), ("h", _HAN), ("k", _KATAKANA), ("t", _UNSPACED)):
        if any(first <= number <= last for first, last in ranges):
            return kind
    if 0x1F3FB <= number <= 0x1F3FF:  # skin tones
        return "x"
    category = unicodedata.category(char)
    if category == "Nd":
        return "0"
    if category[0] == "L" or category == "Nl" or 0x24B6 <= number <= 0x24E9:
        return "a"
    return "x" if category[0] == "M" or category == "Cf" else "-"


_class = _Classes()


def split_words(text: str) -> list[str]:
    """The words of a text, unchanged.

    >>> split_words("Men's T-Shirt, 3.5oz (size:XL)")
    ["Men's", 'T', 'Shirt', '3.5oz', 'size:XL']
    """
    if text.isascii():
        found = _ASCII.findall(text)
        if "_" in text:
            found = [word for word in found if word.strip("_")]
    else:
        found = [
            text[match.start() : match.end()]
            for match in _CLASSES.finditer(text.translate(_class))
            if match[0].strip("_xz")  # joiners alone are not a word
        ]
    return found if all(len(word) <= _LONGEST for word in found) else list(_cut(found))


def _cut(words: list[str]) -> Iterator[str]:
    for word in words:
        yield from (word[at : at + _LONGEST] for at in range(0, len(word), _LONGEST))


@lru_cache(maxsize=1 << 18)
def term(word: str) -> str:
    """The index term of a word; empty for a stop word."""
    if word[-2:] in ("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S"):
        word = word[:-2]
    word = word.lower()
    return "" if word in _STOP else stem(word)


def terms(text: str) -> list[str]:
    """The index terms of a text, in order.

    >>> terms("The men's waterproof jackets")
    ['men', 'waterproof', 'jacket']
    """
    return [found for word in split_words(text) if (found := term(word))]
