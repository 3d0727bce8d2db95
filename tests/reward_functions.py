"""Reward functions as a user writes them."""

from mage.types import Episode


def many_turns(episode: Episode) -> float:
    return float(len(episode.turns))


def short(episode: Episode) -> float:
    return -sum(len(turn.completion.text) for turn in episode.turns) / 100


def fails(episode: Episode) -> float:
    raise KeyError("no such field")


def nothing(episode: Episode) -> float:
    return float("nan")


NUMBER = 3.0
