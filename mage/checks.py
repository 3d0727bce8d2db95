"""Is an opponent what it must be? Legal, and stationary: decided by the state and the random numbers it is given alone.

Two copies play the same games, one of them in the reverse order: a player that remembers earlier games gives itself away.
"""

import math
import random

from mage.environments.base import Environment, State
from mage.opponents.base import Opponent, reply
from mage.seeds import derive
from mage.types import Task

_POLICIES = 3  # games in which the stated chances are checked too: a search estimates them, which is slow


def check_opponent(opponent: Opponent, environment: Environment, games: int = 50, seed: int = 0) -> list[str]:
    """Play against random moves from both seats; returns what is wrong, empty when all is well."""
    faults: list[str] = []
    seeds = [derive(seed, "check", game) for game in range(games)]
    first = {one: _play(opponent.model_copy(), environment, one, faults, policies=number < _POLICIES) for number, one in enumerate(seeds)}
    again = {one: _play(opponent.model_copy(), environment, one, faults, policies=False) for one in reversed(seeds)}
    different = sum(first[one] != again[one] for one in seeds)
    if different:
        faults.append(f"not stationary: in {different} of {games} games it moved differently when they were played in another order")
    return list(dict.fromkeys(faults))[:20]


def _play(opponent: Opponent, environment: Environment, seed: int, faults: list[str], policies: bool) -> tuple[str, ...]:
    """The moves of one game; the seat comes from the seed, the other side moves at random."""
    seat, rng = seed % environment.seats, random.Random(seed)
    task = Task(environment.name, seed, 1 - seat, opponent.name, "train")
    state, moves = environment.start(seed), list[str]()
    while (mover := state.turn()) is not None:
        action = rng.choice(state.legal())
        if mover == seat:
            faults += _policy_faults(opponent, state, seat) if policies else []
            chosen = reply(opponent, state, seat, task, seed, len(moves))
            faults += [] if chosen in state.legal() else [f"{chosen!r} is no legal move in {state.anchor(seat)!r}: {', '.join(state.legal())}"]
            action = chosen if chosen in state.legal() else action
        moves.append(action)
        state.apply(action)
    return tuple(moves)


def _policy_faults(opponent: Opponent, state: State, seat: int) -> list[str]:
    chances = opponent.policy(state, seat)
    faults = [f"policy() gives {move!r} a chance, which is no legal move" for move in chances if move not in state.legal()]
    if not math.isclose(math.fsum(chances.values()), 1.0, abs_tol=1e-6) or min(chances.values(), default=-1) < 0:
        faults.append(f"policy() gives chances that are none: {dict(chances)}")
    return faults
