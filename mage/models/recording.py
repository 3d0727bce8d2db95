"""Recording of CUDA graphs whose memory is their own."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def recording() -> Iterator[None]:
    """Inside, graphs are recorded whose memory is in their pool, the cuBLAS workspace included.

    PyTorch keeps one cuBLAS workspace per stream, and all recordings share a stream. Without the
    first clear, a graph would use the workspace in the pool of whoever recorded first; that memory
    is freed when somebody clears workspaces (torch.compile does). After the first clear, the
    workspace comes from the pool of this recording. After the second clear, nobody else uses it.

    No garbage is collected meanwhile: a graph of a dropped engine that is freed while another one
    is recorded makes the recording invalid.
    """
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        torch._C._cuda_clearCublasWorkspaces()
