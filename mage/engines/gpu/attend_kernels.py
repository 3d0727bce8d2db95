"""Triton kernels for attention over the slots of the pool: decode and prefill. CUDA only.

Decode has one query per sequence, or a few with drafts; prefill has blocks of new tokens. Both read
exactly the keys that a sequence has filled. Query heads that share a key head are lines of one
tile, so a key is read once for all of them. Programs of neighbouring key heads run side by side,
because their keys are neighbours in memory. Exponentials have base 2, which is one instruction of
the hardware.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mage.engines.gpu.int8_kernels import blocks_int8, decode_int8, in_words
from mage.engines.gpu.overlap import (
    fetch,
    gdc_launch_dependents,
    gdc_wait,
    is_hopper,
    overlaps,
)
from mage.engines.gpu.state import PREFILL, PREFILL_INT8, Blocks, Tuning, decode_tuning
from mage.engines.pool import BLOCK, Scales

_LOG2 = tl.constexpr(1.4426950408889634)


def attend_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    filled: Tensor,
    shared: Tensor,
    scaling: float,
    scales: Scales | None = None,
    tuning: Tuning | None = None,
    width: int = 1,
) -> Tensor:
    """One query per sequence: row r attends to the first filled[slots[r]] + 1 keys of its slot.

    The first shared[1] keys (whole blocks) are equal for all rows. They are read from slot
    shared[0], so they stay in the GPU's cache. With `scales`, keys and values are in 8 bits. With
    `width` queries per sequence, each sees one key more than the one before.
    """
    rows, (heads, size) = len(query) // width, query.shape[1:]
    kv_heads = keys.shape[2]
    deep = query.element_size() == 2 and is_hopper(query.device)
    tuning = tuning or decode_tuning(rows * kv_heads, scales is not None, deep)
    splits = min(16, max(1, triton.next_power_of_2(tuning.programs // (rows * kv_heads))))
    out = torch.empty_like(query)
    parts = query.new_empty(splits, *query.shape, dtype=torch.float32) if splits > 1 else query
    sums = query.new_empty(splits, *query.shape[:2], dtype=torch.float32) if splits > 1 else query
    together = heads // kv_heads
    lines = max(16, triton.next_power_of_2(width * together))
    early = overlaps(query)
    sizes = heads, together, lines, size, BLOCK, splits, width, early
    if scales is None:
        _attend_decode[(kv_heads, rows, splits)](
            query, keys, values, slots, filled, shared, out, parts, sums,
            keys.stride(0), keys.stride(1), scaling, rows, keys.shape[1],
            *sizes, num_warps=tuning.warps, num_stages=tuning.stages, launch_pdl=early,
        )  # fmt: skip
    else:
        decode_int8[(kv_heads, rows, splits)](
            query, slots, filled, shared, out, parts, sums, scaling, rows, keys.shape[1],
            *in_words(keys, values, scales),
            *sizes, scales.bias.shape[-1],
            num_warps=tuning.warps, num_stages=tuning.stages, launch_pdl=early,
        )  # fmt: skip
    if splits > 1:
        _join[(len(query), heads)](
            parts, sums, out, len(query), heads, size, splits, early, num_warps=1, launch_pdl=early
        )
    return out


@triton.jit
def _add_block(  # type: ignore[no-untyped-def]
    q, k, v, seen, best, total, found, scaling, MASKED: tl.constexpr
):
    """Add one block of keys: `best`, `total`, `found` are the running maximum, sum and output."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * (scaling * _LOG2)
    if MASKED:
        score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(best, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    keep = tl.exp2(best - higher)
    found = tl.dot(weight.to(v.dtype), v, found * keep[:, None], input_precision="ieee")
    return higher, total * keep + tl.sum(weight, 1), found


@triton.jit
def _attend_decode(  # type: ignore[no-untyped-def]
    query, keys, values, slots, filled, shared, out, parts, sums,
    slot_stride, position_stride, scaling, rows, capacity,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
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
    if EARLY:
        gdc_launch_dependents()
        owner = tl.where(start < common, first, slot)
        if start < end:  # all keys of the first block but the newest one are there
            at = owner * slot_stride + (start + place) * position_stride + kv_head * SIZE
            fetch(keys + at, SIZE)
            fetch(values + at, SIZE)
        gdc_wait()
    token = member // TOGETHER
    line = (row * WIDTH + token) * HEADS + kv_head * TOGETHER + member % TOGETHER
    real = (token < WIDTH)[:, None]
    q = tl.load(query + line[:, None] * SIZE + channel[None, :], mask=real, other=0.0)
    best = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    found = tl.zeros([PADDED, SIZE], tl.float32)
    for block in range(start, end, BLOCK):
        owner = tl.where(block < common, first, slot)
        at = (
            owner * slot_stride
            + (block + place[:, None]) * position_stride
            + kv_head * SIZE
            + channel[None, :]
        )
        there = block + place < end
        k = tl.load(keys + at, mask=there[:, None], other=0.0)
        v = tl.load(values + at, mask=there[:, None], other=0.0)
        seen = there[None, :]
        if WIDTH > 1:
            seen = seen & ((block + place)[None, :] < (length + token)[:, None])
        best, total, found = _add_block(q, k, v, seen, best, total, found, scaling, True)
    # A split without keys stores -inf as its sum, which has weight 0 where the parts are joined.
    found = found / tl.where(total > 0, total, 1.0)[:, None]
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
def _join(  # type: ignore[no-untyped-def]
    parts, sums, out, rows,
    HEADS: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, head = tl.program_id(0), tl.program_id(1)
    channel, split = tl.arange(0, SIZE), tl.arange(0, SPLITS)
    line = (split * rows + row) * HEADS + head
    exponents = tl.load(sums + line)
    weight = tl.exp2(exponents - tl.max(exponents, 0))
    found = tl.load(parts + line[:, None] * SIZE + channel[None, :])
    joined = tl.sum(found * (weight / tl.sum(weight, 0))[:, None], 0)
    tl.store(out + (row * HEADS + head) * SIZE + channel, joined.to(out.dtype.element_ty))


def attend_blocks(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Blocks,
    scaling: float,
    scales: Scales | None = None,
    tuning: Tuning | None = None,
) -> Tensor:
    """Blocks of new tokens of a sequence; each token attends to its slot's keys up to its own.

    Padding rows become 0.
    """
    heads, size = query.shape[1:]
    kv_heads = keys.shape[2]
    out = torch.empty_like(query)
    together = heads // kv_heads
    tuning = tuning or (PREFILL if scales is None else PREFILL_INT8)
    lines = max(16, triton.next_power_of_2(blocks.width * together))
    sizes = heads, together, lines, size, tuning.keys
    if scales is None:
        _attend_blocks[(kv_heads, len(blocks.start))](
            query, keys, values, blocks.start, blocks.count, blocks.slot, blocks.position, out,
            keys.stride(0), keys.stride(1), scaling,
            *sizes, num_warps=tuning.warps, num_stages=tuning.stages,
        )  # fmt: skip
    else:
        blocks_int8[(kv_heads, len(blocks.start))](
            query, blocks.start, blocks.count, blocks.slot, blocks.position, out, scaling,
            *in_words(keys, values, scales),
            *sizes, scales.bias.shape[-1], num_warps=tuning.warps, num_stages=tuning.stages,
        )  # fmt: skip
    return out


@triton.jit
def _attend_blocks(  # type: ignore[no-untyped-def]
    query, keys, values, starts, counts, slots, positions, out,
    slot_stride, position_stride, scaling,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    kv_head, number = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts + number).to(tl.int32)
    start = tl.load(starts + number)
    line, channel, place = tl.arange(0, LINES), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    token, head = line // TOGETHER, kv_head * TOGETHER + line % TOGETHER
    at = ((start + token) * HEADS + head)[:, None] * SIZE + channel[None, :]
    if count > 0:
        slot = tl.load(slots + number).to(tl.int64)
        position = tl.load(positions + number).to(tl.int32)
        real = (token < count)[:, None]
        q = tl.load(query + at, mask=real, other=0.0)
        # A padding line sees the keys of the last token: a line without any key would be NaN.
        last = (position + tl.minimum(token, count - 1))[:, None]
        best = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        found = tl.zeros([LINES, SIZE], tl.float32)
        from_ = (
            slot * slot_stride
            + kv_head * SIZE
            + place[:, None] * position_stride
            + channel[None, :]
        )
        whole = (position + 1) // BLOCK * BLOCK  # every line sees all keys before this
        for block in range(0, whole, BLOCK):
            k = tl.load(keys + from_ + block * position_stride)
            v = tl.load(values + from_ + block * position_stride)
            best, total, found = _add_block(q, k, v, 0, best, total, found, scaling, False)
        for block in range(whole, position + count, BLOCK):
            there = (block + place < position + count)[:, None]
            k = tl.load(keys + from_ + block * position_stride, mask=there, other=0.0)
            v = tl.load(values + from_ + block * position_stride, mask=there, other=0.0)
            best, total, found = _add_block(
                q, k, v, (block + place)[None, :] <= last, best, total, found, scaling, True
            )
        tl.store(out + at, (found / total[:, None]).to(out.dtype.element_ty), mask=real)
    else:
        tl.store(
            out + at, tl.zeros([LINES, SIZE], out.dtype.element_ty), mask=(token < -count)[:, None]
        )
