"""Porter's stemmer (Program 14, 1980) with its author's two later rules, as in Lucene.

The later rules are bli -> ble and logi -> log. All characters except a, e, i, o, u, and y after a
consonant count as consonants, digits and other scripts included.
"""

_STEP_2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"),
    ("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"),
    ("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"), ("iveness", "ive"),
    ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"),
    ("logi", "log"),
)  # fmt: skip
_STEP_3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""),
    ("ness", ""),
)  # fmt: skip
_ENDINGS = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"
_STEP_4 = tuple(_ENDINGS.split())


def stem(word: str) -> str:
    """The stem of a lower-case word; words of one or two letters are their own.

    >>> [stem(word) for word in ("shirts", "relational", "waterproofing", "hopping")]
    ['shirt', 'relat', 'waterproof', 'hop']
    """
    if len(word) <= 2:
        return word
    word = _past_and_gerund(_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(_replace(word, _STEP_2), _STEP_3)
    return _tidy(_drop_suffix(word))


def _shape(word: str) -> str:
    """`c` for a consonant and `v` for a vowel, letter by letter."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How many times a vowel is followed by a consonant: Porter's m."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _ends_short(word: str) -> bool:
    """Consonant, vowel, consonant other than w, x, y: hop, but not snow."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith("sses") or word.endswith("ies"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            cut = word[: -len(suffix)]
            return _mend(cut) if _has_vowel(cut) else word
    return word


def _mend(word: str) -> str:
    """What is left after -ed and -ing: conflat(e), hop(p), fil(e)."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_double(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    """The first suffix that fits decides, whether or not the stem before it is long enough."""
    for suffix, instead in rules:
        if word.endswith(suffix):
            cut = word[: -len(suffix)]
            return cut + instead if _measure(cut) > 0 else word
    return word


def _drop_suffix(word: str) -> str:
    for suffix in _STEP_4:
        if word.endswith(suffix):
            cut = word[: -len(suffix)]
            if suffix == "ion" and not cut.endswith(("s", "t")):
                continue
            return cut if _measure(cut) > 1 else word
    return word


def _tidy(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
