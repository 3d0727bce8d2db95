"""One run of a reproduction in its own process: `python -m mage.reproduce.worker RUN`. Loads torch.

A run folder has one worker at a time: the worker holds a lock that ends with its process. If the
runner that started it ends, the worker saves and stops after the current update.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from mage.config.errors import EXIT_STOPPED
from mage.report.loggers import make_loggers
from mage.run_folder import RunFolder
from mage.training.callbacks import CallbackList, Stopped
from mage.training.trainer import train


class StopRequest:
    """True after a SIGTERM of the runner, or when the runner has ended."""

    def __init__(self) -> None:
        self.asked, self.parent = False, os.getppid()
        signal.signal(signal.SIGTERM, self._on_signal)

    def __call__(self) -> bool:
        return self.asked or os.getppid() != self.parent

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def work(run: Path) -> int:
    try:
        # Another worker may still be saving this run, or may have finished it.
        loggers = make_loggers(RunFolder.open(run).recipe.run.loggers, _warn)
        train(run, CallbackList(loggers), StopRequest(), wait_for_lock=True)
    except Stopped:
        return EXIT_STOPPED
    return 0


def _warn(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1])))
