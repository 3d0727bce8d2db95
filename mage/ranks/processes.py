"""Processes that end with the one that started them. Loads no torch.

Loading torch takes seconds, and a rank whose launcher ends in this time waits for it in vain.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

from mage.config.errors import EXIT_STOPPED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 0.5  # seconds between two looks at the launcher
START_METHOD = "spawn"  # a forked process cannot use CUDA or autograd after its parent has


@contextmanager
def blocked_signals() -> Iterator[None]:
    """A process that is started here gets no signal until it unblocks them itself."""
    resource_tracker.ensure_running()  # it unblocks signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """End this process when its parent has ended, also by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in a started process"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def stop_with_launcher() -> Iterator[None]:
    """Send SIGTERM to this process when torchrun, which launched it, has ended.

    So the run saves its state and ends. Rank 0 reports that.
    """
    launcher, ended = os.getppid(), threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") != "0":
            raise SystemExit(EXIT_STOPPED) from None
        raise
    finally:
        ended.set()
