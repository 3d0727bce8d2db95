"""Models that a recipe names as opponents: their folders, and digests of their weights."""

from pathlib import Path

from mage.config.errors import UserError
from mage.config.recipe import Recipe
from mage.models.base import base_of, find_model
from mage.models.checks import weights_digest
from mage.opponents.base import find, population_of


def rival_names(recipe: Recipe) -> list[str]:
    """The opponents of all splits that are models."""
    pools = population_of(recipe).model_dump().values()
    return sorted({name for pool in pools for name in pool if find(name).model_path()})


def find_rival(name: str) -> Path:
    """The folder of a model that is an opponent."""
    path = find(name).model_path()
    try:
        folder = find_model(path)
        base_of(folder)
    except UserError as error:
        fault = str(error)
        if (Path(path) / "recipe.toml").is_file():
            fault = (
                f"{path} is a run. Write its weights to a folder with `mage model export {path} "
                f"--out FOLDER`, and name model-FOLDER"
            )
        raise UserError(f"opponent {name}: {fault}") from None
    return folder


def rival_digests(recipe: Recipe) -> dict[str, str]:
    """Opponent -> a SHA-256 of its weights; of adapters also of their base."""
    folders = {name: find_rival(name) for name in rival_names(recipe)}
    return {
        name: "".join(weights_digest(one) for one in dict.fromkeys((folder, base_of(folder))))
        for name, folder in folders.items()
    }
