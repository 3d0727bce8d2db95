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
    keys: Tensor, values: Tensor, scales: Scales | None = None, warps: int = 2,
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
    _rotate_and_store[(rows,)](
        together, query, *rope, query_norm, key_norm, slots, positions, keys, values,
        keys.stride(0), keys.stride(1), epsilon,
        *((query, 0, 0) if scales is None else (scales.pairs, *scales.pairs.stride()[:2])),
        heads, kv_heads, size,
        triton.next_power_of_2(total), triton.next_power_of_2(size), norms is not None,
        scales is not None, LARGEST, SMALLEST, ZERO, early,
        num_warps=warps if scales is None else 8, launch_pdl=early,
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
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = SIZE // 2
    channel, head = tl.arange(0, BLOCK)[None, :], tl.arange(0, PADDED)[:, None]
    there = channel < SIZE
    real = there & (head < HEADS + 2 * KV_HEADS)
    partner = tl.where(channel < half, channel + half, channel - half)
    own = together + row * (HEADS + 2 * KV_HEADS) * SIZE + head * SIZE
    z = tl.load(own + channel, mask=real, other=0.0)
    x = z.to(tl.float32)
    y = tl.load(own + partner, mask=real, other=0.0).to(tl.float32)
    position = tl.load(positions + row)
    if NORMED:
        scale = 1 / tl.sqrt(tl.sum(x * x, 1) / SIZE + epsilon)[:, None]
        asked = head < HEADS
        weight = tl.where(
            asked,
            tl.load(query_norm + channel, mask=there, other=0.0),
            tl.load(key_norm + channel, mask=there, other=0.0),
        )
        other = tl.where(
            asked,
            tl.load(query_norm + partner, mask=there, other=0.0),
            tl.load(key_norm + partner, mask=there, other=0.0),
        )
        x = (x * scale * weight.to(tl.float32)).to(together.dtype.element_ty).to(tl.float32)
        y = (y * scale * other.to(tl.float32)).to(together.dtype.element_ty).to(tl.float32)
    cosine = tl.load(cosines + position * SIZE + channel, mask=there, other=0.0).to(tl.float32)
    sine = tl.load(sines + position * SIZE + channel, mask=there, other=0.0).to(
        tl.float32
    )  # the first half is negated
    x = x * cosine + y * sine
    at = head * SIZE + channel
    tl.store(
        query + row * HEADS * SIZE + at, x.to(query.dtype.element_ty), mask=there & (head < HEADS)
    )
    slot = tl.load(slots + row)
    place = slot * slot_stride + position * position_stride
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    if SMALL:
        x = tl.where(is_key, x, z.to(tl.float32))
        highest = tl.maximum(tl.max(tl.abs(x), 1), SMALLEST)[:, None]
        scale = tl.log2(highest / LARGEST).to(tl.float16)
        x = tl.floor(x * tl.exp2(-scale.to(tl.float32)) + (ZERO + 0.5))
        z = x
        part = (head >= HEADS + KV_HEADS).to(tl.int32)
        own = slot * own_stride + (head - HEADS - part * KV_HEADS) * head_stride + 2 * position
        stored = (head >= HEADS) & (head < HEADS + 2 * KV_HEADS)
        tl.store(scales + own + part, scale, mask=stored)
    tl.store(keys + place + at - HEADS * SIZE, x.to(keys.dtype.element_ty), mask=there & is_key)
    tl.store(
        values + place + at - (HEADS + KV_HEADS) * SIZE,
        z.to(values.dtype.element_ty),
        mask=real & (head >= HEADS + KV_HEADS),
    )
