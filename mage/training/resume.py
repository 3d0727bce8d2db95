"""What a resumed run starts from: the newest whole checkpoint and the files it depends on."""

from collections.abc import Mapping, Sequence
from typing import Any

from mage.learn import checkpoint
from mage.run_folder import DamagedError, RunFolder


def find_latest(folder: RunFolder) -> checkpoint.Latest:
    """The newest whole checkpoint, after a save that was interrupted is undone."""
    checkpoint.recover(folder.checkpoints)
    return checkpoint.latest(folder.checkpoints)


def prune(folder: RunFolder, best: tuple[float, int] | None) -> None:
    """Keep the newest checkpoints and the best one."""
    also = {best[1]} if best else ()
    checkpoint.prune(folder.checkpoints, keep=folder.recipe.run.keep, also=also)


def clear_leftovers(folder: RunFolder) -> None:
    """Delete what killed processes have left; the caller holds the lock.

    An unfinished run prunes when it resumes. Old versions left a part of a checkpoint after a kill.
    """
    folder.delete_leftovers()
    if folder.is_finished:
        found = find_latest(folder)
        if found.path is not None and not found.broken:
            prune(folder, read_best(checkpoint.read_state(found.path)))


def check_progress(folder: RunFolder, update: int, evaluations: Sequence[str]) -> None:
    """Verify the files that the checkpoint of `update` depends on."""
    try:
        folder.check_progress(update, evaluations)
    except DamagedError as error:
        raise DamagedError(
            f"{error}\nRestore the file from a copy. Without a copy, move the damaged file and "
            f"the checkpoints out of {folder.path}: training then repeats these updates "
            "with the same results."
        ) from None


def read_best(state: Mapping[str, Any]) -> tuple[float, int] | None:
    """The best score on the select panel so far and its update, as a checkpoint stores them."""
    best = state.get("best")
    return (float(best[0]), int(best[1])) if best else None
