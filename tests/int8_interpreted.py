"""`_widen` of `mage.engines.gpu.int8_kernels` without assembler, for Triton's interpreter."""

import triton
import triton.language as tl


@triton.jit
def widen(words):  # type: ignore[no-untyped-def]
    lower, upper = (words & 255) - 128, ((words >> 8) & 255) - 128
    return lower.to(tl.float16), upper.to(tl.float16)
