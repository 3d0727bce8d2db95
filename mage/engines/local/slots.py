"""Slots: where sequences keep their keys and values, and how a prompt finds a cached prefix.

Prompts only grow, so most requests extend the tokens of a free slot and continue in place.
Otherwise the longest common prefix is copied from another slot. Prefixes are found by chained
hashes of blocks of 16 tokens and then compared token by token, so a hash collision costs time but
never gives a wrong result.
"""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

BLOCK = 16
CANDIDATES = 8  # slots with the same block that are compared token by token
IDLE = 64  # steps after which a free slot is preferred to an unused one; keeps used slots dense
ROOT = 0x6D616765

Ids = tuple[int, ...]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot for a prompt: `reused` tokens are cached; those from `kept` on come from `source`."""

    slot: int
    reused: int
    source: int
    kept: int


class Slots:
    """Which slot holds which tokens. `filled` counts the tokens of a slot whose keys exist."""

    def __init__(self, count: int, context: int, share: bool = True) -> None:
        self.count, self.share = count, share
        self.tokens = np.zeros((count, context), np.int64)
        self.filled = np.zeros(count, np.int64)
        self.prompts: list[Ids] = [()] * count
        # Used before and free now -> step of release, oldest first.
        self.free: OrderedDict[int, int] = OrderedDict()
        self.used = 0  # slots 0..used-1 have been used
        self.clock = 0
        self.clear()

    def clear(self) -> None:
        """Drop the contents of all slots; leased slots stay leased and are filled again.

        Without leases the state is that of a new pool. The slot of a sequence decides its
        neighbours in a batch, and so the last bits of a result. A resumed run has a new pool and
        must give the same results as an uninterrupted one.
        """
        if len(self.free) == self.used:
            self.free.clear()
            self.used = self.clock = 0
        self.holders: dict[int, dict[int, None]] = {}
        # Free slots that can be continued: by length and last tokens, the latest released last.
        self.ends: dict[int, dict[Ids, list[int]]] = {}
        self.texts: dict[int, tuple[Ids, Ids]] = {}  # prompt and reply of such a slot
        self.pending: set[int] = set()
        self.chains: list[list[int]] = [[] for _ in range(self.count)]
        self.held = [0] * self.count
        self.filled[:] = 0

    @property
    def available(self) -> int:
        return self.count - self.used + len(self.free)

    def lease(self, prompt: Ids) -> Lease | None:
        """A slot for this prompt, or None if it should wait for a prefix that is being computed."""
        own, kept = self._extendable(prompt)
        depth = kept // BLOCK
        chain = self.chains[own][:depth]
        if self.share:
            chain += _chain(prompt[depth * BLOCK :], chain[-1] if chain else ROOT)
        while depth < len(chain) and chain[depth] in self.holders:
            depth += 1
        new, source, found = np.array(prompt[kept:], np.int64), -1, 0
        if kept < depth * BLOCK:
            ids = np.concatenate((self.tokens[own, :kept], new))
            source, found = self._best_holder(chain, depth, ids)
        if self._is_coming(chain, depth, max(found, kept)):
            return None
        slot = own if own >= 0 else self._victim()
        self.tokens[slot, kept : len(prompt)] = new
        if slot == source:
            kept = found
        self.free.pop(slot, None)
        reused = min(max(found, kept), len(prompt) - 1)
        kept = min(kept, reused)
        self._assign(slot, chain, kept)
        self.prompts[slot] = prompt
        self.filled[slot] = reused
        return Lease(slot, reused, source, kept)

    def commit(self, slot: int) -> None:
        """The keys of `filled` tokens are computed now: others may copy them."""
        if not self.share:
            return
        chain, end = self.chains[slot], int(self.filled[slot]) // BLOCK
        if len(chain) < end:
            start = len(chain)
            ids = self.tokens[slot, start * BLOCK : end * BLOCK].tolist()
            chain += _chain(ids, chain[-1] if chain else ROOT)
        new = chain[self.held[slot] : end]
        for block in new:
            others = self.holders.get(block)
            if others is None:
                self.holders[block] = {slot: None}
            else:
                others[slot] = None
        self.pending.difference_update(new)
        self.held[slot] = max(end, self.held[slot])

    def release(self, slot: int) -> None:
        """The sequence is finished; its tokens stay for later prompts."""
        self.free[slot] = self.clock
        if not self.share:
            return
        self.commit(slot)
        length, prompt = int(self.filled[slot]), self.prompts[slot]
        text = (prompt[:length], tuple(self.tokens[slot, len(prompt) : length].tolist()))
        self.texts[slot] = text
        self.ends.setdefault(length, {}).setdefault(_last(text), []).append(slot)

    def _best_holder(self, chain: list[int], depth: int, ids: Array) -> tuple[int, int]:
        """The slot with the longest common prefix, and the length of that prefix."""
        best, found = -1, 0
        if depth:
            for slot in islice(self.holders[chain[depth - 1]], CANDIDATES):
                length = _common(self.tokens[slot, : self.filled[slot]], ids)
                if length > found:
                    best, found = slot, length
        return best, found

    def _extendable(self, prompt: Ids) -> tuple[int, int]:
        """The free slot with the most tokens that are ALL a prefix of the prompt, or (-1, 0)."""
        best, kept = -1, 0
        for length, slots in self.ends.items():
            if kept < length <= len(prompt):
                start = length - BLOCK if length > BLOCK else 0
                for slot in reversed(slots.get(prompt[start:length], ())):
                    if self._starts(slot, prompt, length):
                        best, kept = slot, length
                        break
        return best, kept

    def _starts(self, slot: int, prompt: Ids, length: int) -> bool:
        """Whether the prompt starts with the text of a slot.

        Tuples of the same objects are compared faster than arrays are made.
        """
        asked, replied = self.texts[slot]
        return prompt[: len(asked)] == asked and prompt[len(asked) : length] == replied

    def _is_coming(self, chain: list[int], depth: int, reused: int) -> bool:
        while depth < len(chain) and chain[depth] in self.pending:
            depth += 1
        return depth * BLOCK - reused >= 2 * BLOCK

    def _victim(self) -> int:
        """The slot to overwrite: one that was idle for long, else a new one, else the oldest."""
        oldest, since = next(iter(self.free.items()), (-1, self.clock))
        if self.used < self.count and self.clock - since < IDLE:
            self.used += 1
            return self.used - 1
        return oldest

    def _assign(self, slot: int, chain: list[int], kept: int) -> None:
        """Drop the blocks of a slot after the first `kept` tokens; its prompt has this chain."""
        self._forget_text(slot)
        keep = min(kept // BLOCK, self.held[slot])
        for block in self.chains[slot][keep : self.held[slot]]:
            others = self.holders[block]
            del others[slot]
            if not others:
                del self.holders[block]
        self.chains[slot], self.held[slot] = chain, keep
        self.pending.update(block for block in chain[keep:] if block not in self.holders)

    def _forget_text(self, slot: int) -> None:
        if slot not in self.texts:
            return
        text = self.texts.pop(slot)
        length, last = len(text[0]) + len(text[1]), _last(text)
        slots = self.ends[length]
        slots[last].remove(slot)
        if not slots[last]:
            del slots[last]
        if not slots:
            del self.ends[length]


def _last(text: tuple[Ids, Ids]) -> Ids:
    """The last tokens of a prompt and its reply."""
    return (text[0][-BLOCK:] + text[1])[-BLOCK:]


def _chain(ids: "Ids | list[int]", last: int = ROOT) -> list[int]:
    """One hash per full block; it stands for all tokens up to the end of that block."""
    chain = []
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        last = hash((last, tuple(ids[end - BLOCK : end])))
        chain.append(last)
    return chain


def _common(left: Array, right: Array) -> int:
    size = min(len(left), len(right))
    differs = left[:size] != right[:size]
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size
