"""A norm and the matrix product after it as ONE Triton kernel, with or without the gate that follows. CUDA only.

A decode step of a small model is a chain of short kernels, and the gaps between them cost as much as the work. Rows are multiplied
by the norm's weight on their way in and divided by their root mean square on the way out, so one pass over them is enough.
Many rows (a prefill) are better served by the vendor's product and a norm of its own.
"""

import triton
import triton.language as tl
from torch import Tensor

from mage.engines.state import NORMED_GATED, NORMED_PRODUCT, Product


def normed_product(hidden: Tensor, norm: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None, plan: Product = NORMED_PRODUCT) -> Tensor:
    """`hidden` [rows, width] divided by its root mean square, times `norm`, through `weight` [out, width] and `bias`."""
    out = hidden.new_empty(len(hidden), len(weight))
    _launch(hidden, norm, epsilon, weight, bias, out, plan, False)
    return out


def normed_gated(hidden: Tensor, norm: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None, plan: Product = NORMED_GATED) -> Tensor:
    """The same with gate and up side by side in `weight` [2 out, width]: silu(gate) * up."""
    out = hidden.new_empty(len(hidden), len(weight) // 2)
    _launch(hidden, norm, epsilon, weight, bias, out, plan, True)
    return out


def _launch(hidden: Tensor, norm: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None, out: Tensor, plan: Product, gated: bool) -> None:
    (rows, width), columns = hidden.shape, out.shape[1]
    grid = (triton.cdiv(rows, plan.lines), triton.cdiv(columns, plan.columns))
    _normed_product[grid](
        hidden, norm, weight, weight if bias is None else bias, out, epsilon, rows, columns, width, plan.lines, plan.columns, plan.depth,
        bias is not None, gated, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip


@triton.jit
def _normed_product(  # type: ignore[no-untyped-def]
    hidden, norm, weight, bias, out, epsilon, rows, columns, WIDTH: tl.constexpr,
    LINES: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * LINES + tl.arange(0, LINES).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    rows_real, columns_real = (row < rows)[:, None], (column < columns)[:, None]
    x_at = hidden + row[:, None] * WIDTH + depth[None, :]
    w_at = weight + column[:, None] * WIDTH + depth[None, :]
    squares = tl.zeros([LINES], tl.float32)
    found = tl.zeros([LINES, COLUMNS], tl.float32)
    second = tl.zeros([LINES, COLUMNS], tl.float32)
    for start in range(0, WIDTH, DEPTH):
        real = (start + depth < WIDTH)[None, :]
        x = tl.load(x_at + start, mask=rows_real & real, other=0.0).to(tl.float32)
        squares += tl.sum(x * x, 1)
        scale = tl.load(norm + start + depth, mask=start + depth < WIDTH, other=0.0).to(tl.float32)
        x = (x * scale[None, :]).to(hidden.dtype.element_ty)
        w = tl.load(w_at + start, mask=columns_real & real, other=0.0)
        found = tl.dot(x, tl.trans(w), found, input_precision="ieee")
        if GATED:
            w = tl.load(w_at + columns * WIDTH + start, mask=columns_real & real, other=0.0)
            second = tl.dot(x, tl.trans(w), second, input_precision="ieee")
    length = (1 / tl.sqrt(squares / WIDTH + epsilon))[:, None]
    found *= length
    here = (column < columns)[None, :]
    if BIASED:
        found += tl.load(bias + column[None, :], mask=here, other=0.0).to(tl.float32)
    if GATED:
        second *= length
        if BIASED:
            second += tl.load(bias + columns + column[None, :], mask=here, other=0.0).to(tl.float32)
        found = found / (1 + tl.exp(-found)) * second
    tl.store(out + row[:, None] * columns + column[None, :], found.to(out.dtype.element_ty), mask=rows_real & here)
