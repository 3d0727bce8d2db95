"""Triton kernels for attention over keys and values in 8 bits. CUDA only.

They have run in Triton's interpreter and were compiled for an H200, but have not run on a GPU yet.
They compute what `attend_kernels.py` does, with another inner loop: two neighbouring 8-bit floats
are loaded as one 16-bit word and widened to float16 in registers, which is exact. The even and the
odd channels are two matrix products each. (Bytes instead of words would be read from shared memory
one by one, which costs twice the instructions.) The exponent of a key multiplies its scores. That
of a value is added to its scores before the maximum is subtracted, so weights fit into float16.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor, int16

_LOG2 = tl.constexpr(1.4426950408889634)


def in_words(keys: Tensor, values: Tensor, exponents: Tensor) -> tuple[Any, ...]:
    """Arguments of a kernel: keys and values as words, exponents, and their strides."""
    keys, values = keys.view(int16), values.view(int16)
    return keys, values, exponents, *keys.stride()[:2], *exponents.stride()[:3]


@triton.jit
def _widen(words):  # type: ignore[no-untyped-def]
    """The lower and the upper 8-bit float of every word, as float16."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 sorted;
        .reg .b16 lower, upper;
        prmt.b32 sorted, $2, 0, 0x3120;
        mov.b32 {lower, upper}, sorted;
        cvt.rn.f16x2.e4m3x2 $0, lower;
        cvt.rn.f16x2.e4m3x2 $1, upper;
        }""",
        "=r,=r,r",
        [words],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _power(exponent):  # type: ignore[no-untyped-def]
    """2 ** exponent, written into the bits of a float32: conversions and exp2 are slow."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _as_float(exponent):  # type: ignore[no-untyped-def]
    """A small integer as float32: 12582912 is 1.5 * 2 ** 23, whose last bit stands for 1."""
    return (exponent + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0


@triton.jit
def _load_query(query, at, mask, scaling):  # type: ignore[no-untyped-def]
    """Queries times the factor of the scores, as float16."""
    q = tl.load(query + at, mask=mask, other=0.0).to(tl.float32)
    return (q * (scaling * _LOG2)).to(tl.float16)


@triton.jit
def _add_block(  # type: ignore[no-untyped-def]
    even, odd, k, v, key_exponent, value_exponent, seen, best, total, lower, upper,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add one block of keys: `best`, `total` are the running maximum and sum of the weights.

    `lower` and `upper` are the outputs of even and odd channels. Weights contain the scale of their
    value, and `total` does not.
    """
    k_lower, k_upper = _widen(k)
    score = tl.dot(odd, tl.trans(k_upper), tl.dot(even, tl.trans(k_lower)))
    key_exponent, value_exponent = key_exponent.to(tl.int32), value_exponent.to(tl.int32)
    score = score * _power(key_exponent)[None, :] + _as_float(value_exponent)[None, :]
    if MASKED:
        score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(best, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    keep = tl.exp2(best - higher)
    total = total * keep + tl.sum(weight * _power(-value_exponent)[None, :], 1)
    v_lower, v_upper = _widen(v)
    weight = weight.to(tl.float16)
    lower = tl.dot(weight, v_lower, lower * keep[:, None])
    upper = tl.dot(weight, v_upper, upper * keep[:, None])
    return higher, total, lower, upper


@triton.jit
def decode_fp8(  # type: ignore[no-untyped-def]
    query, slots, filled, shared, out, parts, sums, scaling, rows,
    keys, values, exponents, slot_stride, position_stride, part_stride, own_stride, head_stride,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """`attend_decode` of one row, key head and split."""
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(filled + slot).to(tl.int32) + 1
    first = tl.load(shared).to(tl.int64)
    common = tl.load(shared + 1).to(tl.int32)
    part = tl.cdiv(tl.cdiv(length, BLOCK), SPLITS) * BLOCK
    start = split * part
    end = tl.minimum(start + part, length)
    member, channel, place = tl.arange(0, PADDED), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    word = tl.arange(0, SIZE // 2)
    head = kv_head * TOGETHER + member
    real = (member < TOGETHER)[:, None]
    at = (row * HEADS + head[:, None]) * SIZE + 2 * word[None, :]
    even = _load_query(query, at, real, scaling)
    odd = _load_query(query, at + 1, real, scaling)
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
        there = block + place < end
        k = tl.load(keys + from_, mask=there[:, None], other=0)
        v = tl.load(values + from_, mask=there[:, None], other=0)
        exponent = exponents + owner * own_stride + kv_head * head_stride + block + place
        best, total, lower, upper = _add_block(
            even, odd, k, v,
            tl.load(exponent, mask=there, other=0),
            tl.load(exponent + part_stride, mask=there, other=0),
            there[None, :], best, total, lower, upper, True,
        )  # fmt: skip
    # A split without keys stores -inf as its sum, which has weight 0 where the parts are joined.
    found = tl.interleave(lower, upper) / tl.where(total > 0, total, 1.0)[:, None]
    line = row * HEADS + head
    if SPLITS == 1:
        tl.store(
            out + line[:, None] * SIZE + channel[None, :], found.to(out.dtype.element_ty), mask=real
        )
    else:
        line += split * rows * HEADS
        tl.store(parts + line[:, None] * SIZE + channel[None, :], found, mask=real)
        tl.store(
            sums + line,
            tl.where(total > 0, best + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf")),
            mask=member < TOGETHER,
        )


@triton.jit
def blocks_fp8(  # type: ignore[no-untyped-def]
    query, starts, counts, slots, positions, out, scaling,
    keys, values, exponents, slot_stride, position_stride, part_stride, own_stride, head_stride,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`attend_blocks` of one block of new tokens and key head."""
    number, kv_head = tl.program_id(0), tl.program_id(1)
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
        even = _load_query(query, row + 2 * word[None, :], real, scaling)
        odd = _load_query(query, row + 2 * word[None, :] + 1, real, scaling)
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
        exponent = exponents + slot * own_stride + kv_head * head_stride + place
        whole = (position + 1) // BLOCK * BLOCK  # every line sees all keys before this
        for block in range(0, whole, BLOCK):
            best, total, lower, upper = _add_block(
                even, odd,
                tl.load(keys + from_ + block * position_stride),
                tl.load(values + from_ + block * position_stride),
                tl.load(exponent + block),
                tl.load(exponent + part_stride + block),
                0, best, total, lower, upper, False,
            )  # fmt: skip
        for block in range(whole, position + count, BLOCK):
            there = block + place < position + count
            best, total, lower, upper = _add_block(
                even, odd,
                tl.load(keys + from_ + block * position_stride, mask=there[:, None], other=0),
                tl.load(values + from_ + block * position_stride, mask=there[:, None], other=0),
                tl.load(exponent + block, mask=there, other=0),
                tl.load(exponent + part_stride + block, mask=there, other=0),
                (block + place)[None, :] <= last, best, total, lower, upper, True,
            )  # fmt: skip
        found = tl.interleave(lower, upper) / total[:, None]
        tl.store(out + row + channel[None, :], found.to(out.dtype.element_ty), mask=real)
    else:
        tl.store(
            out + row + channel[None, :],
            tl.zeros([LINES, SIZE], out.dtype.element_ty),
            mask=(token < -count)[:, None],
        )
