"""One run of a reproduction in its own process: `python -m mage.reproduce.worker RUN`. Loads torch.

Below torchrun (`mage.reproduce.rank_launcher`) this is one rank of the run. A run folder has one
worker at a time: the worker holds a lock that ends with its process. If the runner that started it
ends, the worker saves and stops after the current update.
"""

import os
import sys
from pathlib import Path

from mage.config.errors import EXIT_STOPPED
from mage.ranks.processes import stop_with_launcher
from mage.ranks.rank_log import log_path, write_rank_log
from mage.ranks.stop import Stopped, StopSignals
from mage.ranks.torchrun import World, join_torchrun, read_world
from mage.report.loggers import make_loggers
from mage.reproduce.executors import RUNNER
from mage.run_folder import RunFolder
from mage.training.callbacks import CallbackList
from mage.training.start import train


def work(run: Path) -> int:
    """Train in this process alone."""
    # The runner may have ended while this process was loading torch.
    runner = int(os.environ.get(RUNNER, os.getppid()))
    with StopSignals(also=lambda: os.getppid() != runner) as stop:
        try:
            # Another worker may still be saving this run, or may have finished it.
            train(run, _callback(run), stop, wait_for_lock=True)
        except Stopped:
            return EXIT_STOPPED
    return 0


def work_on_rank(run: Path, world: World) -> int:
    """Train on this rank, which torchrun has started."""
    try:
        with stop_with_launcher(), join_torchrun(world) as ranks:
            ranks.logs = run
            with (
                write_rank_log(log_path(run, world.rank), redirect=not ranks.is_main),
                StopSignals() as stop,
            ):
                callback = _callback(run) if ranks.is_main else CallbackList([])
                train(run, callback, stop, ranks=ranks, wait_for_lock=True)
    except Stopped:
        return 0 if world.rank else EXIT_STOPPED
    return 0


def _callback(run: Path) -> CallbackList:
    return CallbackList(make_loggers(RunFolder.open(run).recipe.run.loggers, _warn))


def _warn(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(run: Path) -> int:
    world = read_world()
    return work(run) if world is None else work_on_rank(run, world)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
