"""Fused Triton kernels for the steps of a decoder. CUDA only.

The time of a decode step of a small model grows with its number of kernels, so everything between
two matrix products is one kernel or part of one. `reference_ops.py` has the same functions in plain
PyTorch; attention, sampling and products of few rows have files of their own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from mage.engines.gpu.attend_kernels import attend_blocks, attend_decode
from mage.engines.gpu.draft_kernels import accept, draft
from mage.engines.gpu.overlap import gdc_launch_dependents, gdc_wait, overlaps
from mage.engines.gpu.product_kernels import add_norm, product
from mage.engines.gpu.sampling_kernels import choose
from mage.engines.gpu.state import Tiles, tiles_for
from mage.engines.pool import LARGEST, SMALLEST, ZERO, Scales

__all__ = [
    "accept",
    "add_project_norm",
    "attend_blocks",
    "attend_decode",
    "choose",
    "draft",
    "gated",
    "project",
    "project_gated",
    "rms_norm",
    "rotate_and_store",
]


def project(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer: rows @ weight^T + bias."""
    tiles = _tiles(rows, len(weight), bias=None)
    return linear(rows, weight, bias) if tiles is None else product(rows, weight, tiles, bias=bias)


def project_gated(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """silu(gate) * up of a linear layer whose outputs are gate and up side by side."""
    tiles = _tiles(rows, len(weight) // 2, bias, gated=True)
    if tiles is None:
        return gated(linear(rows, weight, bias))
    return product(rows, weight, tiles, gated=True)


def add_project_norm(
    hidden: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor, epsilon: float
) -> Tensor:
    """Add a linear layer of `rows` to `hidden` in place; returns the norm of the sum."""
    tiles = _tiles(rows, len(weight), bias, summed=True)
    if tiles is not None:
        parts = product(rows, weight, tiles, summed=True)
        return add_norm(hidden, parts, norm, epsilon)
    hidden.addmm_(rows, weight.t())  # in place: `addmm` would first copy `hidden`
    return rms_norm(hidden if bias is None else hidden.add_(bias), norm, epsilon)


def _tiles(rows: Tensor, words: int, bias: Tensor | None, **kind: bool) -> Tiles | None:
    """How a kernel of ours divides a product; None: cuBLAS computes it."""
    ours = overlaps(rows) and rows.dtype != torch.float32 and bias is None
    return tiles_for(len(rows), words, rows.shape[1], **kind) if ours else None


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`hidden` [rows, width] divided by its root mean square, times `weight`."""
    out = torch.empty_like(hidden)
    width = hidden.shape[-1]
    _rms_norm[(hidden.numel() // width,)](
        hidden, weight, out, epsilon, width, triton.next_power_of_2(width)
    )
    return out


@triton.jit
def _rms_norm(  # type: ignore[no-untyped-def]
    hidden, weight, out, epsilon, width, BLOCK: tl.constexpr
):
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
    gate = (
        (gate / (1 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    )  # rounded as the module rounds it
    tl.store(out + row * width + column, (gate * up).to(out.dtype.element_ty), mask=real)


def rotate_and_store(
    together: Tensor, heads: int, rope: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None, epsilon: float, slots: Tensor, positions: Tensor,
    keys: Tensor, values: Tensor, scales: Scales | None = None,
) -> Tensor:  # fmt: skip
    """Rotate queries and keys of `together` [rows, heads + 2 kv heads, size].

    Returns the queries [rows, heads, size]; keys and values are stored in their slots. `norms` are
    the weights of the norms over query and key heads, if the model has them. `rope` has one row
    per position. With `scales`, keys and values are stored in 8 bits.
    """
    rows, total, size = together.shape
    kv_heads = keys.shape[2]
    query = together.new_empty(rows, heads, size)
    query_norm, key_norm = norms or (together, together)
    early = overlaps(together)
    warps = 8 if rows <= 256 else 4 if scales is None else 2  # the fastest ones on an H200
    _rotate_and_store[(rows,)](
        together, query, *rope, query_norm, key_norm, slots, positions, keys, values,
        keys.stride(0), keys.stride(1), epsilon,
        *((query, 0, 0) if scales is None else (scales.pairs, *scales.pairs.stride()[:2])),
        heads, kv_heads, size,
        triton.next_power_of_2(total), triton.next_power_of_2(size // 2), norms is not None,
        scales is not None, LARGEST, SMALLEST, ZERO, early,
        num_warps=warps, launch_pdl=early,
    )  # fmt: skip
    return query


@triton.jit
def _rotate_and_store(  # type: ignore[no-untyped-def]
    together, query, cosines, sines, query_norm, key_norm, slots, positions, keys, values,
    slot_stride, position_stride, epsilon, scales, own_stride, head_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK: tl.constexpr, NORMED: tl.constexpr, SMALL: tl.constexpr, LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr, ZERO: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row. x are the first halves of its heads, y the second ones: rotation mixes the two."""
    half: tl.constexpr = SIZE // 2
    row = tl.program_id(0).to(tl.int64)
    position, slot = tl.load(positions + row), tl.load(slots + row)
    channel, head = tl.arange(0, BLOCK)[None, :], tl.arange(0, PADDED)[:, None]
    there = channel < half
    real = there & (head < HEADS + 2 * KV_HEADS)
    cos_x, cos_y = _halves(cosines + position * SIZE, channel, half, there)
    sin_x, sin_y = _halves(sines + position * SIZE, channel, half, there)  # sin_x is negated
    if NORMED:
        asked = head < HEADS
        query_x, query_y = _halves(query_norm, channel, half, there)
        key_x, key_y = _halves(key_norm, channel, half, there)
        weight_x, weight_y = tl.where(asked, query_x, key_x), tl.where(asked, query_y, key_y)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    own = together + row * (HEADS + 2 * KV_HEADS) * SIZE + head * SIZE
    plain_x, plain_y = _halves(own, channel, half, real)
    x, y = plain_x, plain_y
    if NORMED:
        scale = 1 / tl.sqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / SIZE + epsilon)[:, None]
        x = (x * scale * weight_x).to(together.dtype.element_ty).to(tl.float32)
        y = (y * scale * weight_y).to(together.dtype.element_ty).to(tl.float32)
    x, y = x * cos_x + y * sin_x, y * cos_y + x * sin_y
    at = head * SIZE + channel
    to = query + row * HEADS * SIZE + at
    tl.store(to, x.to(query.dtype.element_ty), mask=there & (head < HEADS))
    tl.store(to + half, y.to(query.dtype.element_ty), mask=there & (head < HEADS))
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    x, y = tl.where(is_key, x, plain_x), tl.where(is_key, y, plain_y)
    if SMALL:
        highest = tl.maximum(tl.max(tl.abs(x), 1), tl.max(tl.abs(y), 1))
        scale = tl.log2(tl.maximum(highest, SMALLEST)[:, None] / LARGEST).to(tl.float16)
        factor = tl.exp2(-scale.to(tl.float32))
        x, y = tl.floor(x * factor + (ZERO + 0.5)), tl.floor(y * factor + (ZERO + 0.5))
        part = is_value.to(tl.int32)
        of_head = slot * own_stride + (head - HEADS - part * KV_HEADS) * head_stride + 2 * position
        tl.store(scales + of_head + part, scale, mask=is_key | is_value)
    place = slot * slot_stride + position * position_stride + at
    key, value = keys + place - HEADS * SIZE, values + place - (HEADS + KV_HEADS) * SIZE
    tl.store(key, x.to(keys.dtype.element_ty), mask=there & is_key)
    tl.store(key + half, y.to(keys.dtype.element_ty), mask=there & is_key)
    tl.store(value, x.to(values.dtype.element_ty), mask=there & is_value)
    tl.store(value + half, y.to(values.dtype.element_ty), mask=there & is_value)


@triton.jit
def _halves(numbers, channel, half, mask):  # type: ignore[no-untyped-def]
    """The first and the second halves of heads, as float32."""
    x = tl.load(numbers + channel, mask=mask, other=0.0).to(tl.float32)
    return x, tl.load(numbers + channel + half, mask=mask, other=0.0).to(tl.float32)
