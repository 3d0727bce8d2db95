"""Set the global torch options that decide how numbers are rounded. Loads torch.

A training must give the same figures whatever ran earlier in its process. torch itself changes one
of these options: at the first bfloat16 product on a processor without bfloat16 instructions it
switches oneDNN off for the whole process, and float32 products are then rounded in another way.
"""

import warnings

import torch
from torch.nn.functional import linear


def reset_arithmetic(dtype: torch.dtype, device: torch.device) -> None:
    """Reset the options. A bfloat16 model on a CPU makes one product at once, so that torch's own
    switch happens before the run and not in the middle of it."""
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.set_flags(True, False)
    if device.type == "cpu" and dtype != torch.float32:
        square = torch.ones(64, 64, dtype=dtype)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # "mkldnn_matmul failed, switching to BLAS gemm"
            linear(square, square)
