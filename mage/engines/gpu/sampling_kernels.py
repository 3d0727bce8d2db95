"""Sampling as two Triton kernels. CUDA only.

The first sums up the pieces of the vocabulary, one program per piece. The second has one program
per row: it picks the piece that contains the random number, then the token in the piece. A single
program that reads 49,152 logits three times would be the slowest kernel of a decode step.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mage.engines.gpu.state import DeviceState

_PIECE = 4096


def choose(
    logits: Tensor, slots: Tensor, state: DeviceState, answers: Tensor, grown: bool, width: int = 1
) -> None:
    """Sample row r for the sequence in slots[r] and advance the state of that sequence.

    Token and logprob go to column r of `answers`. `grown`: the key of the sequence's last token
    was computed in this step. With `width` rows per sequence, each for one token, `accept` advances
    the state.
    """
    rows, vocabulary = logits.shape
    piece = min(_PIECE, triton.next_power_of_2(vocabulary))
    pieces = triton.cdiv(vocabulary, piece)
    highest = logits.new_empty(2, rows, pieces, dtype=torch.float32)
    places = logits.new_empty(rows, pieces, dtype=torch.int32)
    _weigh[(rows, pieces)](
        logits,
        slots,
        state.temperature,
        *highest,
        places,
        vocabulary,
        logits.stride(0),
        pieces,
        piece,
        width,
        num_warps=8,
    )
    _choose[(rows,)](
        logits, slots, *highest, places, state.seed, state.index, state.temperature,
        state.token, state.filled, answers, answers.stride(0),
        vocabulary, logits.stride(0), state.spare, grown, pieces,
        max(16, triton.next_power_of_2(pieces)), piece, width, num_warps=8,
    )  # fmt: skip


@triton.jit
def _scale(temperatures, slot):  # type: ignore[no-untyped-def]
    temperature = tl.load(temperatures + slot)
    return 1 / tl.where(temperature == 0, 1.0, temperature)


@triton.jit
def _weigh(  # type: ignore[no-untyped-def]
    logits, slots, temperatures, highest, sums, places, vocabulary, stride, pieces,
    PIECE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The highest logit of a piece, its place, and the sum of exponentials relative to it."""
    row, piece = tl.program_id(0), tl.program_id(1)
    scale = _scale(temperatures, tl.load(slots + row // WIDTH))
    place = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(
        logits + row.to(tl.int64) * stride + place, mask=place < vocabulary, other=float("-inf")
    ).to(tl.float32)
    most = tl.max(x, 0)
    at = row * pieces + piece
    tl.store(highest + at, most)
    # If truncation removed the whole piece, its maximum is -inf and its sum must be 0.
    tl.store(sums + at, tl.sum(tl.exp((x - tl.where(most > float("-inf"), most, 0.0)) * scale), 0))
    tl.store(places + at, piece * PIECE + tl.argmax(x, 0).to(tl.int32))


@triton.jit
def _mix(state):  # type: ignore[no-untyped-def]
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    logits, slots, highest, sums, places, seeds, indices, temperatures, tokens, filled, answers,
    answer_stride, vocabulary, stride, spare,
    GROWN: tl.constexpr, PIECES: tl.constexpr, PADDED: tl.constexpr, PIECE: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row // WIDTH)
    scale = _scale(temperatures, slot)
    piece, place = tl.arange(0, PADDED), tl.arange(0, PIECE)
    most = tl.load(highest + row * PIECES + piece, mask=piece < PIECES, other=float("-inf"))
    best = tl.max(most, 0)
    summed = tl.cumsum(
        tl.load(sums + row * PIECES + piece, mask=piece < PIECES, other=0.0)
        * tl.exp((most - best) * scale),
        0,
    )
    total = tl.max(summed, 0)
    index = tl.load(indices + slot) + row % WIDTH
    state = (
        _mix(tl.load(seeds + slot).to(tl.uint64, bitcast=True))
        + (index + 1).to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    )
    point = ((_mix(state) >> 41).to(tl.float32) + 0.5) / 8388608.0 * total
    passed = summed <= point
    which = tl.sum(passed.to(tl.int32), 0)
    start = tl.minimum(which, PIECES - 1) * PIECE
    own = logits + row.to(tl.int64) * stride
    x = tl.load(own + start + place, mask=start + place < vocabulary, other=float("-inf")).to(
        tl.float32
    )
    share = tl.exp((x - best) * scale)
    # The token within the piece: the number of tokens wholly before the point, but never beyond
    # the last token with a positive probability.
    before = tl.max(tl.where(passed, summed, 0.0), 0)
    inside = tl.minimum(
        tl.sum((tl.cumsum(share, 0) <= point - before).to(tl.int32), 0),
        tl.max(tl.where(share > 0, place, 0), 0),
    )
    # In a row of NaN the maximum may lie in the padding of the pieces or of the last piece.
    likeliest = tl.load(places + row * PIECES + tl.minimum(tl.argmax(most, 0), PIECES - 1))
    drawn = (which < PIECES) & (tl.load(temperatures + slot) != 0)
    token = tl.minimum(tl.where(drawn, start + inside, likeliest), vocabulary - 1)
    logprob = (tl.load(own + token).to(tl.float32) - best) * scale - tl.log(total)
    tl.store(answers + row, token.to(tl.int32))
    tl.store(answers + answer_stride + row, logprob.to(tl.int32, bitcast=True))
    if WIDTH == 1:  # noqa: SIM102
        if slot != spare:
            tl.store(tokens + slot, token.to(tl.int64))
            tl.store(indices + slot, index + 1)
            if GROWN:
                tl.store(filled + slot, tl.load(filled + slot) + 1)
