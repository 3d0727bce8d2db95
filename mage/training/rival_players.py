"""The opponents that are models: copies of a league, and other models, loaded when they play."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mage.agent.agent import Agent
from mage.agent.chat import Chat
from mage.config.recipe import Recipe
from mage.models.base import base_of
from mage.models.loading import load_model
from mage.opponents.base import Opponent, find
from mage.training.fit import runs_elsewhere
from mage.training.rivals import find_rival


class RivalPlayers(Mapping[str, Opponent]):
    """Copies of a league and models as opponents, by name.

    A model is loaded when a task names it for the first time; `loaded` keeps it.
    """

    def __init__(
        self,
        copies: Mapping[str, Opponent],
        loaded: dict[str, Any],
        load: Callable[[str], Opponent],
    ) -> None:
        self.copies, self.loaded, self.load = copies, loaded, load

    def __getitem__(self, name: str) -> Opponent:
        if name in self.copies:
            return self.copies[name]
        if name not in self.loaded:
            if not find(name).model_path():
                raise KeyError(name)
            self.loaded[name] = self.load(name)
        player: Opponent = self.loaded[name]
        return player

    def __iter__(self) -> Iterator[str]:
        return iter({**self.loaded, **self.copies})

    def __len__(self) -> int:
        return len({**self.loaded, **self.copies})


def load_rival(recipe: Recipe, agent: Agent, name: str) -> Opponent:
    """A player with weights, tokenizer and engine of its own, and the sampling of `agent`."""
    folder = find_rival(name)
    chat = Chat.load(base_of(folder), recipe.agent.thinking)
    if runs_elsewhere(recipe):
        recipe = recipe.changed(engines={"name": "local"})
    alone = recipe.engines.name == "local"
    model = load_model(folder, recipe.model.dtype, recipe.run.device, plays_only=alone)
    agent = replace(agent, engine=recipe.engine()(model, chat), chat=chat)
    episodes = recipe.play.episodes if recipe.play.numbered else 1
    opponent: Any = find(name)
    return opponent.freeze(agent, recipe.environment(), episodes)
