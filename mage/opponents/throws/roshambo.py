"""The programs of the RoShamBo competition, as OpenSpiel ships them.

`roshambo-greenberg` is one of 43 programs that people wrote. They are for tests: no shipped recipe
trains against them. A program keeps state between its throws, so every running game (a `State`)
has a live program, which is stepped once a throw. The first question about a game builds a program
and replays the throws so far. A program starts anew in every episode.

All programs draw from the C library's random numbers. Every match has its own state of that
generator, seeded from the game's seed and active only while its program runs. So matches are
independent of each other, and live and replayed games have the same throws.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import pyspiel
from pydantic import Field, field_validator

from mage.config.errors import UserError
from mage.environments.base import State
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissorsState
from mage.opponents.base import Knowledge, Opponent
from mage.seeds import derive

LONGEST = 1000  # the programs' arrays hold this many throws
_RANDOM_BYTES = 128  # the state of the C library's default generator
Pair = tuple[int, int]  # a throw of seat 0 and one of seat 1


class RoShamBo(Opponent):
    """A program of the RoShamBo competition, named as in pyspiel.roshambo_bot_names()."""

    name: ClassVar[str] = "roshambo"
    plays_only: ClassVar[str] = "rock_paper_scissors"
    policy_is: ClassVar[Knowledge] = "unknown"
    program: str = Field("greenberg", description="one of pyspiel.roshambo_bot_names()")

    @field_validator("program")
    @classmethod
    def _is_known(cls, program: str) -> str:
        names = pyspiel.roshambo_bot_names()
        if program not in names:
            raise UserError(f"unknown program; known programs: {', '.join(sorted(names))}")
        return program

    @classmethod
    def players(cls) -> tuple[str, ...]:
        return tuple(f"{cls.name}-{name}" for name in sorted(pyspiel.roshambo_bot_names()))

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        """The program's next throw with probability 1: the game's seed fixes its choices."""
        assert isinstance(state, RockPaperScissorsState), "it plays rock-paper-scissors only"
        match = _matches().get(state)
        if match is None or (match.program, match.seat) != (self.program, seat):
            match = Match(self.program, seat, derive(state.seed, "roshambo", self.program))
            _matches()[state] = match
        for one, two in state.rounds(0)[match.seen :]:
            match.see((THROWS.index(one), THROWS.index(two)))
        return {THROWS[match.next]: 1.0}


class Match:
    """A program in a running match. `next` is its next throw after all throws that it has seen."""

    def __init__(self, program: str, seat: int, seed: int) -> None:
        self.program, self.seat, self.seen = program, seat, 0
        self._numbers = ctypes.create_string_buffer(_RANDOM_BYTES)
        before = _c_library().initstate(seed % 2**31, self._numbers, _RANDOM_BYTES)
        self._bot = pyspiel.make_roshambo_bot(seat, program)
        _c_library().setstate(before)
        self._game = _game().new_initial_state()
        self.next = self._step()

    def see(self, pair: Pair) -> None:
        """Take in one throw of both seats."""
        self._game.apply_actions(list(pair))
        self.seen += 1
        self.next = self._step()

    def _step(self) -> int:
        with self._own_random_numbers():
            return int(self._bot.step(self._game))

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        before = _c_library().setstate(self._numbers)
        try:
            yield
        finally:
            _c_library().setstate(before)


@cache
def _matches() -> WeakKeyDictionary[State, Match]:
    """The live program of every running game; it is dropped together with the game's state."""
    return WeakKeyDictionary()


@cache
def _game() -> Any:
    return pyspiel.load_game(f"repeated_game(stage_game=matrix_rps(),num_repetitions={LONGEST})")


@cache
def _c_library() -> Any:
    library = ctypes.CDLL(None)
    library.initstate.argtypes = [ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t]
    library.setstate.argtypes = [ctypes.c_void_p]
    library.initstate.restype = library.setstate.restype = ctypes.c_void_p
    return library
