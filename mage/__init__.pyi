from mage.api.menus import Item as Item
from mage.api.menus import list_items as list
from mage.api.recipes import load_recipe as load_recipe
from mage.api.recipes import recipe as recipe
from mage.api.runs import Run as Run
from mage.api.runs import evaluate as evaluate
from mage.api.runs import load_run as load_run
from mage.api.runs import play_one as play_one
from mage.api.runs import train as train
from mage.api.worlds import as_gymnasium as as_gymnasium
from mage.api.worlds import as_trl as as_trl
from mage.config.recipe import Recipe as Recipe
from mage.environments.base import Environment as Environment
from mage.environments.base import State as State
from mage.evaluation.figures import Evaluation as Evaluation
from mage.memory.base import Memory as Memory
from mage.memory.base import Notebook as Notebook
from mage.opponents.base import Opponent as Opponent
from mage.play.policy import Seen as Seen
from mage.ranks.stop import Stopped as Stopped
from mage.training.callbacks import Callback as Callback
from mage.types import MetaEpisode as MetaEpisode

__version__: str
__all__ = [
    "Callback",
    "Environment",
    "Evaluation",
    "Item",
    "Memory",
    "MetaEpisode",
    "Notebook",
    "Opponent",
    "Recipe",
    "Run",
    "Seen",
    "State",
    "Stopped",
    "__version__",
    "as_gymnasium",
    "as_trl",
    "evaluate",
    "list",
    "load_recipe",
    "load_run",
    "play_one",
    "recipe",
    "train",
]
