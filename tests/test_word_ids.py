"""Ids word by word are those of the whole text, for every tokenizer that the check accepts."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from mage.agent.chat import Chat
from mage.agent.word_ids import cuts_words, encode_words
from mage.models.base import SHIPPED

TEXTS = [
    "You are in a room. Commands: go to desk 1, go to drawer 22, don't look at it.\n\nIt's open.",
    "<action>put pencil 3 in/on shelf 1</action> (+1.50) [SEP] x  y\t z \n w e\u0301 \u4e2d a",
]
WORDS = st.sampled_from(
    ["go", " to", " desk 1,", "'s", " 's", "\n", " \n", "  ", ".", " .\n", "1", "e\u0301", "\u4e2d",
     "\u00a0", "\u2003", " a", "<|end|>", "\t", "\x1c", "don't", "!!", " A", "\u0301", "-"]
)  # fmt: skip
# Groups of letters, digits one by one, punctuation with the line ends after it, spaces.
NEWER = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PARTS = pre_tokenizers.ByteLevel(add_prefix_space=False)


def trained(cutter: Any, normalizer: Any = None, special: str = "<|end|>") -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.normalizer = cutter, normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[special],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def newer() -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(NEWER), "isolated"), byte_level])


TOKENIZERS = {
    "older": trained(PARTS),
    "digits": trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), PARTS])),
    "newer": trained(newer(), normalizers.NFC()),
    "embedded": Chat.load(SHIPPED / "embedded").tokenizer,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_ids_of_words_are_the_ids_of_the_text(name):
    """All texts are encoded by one function, which keeps the ids of words."""
    tokenizer = TOKENIZERS[name]
    assert cuts_words(tokenizer)
    encode = encode_words(tokenizer)

    @settings(max_examples=60)
    @given(st.lists(st.one_of(WORDS, st.text(max_size=4)), max_size=24).map("".join))
    @example(TEXTS[0])
    @example(TEXTS[1])
    def check(text: str) -> None:
        assert encode(text) == tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    check()


@pytest.mark.parametrize(
    "other",
    [
        trained(pre_tokenizers.Metaspace()),  # it writes a mark before every text
        trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),  # no cut
        trained(PARTS, normalizers.Strip()),
        trained(PARTS, special="<the end>"),
        trained(None),
    ],
)
def test_other_tokenizers_encode_whole_texts(other):
    assert not cuts_words(other)
    assert encode_words(other)("a b") == tuple(other.encode("a b", add_special_tokens=False).ids)


def test_a_token_that_takes_spaces_prevents_words():
    tokenizer = trained(PARTS)
    tokenizer.add_special_tokens([AddedToken("<mask>", rstrip=True)])
    assert not cuts_words(tokenizer)
