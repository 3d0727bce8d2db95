"""`mage train` on a rank that torchrun has started. Loads torch.

All ranks get the same command. Rank 0 creates or opens the run folder, shows progress and reports
errors; the other ranks write to `logs/` in the run folder.
"""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

import mage
from mage.config.errors import EXIT_STOPPED
from mage.config.loading import load_recipe
from mage.ranks.rank_log import log_path, write_rank_log
from mage.ranks.ranks import RankLost, Ranks
from mage.ranks.stop import Stopped, StopSignals
from mage.ranks.torchrun import (
    World,
    check_agreement,
    digest,
    find_folder,
    join_torchrun,
    read_world,
)
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback

OpenFolder = Callable[[str], RunFolder]  # the argument is the job of a new run
TrainMain = Callable[[RunFolder, bool, Ranks, StopSignals], None]


def train_on_rank(
    name: str | None,
    overrides: Sequence[str],
    runs: Path,
    open_folder: OpenFolder,
    train_main: TrainMain,
) -> RunFolder:
    """Train on this rank; returns the run folder on rank 0 and ends the process on the others.

    `open_folder` creates or opens the run on rank 0; `name` is None if the run is resumed.
    """
    world = read_world()
    assert world is not None, "the caller has looked"
    try:
        # A stop before the first section of the training ends that section on all ranks.
        with join_torchrun(world) as ranks, StopSignals() as stop:
            with ranks.together():
                recipe = load_recipe(name, overrides).toml() if name else ""
                check_agreement(
                    ranks, {"recipe": digest(recipe), "version of MAGE": mage.__version__}
                )
            path, is_new = _agree_on_folder(ranks, world, name, runs, open_folder)
            ranks.logs = path
            with ranks.together():
                folder = RunFolder.open_whole(path)
            with write_rank_log(log_path(path, world.rank), redirect=not ranks.is_main):
                if ranks.is_main:
                    train_main(folder, is_new, ranks, stop)
                else:
                    _train_other(folder, ranks, stop)
    except Stopped:
        raise typer.Exit(0 if world.rank else EXIT_STOPPED) from None
    if world.rank:
        raise typer.Exit(0)
    return folder


def _train_other(run: RunFolder, ranks: Ranks, stop: StopSignals) -> None:
    # Slow to load: ranks that do not agree have ended before.
    from mage.training.stages import begin_stages
    from mage.training.start import train

    try:
        for folder in begin_stages(run, ranks, print):
            train(folder.path, Callback(), stop, ranks=ranks)
    except (ValueError, OSError, RuntimeError) as error:
        if not ranks.failed and not isinstance(error, RankLost):
            traceback.print_exc()  # into the log, whose last lines rank 0 shows
        raise


def _agree_on_folder(
    ranks: Ranks, world: World, name: str | None, runs: Path, open_folder: OpenFolder
) -> tuple[Path, bool]:
    """The run folder, and whether it is new. After a restart it is that of the first attempt."""
    found: tuple[Path, bool] | None = None
    with ranks.together():
        if ranks.is_main:
            earlier = find_folder(runs, world) if name and world.restarts else None
            path = earlier or open_folder(world.job).path
            found = (path.resolve(), name is not None and earlier is None)
    agreed = ranks.broadcast(found)
    assert agreed is not None, "rank 0 has a folder"
    return agreed
