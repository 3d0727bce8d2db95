"""The steps of a decoder that PyTorch would spread over many small kernels, as one Triton kernel each. CUDA only.

A decode step of a small model lasts as long as its kernels are many, so everything between two matrix products is one
kernel, and attention reads exactly the keys a sequence has filled. `ops.py` has the same functions in plain PyTorch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mage.engines.state import BLOCK, Blocks, Sequences

_PROGRAMS = 512  # programs that keep a large GPU busy; with fewer sequences, their keys are split among several


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`hidden` [rows, width] divided by its root mean square, times `weight`."""
    out = torch.empty_like(hidden)
    width = hidden.shape[-1]
    _rms_norm[(hidden.numel() // width,)](hidden, weight, out, epsilon, width, triton.next_power_of_2(width))
    return out


@triton.jit
def _rms_norm(hidden, weight, out, epsilon, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    real = column < width
    x = tl.load(hidden + row * width + column, mask=real, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / width + epsilon)
    w = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (x * scale * w).to(out.dtype.element_ty), mask=real)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [rows, gate and up side by side]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    _gated[(rows, triton.cdiv(width, 1024))](gate_up, out, width, 1024)
    return out


@triton.jit
def _gated(gate_up, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=real, other=0.0).to(tl.float32)
    gate = (gate / (1 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)  # rounded as the module rounds it
    tl.store(out + row * width + column, (gate * up).to(out.dtype.element_ty), mask=real)


def rotate_and_store(
    together: Tensor, heads: int, rope: tuple[Tensor, Tensor], norms: tuple[Tensor, Tensor] | None, epsilon: float, slots: Tensor, positions: Tensor,
    keys: Tensor, values: Tensor,
) -> Tensor:  # fmt: skip
    """Rotated queries [rows, heads, size] of `together` [rows, heads + 2 kv heads, size]; keys and values go into their slots.

    `norms` are the weights of the norms over every query and key head, where a model has them. `rope` has a row a position.
    """
    rows, total, size = together.shape
    kv_heads = keys.shape[2]
    query = together.new_empty(rows, heads, size)
    query_norm, key_norm = norms or (together, together)
    _rotate_and_store[(rows, total)](
        together, query, *rope, query_norm, key_norm, slots, positions, keys, values, keys.stride(0), keys.stride(1), epsilon,
        heads, kv_heads, size, triton.next_power_of_2(size), norms is not None, num_warps=1,
    )  # fmt: skip
    return query


@triton.jit
def _rotate_and_store(  # type: ignore[no-untyped-def]
    together, query, cosines, sines, query_norm, key_norm, slots, positions, keys, values, slot_stride, position_stride, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = SIZE // 2
    channel = tl.arange(0, BLOCK)
    real = channel < SIZE
    partner = tl.where(channel < half, channel + half, channel - half)
    own = together + (row * (HEADS + 2 * KV_HEADS) + head) * SIZE
    x = tl.load(own + channel, mask=real, other=0.0).to(tl.float32)
    y = tl.load(own + partner, mask=real, other=0.0).to(tl.float32)
    position = tl.load(positions + row)
    if NORMED and head < HEADS + KV_HEADS:
        scale = 1 / tl.sqrt(tl.sum(x * x, 0) / SIZE + epsilon)
        weight = query_norm
        if head >= HEADS:
            weight = key_norm
        x = (x * scale * tl.load(weight + channel, mask=real, other=0.0).to(tl.float32)).to(together.dtype.element_ty).to(tl.float32)
        y = (y * scale * tl.load(weight + partner, mask=real, other=0.0).to(tl.float32)).to(together.dtype.element_ty).to(tl.float32)
    if head < HEADS + KV_HEADS:
        cosine = tl.load(cosines + position * SIZE + channel, mask=real, other=0.0).to(tl.float32)
        sine = tl.load(sines + position * SIZE + channel, mask=real, other=0.0).to(tl.float32)  # the first half is negated
        x = x * cosine + y * sine
    if head < HEADS:
        tl.store(query + (row * HEADS + head) * SIZE + channel, x.to(query.dtype.element_ty), mask=real)
    else:
        place = tl.load(slots + row) * slot_stride + position * position_stride
        if head < HEADS + KV_HEADS:
            tl.store(keys + place + (head - HEADS) * SIZE + channel, x.to(keys.dtype.element_ty), mask=real)
        else:
            tl.store(values + place + (head - HEADS - KV_HEADS) * SIZE + channel, x.to(values.dtype.element_ty), mask=real)


def attend_decode(query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, filled: Tensor, shared: Tensor, scaling: float) -> Tensor:
    """One query a sequence: row r attends to the first filled[slots[r]] + 1 keys of its slot.

    The first shared[1] keys, whole blocks, are the same for all and are read from slot shared[0]: they then stay in the GPU's cache.
    """
    rows, heads, size = query.shape
    kv_heads = keys.shape[2]
    splits = min(16, max(1, triton.next_power_of_2(_PROGRAMS // (rows * kv_heads))))
    out = torch.empty_like(query)
    parts = query.new_empty(splits, rows, heads, size, dtype=torch.float32) if splits > 1 else query
    sums = query.new_empty(splits, rows, heads, dtype=torch.float32) if splits > 1 else query
    together = heads // kv_heads
    _attend_decode[(rows, kv_heads, splits)](
        query, keys, values, slots, filled, shared, out, parts, sums, keys.stride(0), keys.stride(1), scaling, rows,
        heads, together, max(16, triton.next_power_of_2(together)), size, BLOCK, splits, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        _join[(rows, heads)](parts, sums, out, rows, heads, size, splits, num_warps=1)
    return out


@triton.jit
def _attend_decode(  # type: ignore[no-untyped-def]
    query, keys, values, slots, filled, shared, out, parts, sums, slot_stride, position_stride, scaling, rows,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(filled + slot).to(tl.int32) + 1
    first = tl.load(shared).to(tl.int64)
    common = tl.load(shared + 1).to(tl.int32)
    part = tl.cdiv(tl.cdiv(length, BLOCK), SPLITS) * BLOCK
    start = split * part
    end = tl.minimum(start + part, length)
    member, channel, place = tl.arange(0, PADDED), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    head = kv_head * TOGETHER + member
    q = tl.load(query + (row * HEADS + head[:, None]) * SIZE + channel[None, :], mask=member[:, None] < TOGETHER, other=0.0)
    best = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    found = tl.zeros([PADDED, SIZE], tl.float32)
    for block in range(start, end, BLOCK):
        owner = tl.where(block < common, first, slot)
        at = owner * slot_stride + (block + place[:, None]) * position_stride + kv_head * SIZE + channel[None, :]
        there = block + place < end
        k = tl.load(keys + at, mask=there[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
        score = tl.where(there[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        keep = tl.exp(best - higher)
        v = tl.load(values + at, mask=there[:, None], other=0.0)
        found = found * keep[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        total = total * keep + tl.sum(weight, 1)
        best = higher
    real = (member < TOGETHER)[:, None]
    # A split without keys has the sum of nothing: minus infinity, and a weight of 0 where the parts are joined.
    found = found / tl.where(total > 0, total, 1.0)[:, None]
    if SPLITS == 1:
        tl.store(out + (row * HEADS + head[:, None]) * SIZE + channel[None, :], found.to(out.dtype.element_ty), mask=real)
    else:
        line = (split * rows + row) * HEADS + head
        tl.store(parts + line[:, None] * SIZE + channel[None, :], found, mask=real)
        tl.store(sums + line, tl.where(total > 0, best + tl.log(tl.where(total > 0, total, 1.0)), float("-inf")), mask=member < TOGETHER)


@triton.jit
def _join(parts, sums, out, rows, HEADS: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, head = tl.program_id(0), tl.program_id(1)
    channel, split = tl.arange(0, SIZE), tl.arange(0, SPLITS)
    line = (split * rows + row) * HEADS + head
    exponents = tl.load(sums + line)
    weight = tl.exp(exponents - tl.max(exponents, 0))
    found = tl.load(parts + line[:, None] * SIZE + channel[None, :])
    joined = tl.sum(found * (weight / tl.sum(weight, 0))[:, None], 0)
    tl.store(out + (row * HEADS + head) * SIZE + channel, joined.to(out.dtype.element_ty))


def attend_blocks(query: Tensor, keys: Tensor, values: Tensor, blocks: Blocks, scaling: float) -> Tensor:
    """Blocks of neighbouring new tokens of a sequence, each attending to its slot's keys up to its own."""
    heads, size = query.shape[1:]
    kv_heads = keys.shape[2]
    out = torch.zeros_like(query)  # padding is in no block, and must not become NaN on the way
    together = heads // kv_heads
    lines = max(16, triton.next_power_of_2(blocks.width * together))
    _attend_blocks[(len(blocks.start), kv_heads)](
        query, keys, values, blocks.start, blocks.count, blocks.slot, blocks.position, out, keys.stride(0), keys.stride(1), scaling,
        heads, together, lines, size, BLOCK, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def _attend_blocks(  # type: ignore[no-untyped-def]
    query, keys, values, starts, counts, slots, positions, out, slot_stride, position_stride, scaling,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number, kv_head = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts + number).to(tl.int32)
    if count > 0:
        slot = tl.load(slots + number).to(tl.int64)
        start = tl.load(starts + number)
        position = tl.load(positions + number).to(tl.int32)
        line, channel, place = tl.arange(0, LINES), tl.arange(0, SIZE), tl.arange(0, BLOCK)
        token, head = line // TOGETHER, kv_head * TOGETHER + line % TOGETHER
        real = token < count
        at = ((start + token) * HEADS + head)[:, None] * SIZE + channel[None, :]
        q = tl.load(query + at, mask=real[:, None], other=0.0)
        best = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        found = tl.zeros([LINES, SIZE], tl.float32)
        for block in range(0, position + count, BLOCK):
            from_ = slot * slot_stride + (block + place[:, None]) * position_stride + kv_head * SIZE + channel[None, :]
            there = block + place < position + count
            k = tl.load(keys + from_, mask=there[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
            # A line of padding sees what the last token sees: a line without any key would be no number.
            last = position + tl.minimum(token, count - 1)
            score = tl.where((block + place)[None, :] <= last[:, None], score, float("-inf"))
            higher = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp(score - higher[:, None])
            keep = tl.exp(best - higher)
            v = tl.load(values + from_, mask=there[:, None], other=0.0)
            found = found * keep[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            total = total * keep + tl.sum(weight, 1)
            best = higher
        tl.store(out + at, (found / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])


def choose(logits: Tensor, slots: Tensor, state: Sequences, answers: Tensor, grown: bool) -> None:
    """Sample row r for the sequence in slots[r]: token and logprob go to column r of `answers`, and its state moves on.

    `grown`: the key of its last token was computed in this very step.
    """
    rows, vocabulary = logits.shape
    _choose[(rows,)](
        logits, slots, state.seed, state.index, state.temperature, state.token, state.filled, answers, answers.stride(0), vocabulary,
        logits.stride(0), state.spare, grown, min(4096, triton.next_power_of_2(vocabulary)), num_warps=8,
    )  # fmt: skip


@triton.jit
def _mix(state):  # type: ignore[no-untyped-def]
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    logits, slots, seeds, indices, temperatures, tokens, filled, answers, answer_stride, vocabulary, stride, spare,
    GROWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    temperature = tl.load(temperatures + slot)
    greedy = temperature == 0
    scale = 1 / tl.where(greedy, 1.0, temperature)
    own = logits + row.to(tl.int64) * stride
    place = tl.arange(0, BLOCK)
    best = float("-inf")
    likeliest = 0
    for block in range(0, vocabulary, BLOCK):
        x = tl.load(own + block + place, mask=block + place < vocabulary, other=float("-inf")).to(tl.float32)
        most = tl.max(x, 0)
        where = tl.argmax(x, 0) + block
        likeliest = tl.where(most > best, where, likeliest)
        best = tl.maximum(best, most)
    total = 0.0
    for block in range(0, vocabulary, BLOCK):
        x = tl.load(own + block + place, mask=block + place < vocabulary, other=float("-inf")).to(tl.float32)
        total += tl.sum(tl.exp((x - best) * scale), 0)
    index = tl.load(indices + slot)
    state = _mix(tl.load(seeds + slot).to(tl.uint64, bitcast=True)) + (index + 1).to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    uniform = ((_mix(state) >> 41).to(tl.float32) + 0.5) / 8388608.0
    point = uniform * total
    before = 0.0
    token = likeliest
    for block in range(0, vocabulary, BLOCK):
        x = tl.load(own + block + place, mask=block + place < vocabulary, other=float("-inf")).to(tl.float32)
        share = tl.exp((x - best) * scale)
        inside = tl.sum(share, 0)
        # Which of the block: as many as lie wholly before the point, and never one past the last that can be drawn.
        passed = tl.sum((tl.cumsum(share, 0) <= point - before).to(tl.int32), 0)
        last = tl.max(tl.where(share > 0, place, 0), 0)
        here = (before <= point) & (point < before + inside)
        token = tl.where(here, block + tl.minimum(passed, last), token)
        before += inside
    token = tl.where(greedy, likeliest, token)
    logprob = (tl.load(own + token).to(tl.float32) - best) * scale - tl.log(total)
    tl.store(answers + row, token.to(tl.int32))
    tl.store(answers + answer_stride + row, logprob.to(tl.int32, bitcast=True))
    if slot != spare:
        tl.store(tokens + slot, token.to(tl.int64))
        tl.store(indices + slot, index + 1)
        if GROWN:
            tl.store(filled + slot, tl.load(filled + slot) + 1)
