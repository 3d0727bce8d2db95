"""Where a reply ends: end tokens and stop strings, without decoding every token."""

from typing import Any

import numpy as np

from mage.agent.chat import Chat

Array = np.ndarray[Any, Any]


class StopTable:
    """Which tokens end a reply, and which may complete a stop string: only those are decoded."""

    def __init__(self, chat: Chat, vocabulary: int) -> None:
        self.chat = chat
        self.is_end = np.zeros(vocabulary, bool)
        self.is_end[[token for token in chat.end_ids if token < vocabulary]] = True
        self.may_stop = np.zeros((1, vocabulary), bool)
        self.kinds: dict[tuple[str, ...], int] = {(): 0}
        self.texts: list[str] = []

    def kind(self, stop: tuple[str, ...]) -> int:
        """The row of `may_stop` for these stop strings."""
        if stop not in self.kinds:
            self.kinds[stop] = len(self.may_stop)
            self.may_stop = np.concatenate([self.may_stop, self._row(stop)[None]])
        return self.kinds[stop]

    def _row(self, stop: tuple[str, ...]) -> Array:
        """A token can complete a stop string only if its text has the string's last character.

        A token that is part of a character decodes to a replacement mark, and a decoder may drop
        blanks of a single token: both are always checked.
        """
        vocabulary = len(self.is_end)
        if any(not text or text[-1].isspace() for text in stop):
            return np.ones(vocabulary, bool)
        if not self.texts:
            self.texts = self.chat.tokenizer.decode_batch(
                [[token] for token in range(vocabulary)], skip_special_tokens=False
            )
        last = {text[-1] for text in stop} | {"\ufffd"}
        return np.fromiter((not last.isdisjoint(text) for text in self.texts), bool, vocabulary)
