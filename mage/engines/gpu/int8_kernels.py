"""Triton kernels for attention over keys and values in 8 bits. CUDA only.

They compute what `attend_kernels.py` does, with another inner loop: two neighbouring bytes are
loaded as one 16-bit word and widened to float16 in registers, which is exact. The even and the
odd channels are two matrix products each. (Bytes instead of words would be read from shared memory
one by one, which costs twice the instructions.) The scale of a key multiplies its scores. The
logarithm of a value's scale is added to them before the maximum is subtracted, so weights fit into
float16.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor, int16, int32

from mage.engines.gpu.overlap import fetch, gdc_launch_dependents, gdc_wait
from mage.engines.pool import Scales

_LOG2 = tl.constexpr(1.4426950408889634)


def in_words(keys: Tensor, values: Tensor, scales: Scales) -> tuple[Any, ...]:
    """Arguments of a kernel: keys and values as words, their scales, and strides."""
    keys, values, pairs = keys.view(int16), values.view(int16), scales.pairs.view(int32)
    strides = *keys.stride()[:2], *pairs.stride()[:2], scales.bias.stride(0)
    return keys, values, pairs, scales.channels, scales.bias, *strides


@triton.jit
def _widen(words):  # type: ignore[no-untyped-def]
    """The lower and the upper 8-bit integer of every word, as float16.

    The byte x + 128 below the byte 0x64 is the float16 number 1152 + x.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 lower, upper, offset;
        prmt.b32 lower, $2, 0x64646464, 0x4240;
        prmt.b32 upper, $2, 0x64646464, 0x4341;
        mov.b32 offset, 0x64806480;
        sub.f16x2 $0, lower, offset;
        sub.f16x2 $1, upper, offset;
        }""",
        "=r,=r,r",
        [words],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _load_halves(at, real):  # type: ignore[no-untyped-def]
    """The even and the odd channels of queries, as float16.

    Loading every second number took twice the time of the whole kernel with prompts of 512 tokens.
    """
    rows = tl.load(at, mask=real, other=0.0).to(tl.float16)
    return tl.split(tl.reshape(rows, (rows.shape[0], rows.shape[1] // 2, 2)))


@triton.jit
def _scales(pair):  # type: ignore[no-untyped-def]
    """The logarithms of the scales of keys and values, as rows of float32."""
    key = pair.to(tl.int16).to(tl.float16, bitcast=True)
    value = (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return key.to(tl.float32)[None, :], value.to(tl.float32)[None, :]


@triton.jit
def _add_block(  # type: ignore[no-untyped-def]
    even, odd, k, v, pair, biased, seen, best, total, lower, upper, factor, MASKED: tl.constexpr
):  # fmt: skip
    """Add one block of keys: `best`, `total` are the running maximum and sum of the weights.

    `lower` and `upper` are the outputs of even and odd channels. Weights contain the scale of their
    value, and `total` does not. `biased` is what the biases of keys add to the scores.
    """
    k_lower, k_upper = _widen(k)
    score = tl.dot(odd, tl.trans(k_upper), tl.dot(even, tl.trans(k_lower)))
    key_scale, value_scale = _scales(pair)
    score = score * (tl.exp2(key_scale) * factor) + (biased * factor + value_scale)
    if MASKED:
        score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(best, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    keep = tl.exp2(best - higher)
    total = total * keep + tl.sum(weight * tl.exp2(-value_scale), 1)
    v_lower, v_upper = _widen(v)
    weight = weight.to(tl.float16)
    lower = tl.dot(weight, v_lower, lower * keep[:, None])
    upper = tl.dot(weight, v_upper, upper * keep[:, None])
    return higher, total, lower, upper


@triton.jit
def decode_int8(  # type: ignore[no-untyped-def]
    query, slots, filled, shared, out, parts, sums, scaling, rows, capacity,
    keys, values, scales, channels, bias,
    slot_stride, position_stride, own_stride, head_stride, bias_stride,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """`attend_decode` of one sequence, key head and split."""
    factor = scaling * _LOG2
    kv_head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(filled + slot).to(tl.int32) + 1
    first = tl.load(shared).to(tl.int64)
    common = tl.load(shared + 1).to(tl.int32)
    part = tl.cdiv(tl.cdiv(length, BLOCK), SPLITS) * BLOCK
    start = split * part
    end = tl.minimum(start + part, length)
    if WIDTH > 1:  # the last part with keys also has those of the other queries
        drafted = tl.minimum(length + WIDTH - 1, capacity)
        end = tl.where((start < length) & (end == length), drafted, end)
    member, channel, place = tl.arange(0, PADDED), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    word = tl.arange(0, SIZE // 2)
    if EARLY:
        gdc_launch_dependents()
        owner = tl.where(start < common, first, slot)
        if start < end:  # all keys of the first block but the newest one are there
            at = owner * slot_stride + (start + place) * position_stride + kv_head * (SIZE // 2)
            fetch(keys + at, SIZE // 2)
            fetch(values + at, SIZE // 2)
        gdc_wait()
    token = member // TOGETHER
    line = (row * WIDTH + token) * HEADS + kv_head * TOGETHER + member % TOGETHER
    real = (token < WIDTH)[:, None]
    even, odd = _load_halves(query + line[:, None] * SIZE + channel[None, :], real)
    if BIASED > 0:
        few = kv_head * BIASED + tl.arange(0, BIASED)
        asked = query + line[:, None] * SIZE + tl.load(channels + few)[None, :]
        asked = tl.load(asked, mask=real, other=0.0).to(tl.float16)
    best = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    lower = tl.zeros([PADDED, SIZE // 2], tl.float32)
    upper = tl.zeros([PADDED, SIZE // 2], tl.float32)
    for block in range(start, end, BLOCK):
        owner = tl.where(block < common, first, slot)
        from_ = (
            owner * slot_stride
            + (block + place[:, None]) * position_stride
            + kv_head * (SIZE // 2)
            + word[None, :]
        )
        k, v = tl.load(keys + from_), tl.load(values + from_)
        biased = 0.0
        if BIASED > 0:
            lacking = tl.load(bias + (block + place[:, None]) * bias_stride + few[None, :])
            biased = tl.dot(asked, tl.trans(lacking))
        scale = scales + owner * own_stride + kv_head * head_stride + block + place
        seen = (block + place < end)[None, :]
        if WIDTH > 1:
            seen = seen & ((block + place)[None, :] < (length + token)[:, None])
        best, total, lower, upper = _add_block(
            even, odd, k, v, tl.load(scale), biased, seen,
            best, total, lower, upper, factor, True,
        )  # fmt: skip
    # A split without keys stores -inf as its sum, which has weight 0 where the parts are joined.
    found = tl.interleave(lower, upper) / tl.where(total > 0, total, 1.0)[:, None]
    if SPLITS == 1:
        tl.store(
            out + line[:, None] * SIZE + channel[None, :], found.to(out.dtype.element_ty), mask=real
        )
    else:
        line += split * rows * WIDTH * HEADS
        tl.store(parts + line[:, None] * SIZE + channel[None, :], found, mask=real)
        tl.store(
            sums + line,
            tl.where(total > 0, best + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf")),
            mask=token < WIDTH,
        )


@triton.jit
def blocks_int8(  # type: ignore[no-untyped-def]
    query, starts, counts, slots, positions, out, scaling,
    keys, values, scales, channels, bias,
    slot_stride, position_stride, own_stride, head_stride, bias_stride,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """`attend_blocks` of one block of new tokens and key head."""
    factor = scaling * _LOG2
    kv_head, number = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts + number).to(tl.int32)
    start = tl.load(starts + number)
    line, channel, place = tl.arange(0, LINES), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    word = tl.arange(0, SIZE // 2)
    token, head = line // TOGETHER, kv_head * TOGETHER + line % TOGETHER
    row = ((start + token) * HEADS + head)[:, None] * SIZE
    if count > 0:
        slot = tl.load(slots + number).to(tl.int64)
        position = tl.load(positions + number).to(tl.int32)
        real = (token < count)[:, None]
        even, odd = _load_halves(query + row + channel[None, :], real)
        lacking, asked = bias, even
        if BIASED > 0:
            few = kv_head * BIASED + tl.arange(0, BIASED)
            asked = tl.load(query + row + tl.load(channels + few)[None, :], mask=real, other=0.0)
            asked = asked.to(tl.float16)
            lacking = bias + place[:, None] * bias_stride + few[None, :]
        # A padding line sees the keys of the last token: a line without any key would be NaN.
        last = (position + tl.minimum(token, count - 1))[:, None]
        best = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        lower = tl.zeros([LINES, SIZE // 2], tl.float32)
        upper = tl.zeros([LINES, SIZE // 2], tl.float32)
        from_ = (
            slot * slot_stride
            + kv_head * (SIZE // 2)
            + place[:, None] * position_stride
            + word[None, :]
        )
        scale = scales + slot * own_stride + kv_head * head_stride + place
        whole = (position + 1) // BLOCK * BLOCK  # every line sees all keys before this
        for block in range(0, whole, BLOCK):
            biased = 0.0
            if BIASED > 0:
                biased = tl.dot(asked, tl.trans(tl.load(lacking + block * bias_stride)))
            best, total, lower, upper = _add_block(
                even, odd,
                tl.load(keys + from_ + block * position_stride),
                tl.load(values + from_ + block * position_stride),
                tl.load(scale + block),
                biased, 0, best, total, lower, upper, factor, False,
            )  # fmt: skip
        for block in range(whole, position + count, BLOCK):
            biased = 0.0
            if BIASED > 0:
                biased = tl.dot(asked, tl.trans(tl.load(lacking + block * bias_stride)))
            seen = (block + place)[None, :] <= last
            best, total, lower, upper = _add_block(
                even, odd,
                tl.load(keys + from_ + block * position_stride),
                tl.load(values + from_ + block * position_stride),
                tl.load(scale + block),
                biased, seen, best, total, lower, upper, factor, True,
            )  # fmt: skip
        found = tl.interleave(lower, upper) / total[:, None]
        tl.store(out + row + channel[None, :], found.to(out.dtype.element_ty), mask=real)
    else:
        tl.store(
            out + row + channel[None, :],
            tl.zeros([LINES, SIZE], out.dtype.element_ty),
            mask=(token < -count)[:, None],
        )
