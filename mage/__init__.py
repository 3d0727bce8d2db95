"""MAGE: language-model agents that learn during play, trained over whole meta-episodes.

The names below are imported on first use, so that `import mage` is fast.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_PLACES = {
    "Callback": "mage.training.callbacks",
    "Environment": "mage.environments.base",
    "Evaluation": "mage.evaluation.figures",
    "Item": "mage.api.menus",
    "Memory": "mage.memory.base",
    "MetaEpisode": "mage.types",
    "Notebook": "mage.memory.base",
    "Opponent": "mage.opponents.base",
    "Recipe": "mage.config.recipe",
    "Run": "mage.api.runs",
    "Seen": "mage.play.policy",
    "State": "mage.environments.base",
    "Stopped": "mage.ranks.stop",
    "as_gymnasium": "mage.api.worlds",
    "as_trl": "mage.api.worlds",
    "evaluate": "mage.api.runs",
    "list": "mage.api.menus",
    "load_recipe": "mage.api.recipes",
    "load_run": "mage.api.runs",
    "play_one": "mage.api.runs",
    "recipe": "mage.api.recipes",
    "train": "mage.api.runs",
}
_RENAMED = {"list": "list_items"}
__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'mage' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), _RENAMED.get(name, name))


def __dir__() -> "list[str]":
    return sorted(__all__)
