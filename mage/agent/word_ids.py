"""Text to ids, word by word: the words of prompts repeat, so their ids are found once.

Most tokenizers cut a text before they look up its tokens, and they always cut before a space that
is followed by a letter: "go to desk 1, open it" has the parts "go", " to", " desk 1,", " open" and
" it". The ids of a text are then those of its parts, one after the other. `encode_words` checks
this once for a tokenizer, and encodes whole texts with one that does otherwise.
"""

import json
import re
import string
from collections.abc import Callable
from functools import lru_cache
from itertools import chain

from tokenizers import Tokenizer

Ids = tuple[int, ...]
WORDS_KEPT = 1 << 15
_WORD = re.compile("(?<=[!-~])(?= [A-Za-z])")  # the place before such a space


def encode_words(tokenizer: Tokenizer) -> Callable[[str], Ids]:
    """The function that gives the ids of a text."""

    def encode(text: str) -> Ids:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    if not cuts_words(tokenizer):
        return encode
    known = lru_cache(maxsize=WORDS_KEPT)(encode)
    return lambda text: tuple(chain.from_iterable(map(known, _WORD.split(text))))


def cuts_words(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer cuts before a space and a letter, whatever character is before them.

    Special tokens with spaces, and tokens that take spaces from their neighbours, prevent it. So
    does a normalizer that is not known to change single characters only.
    """
    cutter, normalizer = tokenizer.pre_tokenizer, tokenizer.normalizer
    if cutter is None or "ByteLevel" not in (state := cutter.__getstate__().decode()):
        return False
    if normalizer is not None and json.loads(normalizer.__getstate__())["type"] != "NFC":
        return False
    if '"add_prefix_space":true' in state or any(
        " " in token.content or token.lstrip or token.rstrip or token.single_word
        for token in tokenizer.get_added_tokens_decoder().values()
    ):
        return False

    def parts(text: str) -> list[str]:
        return [part for part, _ in cutter.pre_tokenize_str(text)]

    before = (left + mark for mark in string.printable.strip() for left in ("", "a", "0", "-", " "))
    return all(parts(f"{text} a") == [*parts(text), *parts(" a")] for text in before)
