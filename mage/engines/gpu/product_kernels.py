"""Matrix products of decode steps with few rows, and the sum and norm that follow. Hopper only.

A decode step reads every weight once, so its time is that of reading memory, if nothing keeps the
memory waiting. The kernels of cuBLAS for few rows reach half to three quarters of the bandwidth.
The ones here divide the work for the bandwidth and ask for their first weights before their inputs
are ready (`overlap.py`). docs/performance.md has the figures.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mage.engines.gpu.overlap import fetch, gdc_launch_dependents, gdc_wait, overlaps
from mage.engines.gpu.state import Tiles


def product(
    rows: Tensor,
    weight: Tensor,
    tiles: Tiles,
    *,
    gated: bool = False,
    bias: Tensor | None = None,
    summed: bool = False,
) -> Tensor:
    """rows @ weight^T; `gated`: silu(gate) * up, where `weight` has the rows of up below gate's.

    `summed`: float32 parts [splits, rows, words], whose sum is the product.
    """
    count, depth = rows.shape
    words = weight.shape[0] // (2 if gated else 1)
    assert summed or tiles.splits == 1, "only parts that are summed later can be several"
    out = rows.new_empty(count, words)
    if summed:
        out = rows.new_empty(tiles.splits, count, words, dtype=torch.float32)
    early = overlaps(rows)
    _product[(words // tiles.words, tiles.splits)](
        rows, weight, rows if bias is None else bias, out, count,
        words, depth, max(16, triton.next_power_of_2(count)),
        tiles.words, tiles.depth, tiles.splits, gated, bias is not None,
        early, tiles.ahead,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=early,
    )  # fmt: skip
    return out


@triton.jit
def _product(  # type: ignore[no-untyped-def]
    rows, weight, bias, out, count,
    WORDS: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr,
    EARLY: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    split, steps = tl.program_id(1), DEPTH // STEP
    first, last = split * steps // SPLITS, (split + 1) * steps // SPLITS
    word = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row, place = tl.arange(0, ROWS), tl.arange(0, STEP)
    gates = weight + word.to(tl.int64) * DEPTH
    ups = gates + WORDS * DEPTH
    if EARLY:
        gdc_launch_dependents()
        if AHEAD > 0:
            fetch(gates + first * STEP, AHEAD * STEP)
            if GATED:
                fetch(ups + first * STEP, AHEAD * STEP)
        gdc_wait()
    real = (row < count)[:, None]
    inputs = rows + row[:, None] * DEPTH
    found = tl.zeros([TILE, ROWS], tl.float32)
    other = tl.zeros([TILE, ROWS], tl.float32)
    for step in range(first, last):
        at = step * STEP + place[None, :]
        x = tl.trans(tl.load(inputs + at, mask=real, other=0.0))
        found = tl.dot(tl.load(gates[:, None] + at, eviction_policy="evict_first"), x, found)
        if GATED:
            other = tl.dot(tl.load(ups[:, None] + at, eviction_policy="evict_first"), x, other)
    if BIASED:
        found += tl.load(bias + word)[:, None].to(tl.float32)
    if GATED:  # rounded as the modules round
        gate = found.to(rows.dtype.element_ty).to(tl.float32)
        gate = (gate / (1 + tl.exp(-gate))).to(rows.dtype.element_ty).to(tl.float32)
        found = gate * other.to(rows.dtype.element_ty).to(tl.float32)
    to = out + (split * count + row[:, None]) * WORDS + word[None, :]
    tl.store(to, tl.trans(found).to(out.dtype.element_ty), mask=real)


def add_norm(hidden: Tensor, parts: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Add the sum of `parts` [parts, rows, width] to `hidden` in place; returns its RMS norm."""
    out = torch.empty_like(hidden)
    early = overlaps(hidden)
    _add_norm[(len(hidden),)](
        hidden, parts, weight, out, epsilon, *hidden.shape,
        triton.next_power_of_2(hidden.shape[1]), len(parts), early,
        num_warps=8, launch_pdl=early,
    )  # fmt: skip
    return out


@triton.jit
def _add_norm(  # type: ignore[no-untyped-def]
    hidden, parts, weight, out, epsilon, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    real = column < WIDTH
    w = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * WIDTH + column
    x = tl.load(hidden + at, mask=real, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        x += tl.load(parts + part * rows * WIDTH + at, mask=real, other=0.0).to(tl.float32)
    rounded = x.to(hidden.dtype.element_ty)
    tl.store(hidden + at, rounded, mask=real)
    x = rounded.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / WIDTH + epsilon)
    tl.store(out + at, (x * scale * w).to(out.dtype.element_ty), mask=real)
