"""The programs of the RoShamBo competition, as OpenSpiel ships them.

`roshambo-greenberg` is one of 43 programs that people wrote. They are for tests: no shipped recipe
trains against them. A program keeps state between its throws, so every throw builds it anew and
replays the finished throws of the running game. It starts anew in every episode. Programs use the
C library's random numbers; these are seeded from the game's seed before every replay, so a replay
repeats the program's earlier choices and results are reproducible.
"""

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import pyspiel
from pydantic import Field, field_validator

from mage.environments.base import Environment, State
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissorsState
from mage.opponents.base import Knowledge, Opponent, is_kind_of
from mage.seeds import derive

LONGEST = 1000  # the programs' arrays hold this many throws


class RoShamBo(Opponent):
    """A program of the RoShamBo competition, named as in pyspiel.roshambo_bot_names()."""

    name: ClassVar[str] = "roshambo"
    policy_is: ClassVar[Knowledge] = "unknown"
    program: str = Field("greenberg", description="one of pyspiel.roshambo_bot_names()")

    @field_validator("program")
    @classmethod
    def _is_known(cls, program: str) -> str:
        names = pyspiel.roshambo_bot_names()
        if program not in names:
            raise ValueError(f"unknown program; known programs: {', '.join(sorted(names))}")
        return program

    @classmethod
    def plays(cls, environment: Environment) -> bool:
        return is_kind_of(environment, "rock_paper_scissors")

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        """The program's next throw with probability 1: the game's seed fixes its choices."""
        assert isinstance(state, RockPaperScissorsState), "it plays rock-paper-scissors only"
        throws = [tuple(THROWS.index(word) for word in pair) for pair in state.rounds(0)]
        seed = derive(state.seed, "roshambo", self.program)
        return {THROWS[_replay(self.program, seat, throws, seed)]: 1.0}


def _replay(program: str, seat: int, throws: list[tuple[int, ...]], seed: int) -> int:
    """The program's throw after these throws of both seats."""
    _c_library().srandom(seed % 2**31)
    bot = pyspiel.make_roshambo_bot(seat, program)
    match = _game().new_initial_state()
    for pair in throws:
        bot.step(match)
        match.apply_actions(list(pair))
    return int(bot.step(match))


@cache
def _game() -> Any:
    return pyspiel.load_game(f"repeated_game(stage_game=matrix_rps(),num_repetitions={LONGEST})")


@cache
def _c_library() -> Any:
    return ctypes.CDLL(None)
