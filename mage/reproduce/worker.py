"""One run of a reproduction in its own process: `python -m mage.reproduce.worker RUN`. Loads torch.

A run folder has one worker at a time: the worker holds a lock that ends with its process. If the
runner that started it ends, the worker saves and stops after the current update.
"""

import os
import sys
from pathlib import Path

from mage.config.errors import EXIT_STOPPED
from mage.ranks.stop import Stopped, StopSignals
from mage.report.loggers import make_loggers
from mage.run_folder import RunFolder
from mage.training.callbacks import CallbackList
from mage.training.trainer import train


def work(run: Path) -> int:
    loggers = make_loggers(RunFolder.open(run).recipe.run.loggers, _warn)
    runner = os.getppid()
    with StopSignals(also=lambda: os.getppid() != runner) as stop:
        try:
            # Another worker may still be saving this run, or may have finished it.
            train(run, CallbackList(loggers), stop, wait_for_lock=True)
        except Stopped:
            return EXIT_STOPPED
    return 0


def _warn(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1])))
