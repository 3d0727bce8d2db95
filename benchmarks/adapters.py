"""Turns a second through an adapter, compared with the library alone and with a world of MAGE.

The ratio is the time of the adapter over the other time. The same moves are played both ways, in
one process and one thread, alternating. Through the adapter a turn includes what play asks for: the
legal moves, the observation and the anchor.

    lake      FrozenLake through `gymnasium` against Gymnasium alone (make, reset, step)
    board     Tic-Tac-Toe through `textarena` against TextArena alone (make, reset, step, messages);
              the adapter begins with no known position, as in the first update of a training
    again     as `board`, with positions that the adapter has met before
    worlds    as `board`, against MAGE's own `tic_tac_toe`
"""

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import Comparison, Skipped, compare
from mage.environments import textarena
from mage.environments.base import Environment
from mage.environments.gymnasium import Gymnasium
from mage.environments.textarena import TextArena
from mage.environments.tic_tac_toe import TicTacToe

INSTALL = "skipped: pip install '.[gymnasium,textarena]' in the checkout of MAGE"
Moves = list[list[str]]  # of every game


def measure(games: int = 40, rounds: int = 5) -> Iterator[Comparison]:
    """Turns a second on both ways, for the same games."""
    if find_spec("gymnasium") is None or find_spec("textarena") is None:
        raise Skipped(INSTALL)
    lake, board, own = Gymnasium(), TextArena(game="TicTacToe-v0"), TicTacToe()
    walks, boards, ours = (record(world, games) for world in (lake, board, own))
    cases: tuple[tuple[str, tuple[str, str], Moves, Callable[[], object]], ...] = (
        ("lake", ("Gymnasium", "adapter"), walks, partial(play_gymnasium, walks)),
        ("board", ("TextArena", "adapter"), boards, partial(play_textarena, boards)),
        ("again", ("TextArena", "adapter"), boards, partial(play_textarena, boards)),
    )
    for case, names, moves, theirs in cases:
        world = lake if case == "lake" else board
        turns = sum(map(len, moves))
        ways = (_timed(theirs), _timed(partial(replay, world, moves, forget=case == "board")))
        yield compare("adapters", case, names, "turns", turns, ways, rounds)
    few = sum(map(len, boards)) / sum(map(len, ours))  # games have different lengths
    through = _timed(partial(replay, board, boards, forget=True))
    ways = (_timed(partial(replay, own, ours), few), through)
    turns = sum(map(len, boards))
    yield compare("adapters", "worlds", ("MAGE", "adapter"), "turns", turns, ways, rounds)


def record(world: Environment, games: int) -> Moves:
    """Random legal moves of some games."""
    found = []
    for seed in range(games):
        rng, state, moves = random.Random(seed), world.start(seed), list[str]()
        while state.turn() is not None:
            moves.append(rng.choice(state.legal()))
            state.apply(moves[-1])
        found.append(moves)
    return found


def replay(world: Environment, games: Moves, forget: bool = False) -> None:
    """Play the moves as play does: legal moves, observation and anchor in every turn."""
    if forget:
        textarena._TRIED.clear()
    for seed, moves in enumerate(games):
        state = world.start(seed)
        for move in moves:
            seat = state.turn() or 0
            state.legal(), state.observe(seat), state.anchor(seat)
            state.apply(move)


def play_gymnasium(games: Moves) -> None:
    import gymnasium

    words = Gymnasium().words()
    for seed, moves in enumerate(games):
        env: Any = gymnasium.make("FrozenLake-v1", disable_env_checker=True)
        env.reset(seed=seed)
        for move in moves:
            env.step(words.index(move))


def play_textarena(games: Moves) -> None:
    import textarena as library

    for seed, moves in enumerate(games):
        game: Any = library.make("TicTacToe-v0-raw")
        game.reset(num_players=2, seed=seed)
        for move in moves:
            game.get_observation()
            game.step(move)


def _timed(work: Callable[[], object], scale: float = 1.0) -> Callable[[], float]:
    def way() -> float:
        began = time.process_time()
        work()
        return (time.process_time() - began) * scale

    return way
