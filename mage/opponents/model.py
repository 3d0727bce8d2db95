"""model: any language model in the other seat, as in `model-embedded-rps`.

What follows the dash is what `model.path` accepts: a shipped or added model, a folder of weights
or adapters, or ORG/NAME of the hub. The model plays with the prompts and the sampling of [agent].
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from mage.config.errors import UserError
from mage.environments.base import State
from mage.opponents._frozen import Frozen


class Model(Frozen):
    """A language model with fixed weights: model-NAME, with any NAME that model.path accepts."""

    name: ClassVar[str] = "model"
    path: str = Field("", description="the model, as in model.path; it may contain dashes")

    @classmethod
    def named(cls, name: str) -> "Model":
        path = name.partition("-")[2]
        if not path:
            raise UserError(
                f"opponent {name!r} names no model: write model-NAME, as in model-embedded or "
                "model-my_folder"
            )
        return cls(path=path)

    def model_path(self) -> str:
        return self.path

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        raise UserError(f"model-{self.path} has no exact policy: it is a language model")
