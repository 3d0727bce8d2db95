"""What a resumed run starts from: the newest whole checkpoint and the files it depends on."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mage.config.recipe import Recipe
from mage.learn import checkpoint
from mage.models.base import base_folder
from mage.models.checks import weights_digest
from mage.run_folder import DamagedError, RunError, RunFolder, read_json, run_of
from mage.training.memory_plan import Choices
from mage.training.rivals import rival_digests

# In the state of a checkpoint: digests of the base weights of adapters, and of opponents' weights.
_BASE, _RIVALS = "base_sha256", "opponents_sha256"
Best = tuple[float, int]  # the best score on the select panel so far, and its update


def find_latest(folder: RunFolder) -> checkpoint.Latest:
    """The newest whole checkpoint, after a save that was interrupted is undone."""
    checkpoint.recover(folder.checkpoints)
    return checkpoint.latest(folder.checkpoints)


def prune(folder: RunFolder, best: Best | None) -> None:
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


def check_kept(folder: RunFolder) -> None:
    """Refuse a run whose checkpoints were deleted, before anything is written; see `check_start`.

    The caller holds the lock.
    """
    checkpoint.recover(folder.checkpoints)
    if not folder.is_finished and not checkpoint.newest_first(folder.checkpoints):
        check_start(folder)


def check_start(folder: RunFolder) -> None:
    """Refuse to begin at update 0, over the records of later updates.

    Update 0 is saved before update 1 is recorded, so a run that has not reached its first
    checkpoint has no metrics.
    """
    if updates := folder.count_updates():
        again = f"mage train {run_of(folder.path) / 'recipe.toml'} --run.name=NAME"
        raise DamagedError(
            f"{folder.path} has metrics of {updates} update{'s' if updates > 1 else ''}, but "
            f"{folder.checkpoints} holds no whole checkpoint: training would begin at update 0 "
            f"again. Nothing was changed. Restore the checkpoints from a copy, or start a new run: "
            f"{again}. To repeat these updates in this folder, first move metrics.jsonl and "
            "metrics.sha256 out of it"
        )


def check_progress(folder: RunFolder, update: int, evaluations: Sequence[str]) -> None:
    """Verify the files that the checkpoint of `update` depends on."""
    try:
        folder.check_progress(update, evaluations)
    except DamagedError as error:
        raise DamagedError(
            f"{error}\nRestore the file from a copy. Without a copy, move the damaged file, "
            f"metrics.jsonl, metrics.sha256 and the checkpoints out of {folder.path}: training "
            "then repeats these updates with the same results."
        ) from None


def base_record(recipe: Recipe) -> dict[str, Any]:
    """What a checkpoint stores about weights outside of the run: of its base, of its opponents."""
    base = {_BASE: weights_digest(base_folder(recipe))} if recipe.learn.lora_rank else {}
    rivals = rival_digests(recipe)
    return {**base, **({_RIVALS: rivals} if rivals else {})}


def check_rivals(state: Mapping[str, Any], recipe: Recipe, run: Path) -> None:
    """Refuse to continue against models whose weights have changed since the checkpoint."""
    known = state.get(_RIVALS, {})
    for name, found in rival_digests(recipe).items():
        if known.get(name, found) != found:
            raise RunError(
                f"the opponent {name} of {run} had other weights when the run was saved (SHA-256 "
                f"{known[name][:12]} then, {found[:12]} now). Restore them, or start a new run"
            )


def check_base(
    state: Mapping[str, Any], recipe: Recipe, run: Path, *, download: bool = True
) -> None:
    """Refuse other base weights than those that the adapters of a checkpoint were trained with.

    Checkpoints of old versions do not know their base.
    """
    known = state.get(_BASE)
    if known is None:
        return
    base = base_folder(recipe, download=download)
    if (found := weights_digest(base)) != known:
        raise RunError(
            f"the adapters of {run} were trained with other base weights than {base} holds now "
            f"(SHA-256 {str(known)[:12]} then, {found[:12]} now), so all figures would be those of "
            "another model. Restore these weights, or name the right folder with --model.path"
        )


def read_best(state: Mapping[str, Any]) -> Best | None:
    """The best score on the select panel so far and its update, as a checkpoint stores them."""
    best = state.get("best")
    return (float(best[0]), int(best[1])) if best else None


def read_plan(folder: RunFolder) -> Choices | None:
    """The choices of the memory plan in the newest checkpoint; None if it has none.

    The checkpoint is not verified: that takes long, and `find_latest` does it.
    """
    for path in checkpoint.newest_first(folder.checkpoints)[:1]:
        with suppress(RunError, AttributeError):
            plan = read_json(path / checkpoint.STATE).get("state", {}).get("plan")
            if isinstance(plan, dict) and all(isinstance(one, int) for one in plan.values()):
                return plan
    return None


def changed_plan(kept: Choices | None, now: Choices | None) -> list[str]:
    """One line if the memory plan at the start of a run does not fit any more; else none."""
    if kept is None or now is None or kept == now:
        return []
    pairs = ", ".join(f"{name} {kept.get(name)} (now {one})" for name, one in now.items())
    return [
        f"less GPU memory is free than when this run began, so its memory plan has changed: "
        f"{pairs}. Its further figures may differ by rounding from those of a run without a break"
    ]
