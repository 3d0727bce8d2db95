"""The summary of a finished run."""

from collections.abc import Mapping
from typing import Any

from mage.evaluation.figures import Evaluation
from mage.run_folder import RunFolder
from mage.types import Split


def summarise_run(
    folder: RunFolder,
    evaluations: Mapping[str, Mapping[Split, Evaluation]],
    *,
    updates: int,
    chosen_update: int,
) -> dict[str, Any]:
    """What summary.json holds: the run's identity and the overall figures of every stage."""
    recipe = folder.recipe
    stages = {
        stage: {split: one.to_json()["overall"] for split, one in found.items()}
        for stage, found in evaluations.items()
    }
    if recipe.run.updates and recipe.evaluate.before:
        stages["before"] = {
            split: folder.read_evaluation(f"before_{split}")["overall"]
            for split in evaluations["after"]
        }
    return {
        "run": str(folder.path),
        "recipe": recipe.run.name or folder.path.name,
        "seed": recipe.run.seed,
        "updates": updates,
        "chosen_update": chosen_update,
        "evaluations": folder.evaluation_names(),
        "seconds": sum(record["total"] for record in folder.timing()),
        **stages,
    }
