"""The nouns of a product title: spaCy's small English model if installed, else simple rules.

spaCy tags almost every capitalised word of a title as a name. So the rules drop numbers and words
of closed classes. Common adjectives, verbs and certain endings are dropped only in lower case.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal

Tagger = Literal["auto", "spacy", "bundled"]
MODEL = "en_core_web_sm"

_CLOSED = (
    "a an the this that these those each every all any both some no other another such more "
    "most less few several many much own same one two three four "
    "five six seven eight nine ten dozen and or but nor so yet if than as because while when "
    "where about above across after against along among around at "
    "before behind below beneath beside between beyond by down during except for from in "
    "inside into like near of off on onto out outside over past per "
    "since through to toward under until up upon via with within without w i you he she it "
    "we they me him her us them my your his its our their who what "
    "which whose is are was were be been being am do does did has have had can could will "
    "would should may might must not n't too very just only also even "
    "ever never again further then once here there now how why etc vs plus"
)
_DESCRIBING = (
    "new old big small large little mini tiny huge long short tall high low wide narrow slim "
    "thin thick deep flat round square soft hard heavy light "
    "lightweight strong sturdy solid hollow smooth rough dry wet hot cold warm cool fresh "
    "clean clear dark bright natural organic pure raw real true fake "
    "artificial synthetic digital electric electronic electrical automatic manual wireless "
    "portable adjustable removable reusable washable disposable "
    "refillable rechargeable foldable folding breathable waterproof durable flexible "
    "stretchy elastic comfortable casual formal classic modern vintage "
    "rustic elegant cute funny beautiful pretty lovely stylish fashionable sexy perfect "
    "great good best better premium professional original official "
    "universal compatible multiple multi single double triple twin full half complete total "
    "whole extra super ultra non free safe easy quick fast slow "
    "instant anti sensitive healthy vegan edible delicious sweet sour spicy salty "
    "gluten-free sugar-free wooden metallic plastic floral solid-color plain "
    "personalized decorative ideal suitable available ready long-lasting high-quality "
    "outdoor indoor off low-rise loose tight fit fitted padded quilted "
    "printed striped hooded lined sleeveless backless strapless open closed built set made "
    "includes including fits great-tasting replacement-free"
)
_VERBS = (
    "get buy use make find keep take give see help fit let go try need want look enjoy wear add "
    "bring work works protect protects prevent reduce improve"
)
_NEVER, _RARELY = frozenset(_CLOSED.split()), frozenset(f"{_DESCRIBING} {_VERBS}".split())
_TOKEN = re.compile(r"[^\W\d_](?:[\w']|\.(?=\w))*|\d\w*")
_ENDINGS = ("able", "ible", "ful", "less", "ous", "ish", "ly", "ed", "ive", "ic", "ing")


@lru_cache(maxsize=1 << 16)
def nouns(title: str, tagger: Literal["spacy", "bundled"]) -> tuple[str, ...]:
    """The nouns of a title in order, lower case, with repetitions.

    >>> nouns("Mens Shoes for outdoor basketball, 2 pairs", "bundled")
    ('mens', 'shoes', 'basketball', 'pairs')
    """
    if tagger == "spacy":
        return _spacy()(title)
    return tuple(word.lower() for word in map(_plain, _TOKEN.findall(title)) if _is_noun(word))


def has_spacy() -> bool:
    """Whether spaCy and its small English model are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("spacy", MODEL))


def _plain(word: str) -> str:
    return word[:-2] if word.endswith(("'s", "'S")) else word


def _is_noun(word: str) -> bool:
    if not word[:1].isalpha() or len(word) < 2 or word.lower() in _NEVER:
        return False
    return not (word.islower() and (word in _RARELY or (len(word) > 5 and word.endswith(_ENDINGS))))


@cache
def _spacy() -> Callable[[str], tuple[str, ...]]:
    model: Any = importlib.import_module("spacy").load(
        MODEL, disable=["parser", "ner", "lemmatizer"]
    )
    return lambda title: tuple(
        token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN")
    )
