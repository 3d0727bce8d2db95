"""`_widen` of `mage.engines.gpu.fp8_kernels` without assembler, for Triton's interpreter."""

import triton
import triton.language as tl


@triton.jit
def widen(words):  # type: ignore[no-untyped-def]
    lower = (words & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    upper = ((words >> 8) & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return lower.to(tl.float16), upper.to(tl.float16)
