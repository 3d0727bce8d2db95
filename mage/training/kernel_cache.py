"""Where compiled GPU kernels are kept, so that a second run does not compile them again.

torch.compile keeps its kernels in the folder for temporary files, which many machines empty at
every start or give each job anew. Here they are in the user's cache: $MAGE_KERNELS, else `kernels`
in $MAGE_CACHE, else ~/.cache/mage/kernels. `MAGE_KERNELS=off` leaves the choice to torch, and a
folder that the user has chosen for torch or triton stays. Both find a kernel by its source, its
shapes, the versions and the card, so an outdated kernel is never used.
"""

import os
from pathlib import Path

_OFF = "off"
_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def keep_kernels() -> None:
    """Set the folders for this process and those that it starts. Call before the first kernel."""
    folder = kernel_folder()
    if folder is None:
        return
    for variable, name in _VARIABLES.items():
        os.environ.setdefault(variable, str(folder / name))


def kernel_folder() -> Path | None:
    """The folder of compiled kernels; None if they are not kept or it cannot be written."""
    chosen = os.environ.get("MAGE_KERNELS", "")
    if chosen.lower() == _OFF:
        return None
    cache = os.environ.get("MAGE_CACHE") or "~/.cache/mage"
    folder = Path(chosen or f"{cache}/kernels").expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that is read only: kernels are compiled again, nothing else
        return None
    return folder if os.access(folder, os.W_OK) else None
