"""Demonstrations: turns with the reply that a model should learn, and how players make them.

A player is the agent of one meta-episode. It sees the states of its episodes and not the prompts.
Its replies take the same path as a model's, so the prompts are exactly those of real play.
`scripted.py` plays by a script; `labelled.py` lets the model play.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mage.agent.agent import Sampler
from mage.agent.chat import Ids
from mage.agent.styles import wording_of
from mage.engines.base import run
from mage.environments.base import State
from mage.play import PlaySetup, play_meta_episode
from mage.seeds import derive
from mage.types import MetaEpisode, ReplyKind, Request, Sample, Task, Turn, TurnRef


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A turn and the reply that the model should learn (`reply_ids`, end included).

    `legal` holds the legal moves of the turn; it is empty for a note and for a call of a tool.
    """

    turn: Turn
    reply_ids: Ids
    legal: tuple[str, ...]
    where: TurnRef

    @property
    def kind(self) -> ReplyKind:
        return "call" if self.turn.kind == "play" and not self.legal else self.turn.kind

    def sample(self) -> Sample:
        """The demonstration as a row of training data."""
        row = Sample.to_score(self.turn.prompt_ids, self.reply_ids, self.where)
        return replace(row, advantage=1.0, choices=self.turn.choices, kind=self.kind)


class RecordingPlayer(ABC):
    """The agent of one meta-episode, which can then say what its turns teach."""

    def __init__(self, setup: PlaySetup, task: Task, engine: Sampler) -> None:
        world, agent = setup.environment.world_of(task), replace(setup.agent, engine=engine)
        self.setup = replace(setup, environment=world, agent=agent)
        self.task, self.chat = task, setup.agent.chat
        self.wording = wording_of(setup.agent, world)
        self.states: list[State] = []

    @staticmethod
    def asks_for_move(request: Request) -> bool:
        """Whether the agent must move; a request without stop strings asks for a note."""
        return bool(request.stop)

    @abstractmethod
    def read(self, meta: MetaEpisode) -> Iterator[Demonstration]:
        """The demonstrations of the finished meta-episode."""


def play_all(
    players: Sequence[RecordingPlayer], seed: int, limit: int | None = None
) -> list[tuple[RecordingPlayer, MetaEpisode]]:
    """One meta-episode of every player, at most `limit` at a time."""
    games = [
        play_meta_episode(
            player.setup, player.task, n, 0, derive(seed, n), on_start=player.states.append
        )
        for n, player in enumerate(players)
    ]
    return list(zip(players, run(games, limit=limit), strict=True))


def next_of_win(wins: Sequence[Sequence[str]], made: Sequence[str]) -> str | None:
    """The next move of the latest won episode that begins with the moves `made`.

    >>> next_of_win([("up", "left"), ("down", "up")], ["up"])
    'left'
    """
    for win in reversed(wins):
        if len(win) > len(made) and list(win[: len(made)]) == list(made):
            return win[len(made)]
    return None
