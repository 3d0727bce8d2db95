"""Rewards by functions of the user: `play.rewards = ["my_lab.format_bonus"]`.

A function gets a finished `Episode` (turns, texts, score, outcome) and returns a number. Weight
times number is added to the task reward of the episode, so every kind of return contains it. The
scores, and so all figures of evaluations, stay those of the game.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mage.config.errors import UserError
from mage.config.menus import find_object
from mage.types import Episode


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """A function with its weight. `name` is shown in metrics and in the credit of turns."""

    name: str
    path: str
    weight: float
    function: Callable[[Episode], float]

    def value(self, episode: Episode) -> float:
        """What the function adds to the reward of an episode."""
        try:
            found = float(self.function(episode))
        except Exception as error:
            raise UserError(
                f"play.rewards: {self.path} failed: {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(found):
            raise UserError(f"play.rewards: {self.path} returned {found}, which is no number")
        return self.weight * found


def find_rewards(weights: Mapping[str, float] | None) -> tuple[RewardTerm, ...]:
    """The functions behind dotted paths. Names are the last words of the paths if they differ."""
    paths = list(weights or {})
    last = [path.rpartition(".")[2] for path in paths]
    return tuple(
        RewardTerm(path if last.count(word) > 1 else word, path, weight, find_object(path))
        for (path, weight), word in zip((weights or {}).items(), last, strict=True)
    )


def add_rewards(episode: Episode, terms: tuple[RewardTerm, ...]) -> Episode:
    """The episode with what the functions add to its reward."""
    bonuses = tuple((term.name, term.value(episode)) for term in terms)
    total = episode.reward + sum(value for _, value in bonuses)
    return replace(episode, reward=total, bonuses=bonuses) if terms else episode
