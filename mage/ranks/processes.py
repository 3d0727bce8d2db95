"""Processes that this one starts: they handle signals from the start and end with their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

SIGNALS = (signal.SIGINT, signal.SIGTERM)
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
