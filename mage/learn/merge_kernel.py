"""W0 + scale * B A as one Triton kernel. CUDA only.

Plain PyTorch makes float32 copies of W0 and of the sum; at 4 B these are 100 GB of memory traffic
after every optimizer step. This kernel reads W0 and writes W: 15 GB. The sum has float32, and is
rounded once.
"""

import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 64, 128  # of the part of W that one program writes; no thread needs another


def merge(base: Tensor, down: Tensor, up: Tensor, scale: float, out: Tensor) -> None:
    """Write base + scale * up @ down into `out`; all are contiguous matrices."""
    rows, columns = base.shape
    grid = (triton.cdiv(rows, _ROWS), triton.cdiv(columns, _COLUMNS))
    rank = down.shape[0]
    _merge[grid](base, down, up, scale, out, rows, columns, rank, _ROWS, _COLUMNS, num_warps=8)


@triton.jit
def _merge(  # type: ignore[no-untyped-def]
    base, down, up, scale, out, rows, columns, RANK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    change = tl.zeros((ROWS, COLUMNS), tl.float32)
    for one in tl.static_range(RANK):  # unrolled, so that all loads begin at once
        b = tl.load(up + row * RANK + one, mask=row < rows, other=0.0)
        a = tl.load(down + one * columns + column, mask=column < columns, other=0.0)
        change += b[:, None] * a[None, :]
    first = tl.program_id(0).to(tl.int64) * ROWS * columns
    place = first + tl.arange(0, ROWS)[:, None] * columns + column[None, :]
    real = (row[:, None] < rows) & (column[None, :] < columns)
    merged = tl.load(base + place, mask=real, other=0.0).to(tl.float32) + scale * change
    tl.store(out + place, merged.to(out.dtype.element_ty), mask=real)
