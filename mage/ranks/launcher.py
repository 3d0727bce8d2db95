"""A rank stops when the process that launched it (torchrun) has ended. Loads no torch.

Loading torch takes seconds, and a rank whose launcher ends in this time waits for it in vain.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK = 0.5  # seconds between two looks at the launcher


@contextmanager
def stop_with_launcher() -> Iterator[None]:
    """Send SIGTERM to this process, so that it saves and ends, when its launcher has ended."""
    launcher, ended = os.getppid(), threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
