"""Kernels of a decode step that start while the one before still runs. CUDA only.

Between two kernels the memory would idle: the next one starts when the last program of the one
before has ended, and its first loads take a microsecond. With programmatic dependent launch it
starts as soon as all programs of the one before have started. It reads what no kernel that overlaps
writes (weights, keys of earlier steps, positions), and then waits until the one before has ended. A
kernel with EARLY reads nothing else and writes nothing before `gdc_wait`, so the results are those
of separate kernels. Positions are written before the first kernel of a step that can overlap.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mage.engines.gpu.state import overlap_pays

_LINE = tl.constexpr(128)  # bytes that one request brings

__all__ = ["fetch", "gdc_launch_dependents", "gdc_wait", "is_hopper", "overlaps"]


def overlaps(rows: torch.Tensor) -> bool:
    """Whether kernels over `rows` [count, ...] do so: on Hopper, where this was measured."""
    return overlap_pays(len(rows), rows.shape[1:].numel()) and is_hopper(rows.device)


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether this is an H100, an H200 or a relative."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


@triton.jit
def fetch(starts, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bring COUNT numbers from each of the addresses [n] on into the cache of the GPU (L2)."""
    line: tl.constexpr = _LINE * 8 // starts.dtype.element_ty.primitive_bitwidth
    lines: tl.constexpr = (COUNT + line - 1) // line
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [starts[:, None] + line * tl.arange(0, lines)[None, :]],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
