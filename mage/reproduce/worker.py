"""One run of a reproduction in its own process: `python -m mage.reproduce.worker RUN`. Loads torch.

A run folder has one worker at a time: it holds a lock that ends with its process. When the runner that started it is gone, it
saves and stops after the update in hand, so whoever goes on finds the run where it was.
"""

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from mage.config.errors import EXIT_STOPPED
from mage.report.tensorboard import TensorBoardCallback
from mage.training.callbacks import Stopped
from mage.training.trainer import train


class Leave:
    """Whether to stop: the runner has asked (SIGTERM) or is gone."""

    def __init__(self) -> None:
        self.asked, self.parent = False, os.getppid()
        signal.signal(signal.SIGTERM, self._hear)

    def __call__(self) -> bool:
        return self.asked or os.getppid() != self.parent

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the run's lock, after whoever has it now."""
    with open(run / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def work(run: Path) -> int:
    leave = Leave()
    with locked(run):
        try:
            if not (run / "summary.json").is_file():  # whoever had the lock may have finished it
                train(run, TensorBoardCallback(), leave)
        except Stopped:
            return EXIT_STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1])))
