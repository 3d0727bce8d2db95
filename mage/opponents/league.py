"""The league: frozen earlier copies of the agent as opponents.

`league-20` in a training pool stands for all copies so far. The first copy is taken before the
first update, the others every 20 updates after it. Each update draws a few copies, hard ones more
often: a copy counts exp(-hardness * s), where s is the agent's mean score against it.
`mage.training.league` keeps the copies and their weights.
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from mage.config.errors import UserError
from mage.environments.base import State
from mage.opponents._frozen import Frozen


class League(Frozen):
    """Frozen earlier copies of the agent; only in opponents.train."""

    name: ClassVar[str] = "league"
    trains_only: ClassVar[bool] = True
    every: int = Field(20, ge=1, description="updates between two new copies")
    hardness: float = Field(
        1.0, ge=0, le=100, description="how much more often hard copies play; 0 = all equally often"
    )
    at_once: int = Field(2, ge=1, le=16, description="copies that play in one update")

    def copies_at_once(self) -> int:
        return self.at_once

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        raise UserError(f"{self.name} plays in training only: its copies belong to a run")

    def copy_name(self, update: int) -> str:
        """The name of the copy that was taken after an update, as in `league-20-1.0-2-0-40`.

        Random numbers derive from it, so it keeps the 0 of an option that is gone.
        """
        options = (self.every, self.hardness, self.at_once, 0, update)
        return "-".join([self.name, *map(str, options)])
