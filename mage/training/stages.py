"""A training in stages: every stage is an ordinary run folder inside the run folder.

    runs/NAME/recipe.toml       the recipe with all its stages
    runs/NAME/stages/1_start/   the first stage
    runs/NAME/stages/2_mage/    `start/` holds the weights of the best checkpoint of the first stage

So a stage is saved, stopped, resumed and checked as any other run.
"""

from collections.abc import Iterator
from pathlib import Path

from mage.config.recipe import Recipe
from mage.models.base import atomic_folder
from mage.models.loading import free_memory
from mage.ranks.ranks import Ranks
from mage.run_folder import RunFolder
from mage.run_folder.files import write_checksums
from mage.training.weights import Say, load_weights, save_weights


def begin_stages(run: RunFolder, ranks: Ranks, say: Say) -> Iterator[RunFolder]:
    """The folders to train, in order: unfinished stages, or the run itself if it has no stages.

    Train each folder to its end before asking for the next: its weights begin the next stage.
    """
    if not run.recipe.stages:
        yield run
    before: Path | None = None
    for path, recipe in run.stage_folders().items():
        with ranks.together():
            if ranks.is_main:
                _begin(path, recipe, before, say)
        folder = RunFolder.open(path)
        if not ranks.broadcast(folder.is_finished):
            yield folder
        before = path


def _begin(path: Path, recipe: Recipe, before: Path | None, say: Say) -> None:
    """Create the folder of a stage and its starting model, unless an earlier start has."""
    folder = RunFolder.open(path) if path.exists() else RunFolder.create(path, recipe)
    if before is None or folder.start.exists() or folder.is_finished:
        return
    source = RunFolder.open(before)
    loaded = load_weights(source, source.recipe, "best", say)
    with atomic_folder(folder.start) as partial:
        save_weights(loaded, source.recipe, partial)
        write_checksums(partial)
    del loaded
    free_memory()
