"""Memory of this process, for the timing file."""

import os
from pathlib import Path

import torch


def memory_usage() -> dict[str, float]:
    """Gigabytes on the host (where the system reports them) and on the GPU.

    `memory_device` is in use now, so a leak shows as a rising line. `memory_device_held` is
    reserved by this process: another process on the same card cannot use it.
    `memory_device_peak` is the most that was ever reserved.
    """
    statm = Path("/proc/self/statm")
    host = (
        {"memory_host": int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9}
        if statm.is_file()
        else {}
    )
    if not torch.cuda.is_available():
        return host
    return host | {
        "memory_device": torch.cuda.memory_allocated() / 1e9,
        "memory_device_held": torch.cuda.memory_reserved() / 1e9,
        "memory_device_peak": torch.cuda.max_memory_reserved() / 1e9,
    }
