"""The input of a prefill: prompts of different lengths in buffers of a few fixed sizes.

A recorded graph reads fixed addresses, so prompts are padded to the smallest bucket that holds
them. A bucket has room for `length` tokens and `count` sequences. For example sequence a with three
new tokens in slot 7 and b with two in slot 2, blocks of two tokens, in a bucket of 8 tokens:

    ids       a4 a5 a6 b0 b1  0  0  0    new tokens in one flat row
    position   4  5  6  0  1  0  0  0    their places in their sequences
    owner      7  7  7  2  2  S  S  S    their slots; S is the spare slot, which nobody reads
    blocks    [a4 a5][a6][b0 b1][.  .][.]   tiles of the attention; padding has a negative count
    entries   row 2 -> slot 7, row 4 -> slot 2, 0 -> S ..    rows whose next token is sampled
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from mage.engines.gpu.state import Blocks
from mage.engines.sampling import SamplingBatch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Joining:
    """Sequences with `new` tokens to prefill, the first of them at position `start`.

    Sequences whose prompt is then complete (`ready`) get their first reply token. Every array but
    `ids` has one entry per sequence.
    """

    slots: Array
    start: Array
    new: Array
    ready: Array
    ids: Array
    choices: SamplingBatch


class Words(NamedTuple):
    """The integers of a bucket, for its tokens, its blocks and its entries; arrays or tensors."""

    ids: Any
    position: Any
    owner: Any
    block_start: Any
    block_count: Any
    block_slot: Any
    block_position: Any
    slot: Any
    row: Any
    filled: Any
    index: Any
    seed: Any
    top_k: Any


class PrefillBuffer:
    """The buffers on the device, in buckets of at most `tokens` tokens and `slots` sequences."""

    def __init__(self, tokens: int, slots: int, width: int, device: torch.device) -> None:
        self.spare, self.width = slots, width
        self.lengths, self.counts = bucket_lengths(tokens), bucket_counts(slots)
        most = sum(self._sizes(self.lengths[-1], self.counts[-1]))
        self.words = torch.zeros(most, dtype=torch.int64, device=device)
        self.reals = torch.ones(2, self.counts[-1], device=device)

    def views(self, length: int, count: int) -> tuple[Words, Blocks, torch.Tensor]:
        """The tensors of a bucket: integers, blocks, and temperature and top-p of the entries."""
        sizes = self._sizes(length, count)
        words = Words(*self.words[: sum(sizes)].split(sizes))
        blocks = Blocks(
            words.block_start, words.block_count, words.block_slot, words.block_position, self.width
        )
        return words, blocks, self.reals[:, :count]

    def upload(self, joining: Joining) -> tuple[int, int]:
        """Write the joining sequences into the smallest bucket; returns its length and count."""
        length = at_least(self.lengths, int(joining.new.sum()))
        count = at_least(self.counts, len(joining.new))
        sizes = self._sizes(length, count)
        flat = np.zeros(sum(sizes), np.int64)
        words = Words(*_parts(flat, sizes))
        offsets = np.cumsum(joining.new) - joining.new  # first row of each sequence
        self._fill_tokens(words, joining, offsets)
        self._fill_blocks(words, joining, offsets)
        reals = self._fill_entries(words, joining, offsets)
        to_device(self.words[: len(flat)], flat)
        to_device(self.reals[:, :count], reals)
        return length, count

    def _sizes(self, length: int, count: int) -> list[int]:
        return [length] * 3 + [length // self.width + count + 1] * 4 + [count] * 6

    def _fill_tokens(self, words: Words, joining: Joining, offsets: Array) -> None:
        total, new = len(joining.ids), joining.new
        words.ids[:total] = joining.ids
        words.position[:total] = np.arange(total) + np.repeat(joining.start - offsets, new)
        words.owner[:total], words.owner[total:] = np.repeat(joining.slots, new), self.spare

    def _fill_blocks(self, words: Words, joining: Joining, offsets: Array) -> None:
        """Each sequence in blocks of `width` tokens; then the padding rows, with minus their count.

        All blocks that are left over keep a count of 0.
        """
        new, width = joining.new, self.width
        blocks = -(-new // width)  # of each sequence
        first = np.repeat(np.cumsum(blocks) - blocks, blocks)
        inside = (np.arange(blocks.sum()) - first) * width  # tokens before, in the sequence
        used = slice(0, len(inside))
        words.block_start[used] = np.repeat(offsets, blocks) + inside
        words.block_count[used] = np.minimum(np.repeat(new, blocks) - inside, width)
        words.block_slot[used] = np.repeat(joining.slots, blocks)
        words.block_position[used] = np.repeat(joining.start, blocks) + inside
        total, length = len(joining.ids), len(words.ids)
        padding = np.arange(total, length, width)
        unused = slice(len(inside), len(inside) + len(padding))
        words.block_start[unused] = padding
        words.block_count[unused] = -(np.minimum(padding + width, length) - padding)

    def _fill_entries(self, words: Words, joining: Joining, offsets: Array) -> Array:
        """One entry for each complete prompt; returns their temperatures and top-p."""
        ready, choices = joining.ready, joining.choices
        count = int(ready.sum())
        words.slot[:] = self.spare
        words.slot[:count] = joining.slots[ready]
        words.row[:count] = (offsets + joining.new - 1)[ready]
        words.filled[:count] = (joining.start + joining.new)[ready]
        words.index[:count] = choices.index[ready]
        words.seed[:count] = choices.seed[ready]
        words.top_k[:count] = choices.top_k[ready]
        reals = np.ones((2, len(words.slot)), np.float32)
        reals[:, :count] = choices.temperature[ready], choices.top_p[ready]
        return reals


def _parts(flat: Array, sizes: list[int]) -> Iterator[Array]:
    """Neighbouring views of an array."""
    start = 0
    for size in sizes:
        yield flat[start : start + size]
        start += size


def to_device(target: torch.Tensor, numbers: Array) -> None:
    """Copy numbers into a tensor of the device, without waiting."""
    source = torch.from_numpy(np.ascontiguousarray(numbers)).to(target.dtype)
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)


def bucket_lengths(most: int) -> list[int]:
    """64, 128, 256, 512, then four lengths per doubling, and at last `most`.

    A short prefill takes as long as one read of the weights, so its padding costs nothing.

    >>> bucket_lengths(2500)
    [64, 128, 256, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2500]
    """
    long = (2**power * part for power in range(7, most.bit_length()) for part in (4, 5, 6, 7))
    return [*(length for length in (64, 128, 256, *long) if length < most), most]


def bucket_counts(most: int) -> list[int]:
    """16, 64, 256 and so on, and at last `most`."""
    return [*(4**power for power in range(2, most.bit_length()) if 4**power < most), most]


def at_least(sizes: list[int], needed: int) -> int:
    return next(size for size in sizes if size >= needed)
