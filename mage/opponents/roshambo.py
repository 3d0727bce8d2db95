"""The programs of the RoShamBo competition, as OpenSpiel ships them.

`roshambo-greenberg` is one of 43 programs that people wrote. They are for tests: no shipped recipe
trains against them. A program keeps state between its throws, so every running game has a live
program, which is stepped once a throw. If a game is not the continuation of what its program has
seen, the program is built anew and replays the game. It starts anew in every episode.

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

from mage.environments.base import Environment, State
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissorsState
from mage.opponents.base import Knowledge, Opponent, is_kind_of
from mage.seeds import derive

LONGEST = 1000  # the programs' arrays hold this many throws
_RANDOM_BYTES = 128  # the state of the C library's default generator
Pair = tuple[int, int]  # a throw of seat 0 and one of seat 1


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
        throws = [(THROWS.index(one), THROWS.index(two)) for one, two in state.rounds(0)]
        match = _matches().get(state)
        if match is None or not match.is_continued_by(self.program, seat, throws):
            match = Match(self.program, seat, derive(state.seed, "roshambo", self.program))
            _matches()[state] = match
        return {THROWS[match.throw_after(throws)]: 1.0}


class Match:
    """A program in a running match."""

    def __init__(self, program: str, seat: int, seed: int) -> None:
        self.program, self.seat = program, seat
        self.throws: list[Pair] = []
        self._numbers = ctypes.create_string_buffer(_RANDOM_BYTES)
        before = _c_library().initstate(seed % 2**31, self._numbers, _RANDOM_BYTES)
        self._bot = pyspiel.make_roshambo_bot(seat, program)
        _c_library().setstate(before)
        self._game = _game().new_initial_state()
        self._next = self._step()

    def is_continued_by(self, program: str, seat: int, throws: list[Pair]) -> bool:
        """Whether these throws begin with all throws that this program has seen."""
        same = (program, seat) == (self.program, self.seat)
        return same and throws[: len(self.throws)] == self.throws

    def throw_after(self, throws: list[Pair]) -> int:
        """The program's next throw after these throws of both seats."""
        for pair in throws[len(self.throws) :]:
            self._game.apply_actions(list(pair))
            self.throws.append(pair)
            self._next = self._step()
        return self._next

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
