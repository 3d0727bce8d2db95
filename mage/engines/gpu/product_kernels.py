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
from mage.engines.gpu.small_weights import GROUP, SmallWeight
from mage.engines.gpu.state import Tiles


def product(
    rows: Tensor,
    weight: Tensor | SmallWeight,
    tiles: Tiles,
    *,
    gated: bool = False,
    bias: Tensor | None = None,
    summed: bool = False,
) -> Tensor:
    """rows @ weight^T; `gated`: silu(gate) * up, where `weight` has the rows of up below gate's.

    `summed`: float32 parts [splits, rows, words], whose sum is the product.
    """
    small = isinstance(weight, SmallWeight)
    numbers = weight.numbers if isinstance(weight, SmallWeight) else weight
    count, depth = rows.shape
    words = numbers.shape[0] // (2 if gated else 1)
    assert summed or tiles.splits == 1, "only parts that are summed later can be several"
    assert not small or tiles.depth == GROUP, "a step of inputs is one group of scales"
    out = rows.new_empty(count, words)
    if summed:
        out = rows.new_empty(tiles.splits, count, words, dtype=torch.float32)
    early = overlaps(rows)
    weights = (numbers.view(torch.int16), weight[1]) if small else (numbers,)
    kernel = _small_product if small else _product
    kernel[(words // tiles.words, tiles.splits)](
        rows, *weights, rows if bias is None else bias, out, count,
        words, depth, max(16, triton.next_power_of_2(count)),
        tiles.words, tiles.depth, tiles.splits, gated, bias is not None, early, tiles.ahead,
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
    _begin(gates + first * STEP, ups + first * STEP, AHEAD * STEP, GATED, EARLY)
    real = (row < count)[:, None]
    inputs = rows + row[:, None] * DEPTH
    found = tl.zeros([TILE, ROWS], tl.float32)
    other = tl.zeros([TILE, ROWS], tl.float32)
    for step in range(first, last):
        at = step * STEP + place[None, :]
        x = tl.trans(tl.load(inputs + at, mask=real, other=0.0))
        w = tl.load(gates[:, None] + at, eviction_policy="evict_first")
        found = tl.dot(w, x, found)
        if GATED:
            u = tl.load(ups[:, None] + at, eviction_policy="evict_first")
            other = tl.dot(u, x, other)
    to = out + (split * count + row[:, None]) * WORDS + word[None, :]
    _end(found, other, bias + word, to, real, rows.dtype.element_ty, GATED, BIASED)


@triton.jit
def _small_product(  # type: ignore[no-untyped-def]
    rows, weight, scales, bias, out, count,
    WORDS: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr,
    EARLY: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """`weight` has two integers in a word: inputs i and i + STEP / 2 of a step, see SmallWeight."""
    HALF: tl.constexpr = STEP // 2
    split, steps = tl.program_id(1), DEPTH // STEP
    first, last = split * steps // SPLITS, (split + 1) * steps // SPLITS
    word = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row, place = tl.arange(0, ROWS), tl.arange(0, HALF)
    gates = weight + word.to(tl.int64) * (DEPTH // 2)
    ups = gates + WORDS * (DEPTH // 2)
    _begin(gates + first * HALF, ups + first * HALF, AHEAD * HALF, GATED, EARLY)
    real = (row < count)[:, None]
    lower = rows + row[:, None] * DEPTH + place[None, :]
    found = tl.zeros([TILE, ROWS], tl.float32)
    other = tl.zeros([TILE, ROWS], tl.float32)
    gate_scales = scales + word * steps
    up_scales = gate_scales + WORDS * steps
    # The scales of a step are asked for one step earlier.
    gate_scale, up_scale = tl.load(gate_scales + first), tl.load(up_scales + first, mask=GATED)
    for step in range(first, last):
        at, following = step * HALF + place[None, :], tl.minimum(step + 1, last - 1)
        x = tl.trans(tl.load(lower + step * STEP, mask=real, other=0.0))
        y = tl.trans(tl.load(lower + step * STEP + HALF, mask=real, other=0.0))
        low, high = _widen(tl.load(gates[:, None] + at, eviction_policy="evict_first"), x.dtype)
        next_scale = tl.load(gate_scales + following)
        found += tl.dot(high, y, tl.dot(low, x)) * gate_scale.to(tl.float32)[:, None]
        gate_scale = next_scale
        if GATED:
            low, high = _widen(tl.load(ups[:, None] + at, eviction_policy="evict_first"), x.dtype)
            next_scale = tl.load(up_scales + following)
            other += tl.dot(high, y, tl.dot(low, x)) * up_scale.to(tl.float32)[:, None]
            up_scale = next_scale
    to = out + (split * count + row[:, None]) * WORDS + word[None, :]
    _end(found, other, bias + word, to, real, rows.dtype.element_ty, GATED, BIASED)


@triton.jit
def _widen(words, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The lower and the upper 8-bit integer of every word, as numbers of type KIND.

    For bfloat16 a byte is two numbers: 128 + its lower seven bits, and -128 or, with the highest
    bit, -256. Their sum is exact, and takes half the instructions of a conversion.
    """
    if KIND.is_bf16():
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 seven, highest, upper;
            lop3.b32 seven, $2, 0x007f007f, 0x43004300, 0xea;
            lop3.b32 highest, $2, 0x00800080, 0xc300c300, 0xea;
            add.rn.bf16x2 $0, seven, highest;
            shr.b32 upper, $2, 8;
            lop3.b32 seven, upper, 0x007f007f, 0x43004300, 0xea;
            lop3.b32 highest, upper, 0x00800080, 0xc300c300, 0xea;
            add.rn.bf16x2 $1, seven, highest;
            }""",
            "=r,=r,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    return ((words << 8) >> 8).to(KIND), (words >> 8).to(KIND)


@triton.jit
def _begin(gates, ups, COUNT: tl.constexpr, GATED: tl.constexpr, EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Ask for the first COUNT weights of every output, then wait for the kernel before."""
    if EARLY:
        gdc_launch_dependents()
        if COUNT > 0:
            fetch(gates, COUNT)
            if GATED:
                fetch(ups, COUNT)
        gdc_wait()


@triton.jit
def _end(  # type: ignore[no-untyped-def]
    found, other, bias, to, real, KIND: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr
):
    """Write the sums [words, rows], with a bias or gated; rounded as the modules round."""
    if BIASED:
        found += tl.load(bias)[:, None].to(tl.float32)
    if GATED:
        gate = found.to(KIND).to(tl.float32)
        gate = (gate / (1 + tl.exp(-gate))).to(KIND).to(tl.float32)
        found = gate * other.to(KIND).to(tl.float32)
    tl.store(to, tl.trans(found).to(to.dtype.element_ty), mask=real)


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
