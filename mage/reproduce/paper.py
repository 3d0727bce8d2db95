"""The requirements of scale `paper`, and whether a run has the settings of the paper.

The paper's figures are for Qwen3-4B, all weights trained. They are shown beside a run only if its
recipe is `paper_X` with the part of a method of the paper, which is the published experiment:
our part `ours`, other options that change results, or another model hide them. What still differs
in `paper_X` itself is on the page docs/differences.md.
"""

import re
from pathlib import Path

from mage.config.errors import ConfigError
from mage.models.base import model_folder
from mage.models.shapes import known_shape
from mage.reproduce.plan import Job, Plan, figures_of, paper_recipe

GET_MODEL = "a real model: leave out --model, or name one with --model NAME (docs/models.md)"
# Options that change memory and speed, or the choice of checkpoints, but not the experiment.
_TECHNICAL = re.compile(
    r"run\.(?!updates$)|engines\.(?!context$)|model\.|environments\.(data|tagger)$"
    r"|evaluate\.(size|select_split)$"
    r"|learn\.(tree_tokens|micro_tokens|packed|recompute|shard)$"
)
_GENERATED = ("", "generated")
_CONTEXT = "engines.context"  # a shorter one cuts prompts
# The published weights alone: not Qwen3-4B-Base, -Instruct-2507, -AWQ or another size.
_PAPER_MODEL = re.compile(r"qwen3-?4b", re.IGNORECASE)


def find_missing(plan: Plan) -> list[str]:
    """What a plan at scale `paper` needs and does not have, with the way to get it.

    A model of the hub is downloaded if all data is here.
    """
    if plan.scale != "paper":
        return []
    data = missing_data(plan)
    return [*missing_model(plan, download=not data), *data]


def missing_data(plan: Plan) -> list[str]:
    """The official data that the environments of a plan need and that is not here."""
    missing: list[str] = []
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


def missing_model(plan: Plan, *, download: bool) -> list[str]:
    """Why the model of a plan cannot be used; empty if it can.

    Without `download` a model of the hub with a known shape counts as available.
    """
    recipe = plan.jobs[0].recipe
    if recipe.model.path.startswith("embedded"):
        return [GET_MODEL]
    if not download and known_shape(recipe.model.path):
        return []
    try:
        model_folder(recipe, download=download)
    except ConfigError as error:
        return [f"the model {recipe.model.path}: {error}"]
    return []


def find_differences(job: Job) -> list[str]:
    """The options in which a run differs from the published experiment, and the model if it does.

    The other side is `paper_X` with the parts of the arm, never the recipe of the run itself.
    """
    own, wanted = figures_of(job.recipe), figures_of(paper_recipe(job.world, job.arm))
    keys = [
        key
        for key in sorted({*own, *wanted})
        if own.get(key) != wanted.get(key) and not _TECHNICAL.match(key)
        if key != _CONTEXT or own[key] < wanted[key]
    ]
    if job.recipe.environments.options.get("data", "-") in _GENERATED:
        keys.append("environments.data")
    if not _PAPER_MODEL.fullmatch(Path(job.recipe.model.path.partition("@")[0]).name):
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
        "The paper's figures are for Qwen3-4B, 128 tasks, one run: a standard error of about four "
        "percentage points. What still differs from the paper's experiment: docs/differences.md."
    )
