"""Drafts as two Triton kernels, one program per sequence: guess tokens, and accept right ones.

CUDA only; `mage.engines.drafts` says what is computed.
"""

import triton
import triton.language as tl
from torch import Tensor

from mage.engines.drafts import LONGEST, PLACES
from mage.engines.gpu.state import DeviceState

_BLOCK = 1024
_LONGEST, _PLACES = tl.constexpr(LONGEST), tl.constexpr(PLACES)


def draft(
    slots: Tensor, state: DeviceState, tokens: Tensor, recent: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Newest and drafted tokens, `width` rows per sequence, with their slots and positions.

    Rows beyond the context belong to the spare slot.
    """
    rows = slots.new_empty(3, len(slots) * width)
    _draft[(len(slots),)](
        slots, state.token, state.filled, tokens, recent, *rows,
        tokens.stride(0), tokens.shape[1], len(recent), state.spare,
        width, triton.next_power_of_2(width), _BLOCK, num_warps=8,
    )  # fmt: skip
    return rows[0], rows[1], rows[2]


@triton.jit
def _best(text, end, own, newest, token, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The longest match that ends before `end`, and its newest place, as one number."""
    best = tl.full([BLOCK], 0, tl.int32)
    for block in range(0, end, BLOCK):
        place = block + tl.arange(0, BLOCK)
        same = (place < end) & (tl.load(text + place, mask=place < end, other=-2) == token)
        length = same.to(tl.int32)
        for back in tl.static_range(1, _LONGEST):
            wanted = tl.load(own + newest - back, mask=newest >= back, other=-1)
            there = same & (place >= back)
            same = there & (tl.load(text + place - back, mask=there, other=-2) == wanted)
            length += same.to(tl.int32)
        best = tl.maximum(best, tl.where(length > 0, length * _PLACES + place, 0))
    return tl.max(best, 0)


@triton.jit
def _draft(  # type: ignore[no-untyped-def]
    slots, newest_tokens, filled, tokens, recent, ids, owners, positions,
    slot_stride, context, recent_length, spare,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    token = tl.load(newest_tokens + slot)
    newest = tl.load(filled + slot).to(tl.int32)
    own = tokens + slot * slot_stride
    mine = _best(own, newest, own, newest, token, BLOCK)
    other = _best(recent, recent_length, own, newest, token, BLOCK)
    ahead = tl.arange(0, PADDED) - 1
    real = (ahead >= 0) & (ahead < WIDTH - 1)
    at = mine % _PLACES
    place = at + 1 + ahead % tl.maximum(newest - at, 1)
    guess = tl.load(own + place, mask=real & (place < newest), other=0)
    guess = tl.where(place < newest, guess, token)
    place = tl.minimum(other % _PLACES + 1 + ahead, recent_length - 1)
    strange = tl.load(recent + place, mask=real, other=0)
    guess = tl.where(mine // _PLACES >= other // _PLACES, guess, strange)
    guess = tl.where(tl.maximum(mine, other) > 0, tl.maximum(guess, 0), 0)
    position = newest + 1 + ahead
    inside = position < context
    to, kept = row * WIDTH + 1 + ahead, ahead < WIDTH - 1
    tl.store(ids + to, tl.where(ahead < 0, token, guess), mask=kept)
    tl.store(owners + to, tl.where(inside, slot, spare), mask=kept)
    tl.store(positions + to, tl.where(inside, position, 0).to(tl.int64), mask=kept)


def accept(
    ids: Tensor, slots: Tensor, state: DeviceState, context: int, answers: Tensor, width: int
) -> None:
    """Advance each sequence by its right drafts and one token more; others become -1."""
    _accept[(len(slots),)](
        ids, slots, state.token, state.index, state.filled, answers, context, state.spare,
        width, triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip


@triton.jit
def _accept(  # type: ignore[no-untyped-def]
    ids, slots, newest_tokens, indices, filled, answers, context, spare,
    WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    keys = tl.load(filled + slot)
    number = tl.arange(0, PADDED)
    at = row * WIDTH + number
    sampled = tl.load(answers + at, mask=number < WIDTH, other=0)
    drafted = tl.load(ids + at + 1, mask=number < WIDTH - 1, other=-1)
    # The first row whose token is not the next draft: so many drafts are right.
    right = tl.min(tl.where(sampled == drafted, PADDED, number), 0)
    right = tl.minimum(right, tl.maximum(context - 2 - keys, 0).to(tl.int32))
    tl.store(answers + at, tl.where(number > right, -1, sampled), mask=number < WIDTH)
    if slot != spare:
        token = tl.sum(tl.where(number == right, sampled, 0), 0)
        tl.store(newest_tokens + slot, token.to(tl.int64))
        tl.store(indices + slot, tl.load(indices + slot) + right + 1)
        tl.store(filled + slot, keys + right + 1)
