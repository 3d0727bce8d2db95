"""RoShamBo programs: live matches equal replayed ones and do not disturb each other."""

import ctypes
import random

import pyspiel
import pytest

from mage.environments.rock_paper_scissors import THROWS, RockPaperScissors
from mage.opponents.base import find
from mage.seeds import derive

PROGRAMS = sorted(pyspiel.roshambo_bot_names())


def alone(program: str, seat: int, seed: int, others: list[int]) -> list[int]:
    """The program's throws, stepped by OpenSpiel alone in the C library's default generator."""
    ctypes.CDLL(None).srandom(derive(seed, "roshambo", program) % 2**31)
    bot = pyspiel.make_roshambo_bot(seat, program)
    game = pyspiel.load_game("repeated_game(stage_game=matrix_rps(),num_repetitions=1000)")
    state, made = game.new_initial_state(), []
    for other in others:
        made.append(bot.step(state))
        pair = [made[-1], other]
        state.apply_actions(pair if seat == 0 else pair[::-1])
    return made


def test_interleaved_live_matches_have_the_throws_of_programs_that_play_alone():
    """Two matches of each of the 43 programs at once, in both seats."""
    rng = random.Random(0)
    world = RockPaperScissors(throws=40)
    matches = [
        (name, seat, world.start(seed)) for name in PROGRAMS for seed, seat in ((1, 0), (2, 1))
    ]
    others = [[rng.randrange(3) for _ in range(40)] for _ in matches]
    for throw in range(40):
        for (name, seat, state), plan in zip(matches, others, strict=True):
            answer = find(f"roshambo-{name}").act(state, seat, rng)
            for mover in (0, 1):
                state.apply(answer if mover == seat else THROWS[plan[throw]])
    for (name, seat, state), plan in zip(matches, others, strict=True):
        made = [THROWS.index(pair[0]) for pair in state.rounds(seat)]
        assert made == alone(name, seat, state.seed, plan), name


@pytest.mark.parametrize("name", ["greenberg", "iocainebot", "randbot"])
def test_a_game_that_is_not_continued_is_replayed(name):
    """The same opponent object is asked about a long game, a shorter one and another one."""
    program, rng = find(f"roshambo-{name}"), random.Random(1)
    others = [rng.randrange(3) for _ in range(30)]
    made = alone(name, 0, 5, others)
    world = RockPaperScissors(throws=50)
    for length in (29, 10, 29, 0):
        state = world.start(5)
        for own, other in zip(made[:length], others[:length], strict=True):
            state.apply(THROWS[own])
            state.apply(THROWS[other])
        assert program.policy(state, 0) == {THROWS[made[length]]: 1.0}
        assert program.policy(state, 0) == {THROWS[made[length]]: 1.0}  # asked twice


def test_a_program_leaves_the_random_numbers_of_other_code_alone():
    library = ctypes.CDLL(None)
    library.srandom(11)
    expected = [library.random() for _ in range(5)]
    library.srandom(11)
    state = RockPaperScissors(throws=9).start(3)
    found = []
    for _ in range(5):
        state.apply(find("roshambo-randbot").act(state, 0, random.Random(0)))
        state.apply("rock")
        found.append(library.random())
    assert found == expected


def test_a_match_of_1000_throws_steps_each_program_once_a_throw(monkeypatch):
    steps = 0
    make = pyspiel.make_roshambo_bot

    class Counted:
        def __init__(self, *arguments: object) -> None:
            self.bot = make(*arguments)

        def step(self, state: object) -> int:
            nonlocal steps
            steps += 1
            return int(self.bot.step(state))

    monkeypatch.setattr(pyspiel, "make_roshambo_bot", Counted)
    state, rng = RockPaperScissors(throws=1000).start(0), random.Random(0)
    while (seat := state.turn()) is not None:
        state.apply(find("roshambo-biopic").act(state, 0, rng) if seat == 0 else "paper")
    assert steps == 1000
