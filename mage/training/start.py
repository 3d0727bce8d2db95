"""Start a training run: lock its folder, write the warm start, and train on all ranks.

torchrun has started the ranks, or rank 0 starts them here. Two kinds of blocks keep them in step.
`ranks.together()`: an error on one rank ends the block on all. That rank raises it, the others
`RankFailed`. `stop.section(ranks)`: a stop on one rank ends it on all, which raise `RanksStopped`.
"""

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mage.ranks.launch import launch_ranks
from mage.ranks.ranks import Ranks, RanksStopped
from mage.ranks.stop import Stopped, StopRequest, StopSignals
from mage.run_folder import RunFolder, lock_run
from mage.training.callbacks import Callback, Metrics
from mage.training.device_errors import explain_device_errors
from mage.training.resume import check_kept, clear_leftovers
from mage.training.trainer import Trainer
from mage.training.warm_start import make_warm_start
from mage.training.warnings import warmup_line


def train(
    path: Path,
    callback: Callback,
    stop: Callable[[], bool],
    *,
    ranks: Ranks | None = None,
    wait_for_lock: bool = False,
) -> Metrics:
    """Train the run in a folder to its end and return the summary.

    Training continues from the newest whole checkpoint, if there is one. `stop` is called after
    every update: if it returns true, the run is saved and all ranks raise `Stopped`. `StopSignals`
    also ends an interruptible section at once. If another process uses the folder, `RunLocked` is
    raised, or with `wait_for_lock` this waits for its end. `ranks` are those that torchrun has
    started; without them `run.workers` processes are started. Ranks other than 0 return {}.
    """
    under_torchrun = ranks is not None
    ranks = ranks or Ranks()
    request = stop if isinstance(stop, StopRequest) else StopRequest(stop)
    with ExitStack() as held:
        try:
            with request.section(ranks), ranks.together():
                folder = RunFolder.open(path)
                if ranks.is_main:  # it may wait for long
                    held.enter_context(lock_run(folder.path, wait=wait_for_lock))
                    clear_leftovers(folder)
                    check_kept(folder)
            held.enter_context(explain_device_errors(folder))
            if ranks.broadcast(folder.is_finished):
                return folder.read_summary() if ranks.is_main else {}
            with request.section(ranks), ranks.together():
                _write_warm_start(folder, ranks, callback)
        except RanksStopped:
            raise Stopped(str(path)) from None
        if under_torchrun:
            return _train_rank(ranks, path, callback, request)
        return launch_ranks(
            folder.recipe.run.workers,
            _train_launched,
            path,  # the argument of the task on all ranks
            folder=path,  # where `launch_ranks` writes the logs of ranks other than 0
            stop=request,
            callback=callback,
        )


def _write_warm_start(folder: RunFolder, ranks: Ranks, callback: Callback) -> None:
    """Rank 0 writes the weights after imitation, if the recipe asks for them."""
    if ranks.is_main and folder.recipe.warmup.first and not folder.warm.exists():
        made = make_warm_start(folder.first_recipe(), folder.warm, callback.on_warmup)
        callback.on_warmup(warmup_line(made.before.legal, made.after.legal))


def _train_launched(
    ranks: Ranks, path: Path, callback: Callback | None = None, stop: StopRequest | None = None
) -> Metrics:
    """Train on a rank of `launch_ranks`, which gives rank 0 alone a callback and a stop request."""
    if callback is None or stop is None:  # another rank than 0
        return _train_child(ranks, path)
    return _train_rank(ranks, path, callback, stop)


def _train_child(ranks: Ranks, path: Path) -> Metrics:
    """Train in a process that rank 0 has started: it handles SIGTERM itself."""
    with StopSignals(signals=(signal.SIGTERM,)) as signals:
        return _train_rank(ranks, path, Callback(), signals)


def _train_rank(ranks: Ranks, path: Path, callback: Callback, stop: StopRequest) -> Metrics:
    """Train on this rank, from the newest checkpoint to the end."""
    try:
        with stop.section(ranks), ranks.together():
            trainer = Trainer(RunFolder.open(path), ranks, callback, stop)
            trainer.resume()
    except RanksStopped:
        raise Stopped(str(path)) from None
    return trainer.run()
