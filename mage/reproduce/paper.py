"""The requirements of scale `paper`, and whether a run has the settings of the paper.

The paper's figures are for Qwen3-4B. They are shown beside a run only if the recipe of the run is
the paper's: other options that change results, or another model, hide them.
"""

import re
from pathlib import Path

from mage.config.errors import ConfigError
from mage.models.base import model_folder
from mage.reproduce.plan import Job, Plan, figures_of, paper_recipe

GET_MODEL = (
    "a model: add --model NAME. The paper's model is Qwen3-4B: "
    "`mage model add Qwen/Qwen3-4B --name qwen3-4b`, then --model qwen3-4b"
)
# Options that change memory and speed, or the choice of checkpoints, but not the experiment.
_TECHNICAL = re.compile(
    r"run\.(?!updates$)|engines\.|model\.|environments\.(data|tagger)$"
    r"|evaluate\.(size|select_split)$"
    r"|learn\.(tree_tokens|micro_tokens|packed|recompute)$"
)
_GENERATED = ("", "generated")


def find_missing(plan: Plan) -> list[str]:
    """What a plan at scale `paper` needs and does not have, with the way to get it."""
    if plan.scale != "paper":
        return []
    missing = [*_missing_model(plan)]
    for world in plan.worlds:
        job = next(job for job in plan.jobs if job.world == world)
        try:
            job.recipe.environment().check_data()
        except ValueError as error:
            missing.append(f"the official data of {world}: {error}")
        else:
            if job.recipe.environments.options.get("data") in _GENERATED:
                missing.append(f"the official data of {world}: see docs/worlds.md")
    return missing


def _missing_model(plan: Plan) -> list[str]:
    recipe = plan.jobs[0].recipe
    if recipe.model.path.startswith("embedded"):
        return [GET_MODEL]
    try:
        model_folder(recipe)
    except ConfigError as error:
        return [f"the model {recipe.model.path}: {error}"]
    return []


def find_differences(job: Job) -> list[str]:
    """The options in which a run differs from the paper's experiment, and the model if it does."""
    own, wanted = figures_of(job.recipe), figures_of(paper_recipe(job.world, job.arm))
    keys = [
        key
        for key in sorted({*own, *wanted})
        if own.get(key) != wanted.get(key) and not _TECHNICAL.match(key)
    ]
    if job.recipe.environments.options.get("data", "-") in _GENERATED:
        keys.append("environments.data")
    if not re.search(r"qwen3-?4b", Path(job.recipe.model.path).name, re.IGNORECASE):
        keys.append("model.path")
    return keys


def paper_note(plan: Plan) -> str:
    """One sentence about the paper's figures: what they are, or why they are not shown."""
    if plan.scale != "paper":
        return (
            "The paper's figures are for Qwen3-4B at another scale, "
            "so this page does not show them."
        )
    keys = sorted({key for job in plan.jobs for key in find_differences(job)})
    if keys:
        return (
            "The paper's figures are for Qwen3-4B with the paper's options. They are not shown "
            f"beside runs with other settings; here these differ: {', '.join(keys)}."
        )
    return (
        "The paper's figures are for Qwen3-4B, 128 tasks, one run: "
        "a standard error of about four points."
    )
