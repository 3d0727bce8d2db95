"""Contract checks: golden play-throughs of environments; legality and stationarity of opponents.

An opponent's move must depend on the state and its random numbers only. Two copies play the same
games, one of them in reverse order: a player that remembers earlier games then plays differently.
A family must draw the same player for the same task, and other players for other tasks and splits.
"""

import math
import random
from pathlib import Path

from mage.environments.base import Environment, State, golden
from mage.opponents.base import Family, Opponent, draw_player, move_rng
from mage.seeds import derive
from mage.types import Split, Task

# Games in which the probabilities are checked too. A search estimates them, which is slow.
_POLICIES = 3


def compare_golden(environment: Environment, path: Path) -> list[str]:
    """The first difference from the stored play-through; empty if there is none."""
    stored, now = path.read_text("utf-8"), golden(environment)
    if stored == now:
        return []
    pairs = enumerate(
        zip([*stored.splitlines(), "(end)"], [*now.splitlines(), "(end)"], strict=False), 1
    )
    where = next(
        (f"line {number} was {a!r} and is {b!r}" for number, (a, b) in pairs if a != b),
        "they differ in line ends",
    )
    return [f"three games differ from those stored in {path}: {where}"]


def write_golden(environment: Environment, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(golden(environment), "utf-8")


def check_opponent(
    opponent: Opponent, environment: Environment, games: int = 50, seed: int = 0
) -> list[str]:
    """Play random moves from both seats; returns the violations, empty if there are none."""
    faults: list[str] = []
    seeds = [derive(seed, "check", game) for game in range(games)]
    player, copy = opponent.model_copy(), opponent.model_copy()
    first = {
        one: _play(player, environment, one, faults, policies=number < _POLICIES)
        for number, one in enumerate(seeds)
    }
    again = {one: _play(copy, environment, one, faults, policies=False) for one in reversed(seeds)}
    different = sum(first[one] != again[one] for one in seeds)
    if different:
        faults.append(
            f"not stationary: in {different} of {games} games it moved differently "
            "when the games were played in another order"
        )
    faults += _family_faults(opponent, environment, seeds) if isinstance(opponent, Family) else []
    return list(dict.fromkeys(faults))[:20]


def _family_faults(family: Family, environment: Environment, seeds: list[int]) -> list[str]:
    """Players of a family must be reproducible, and differ between tasks and between splits."""

    def player(seed: int, split: Split) -> str:
        state = environment.start(0)
        drawn = draw_player(family, Task(environment.name, seed, 0, family.name, split))
        return f"{drawn!r} {dict(drawn.policy(state, state.turn() or 0))}"

    if family.seed is not None:
        return []
    train, again, test, ood = (
        [player(seed, split) for seed in seeds] for split in ("train", "train", "test", "ood")
    )
    faults = []
    if train != again:
        faults.append("not reproducible: the same task drew two different players")
    if len(set(train)) < len(train):
        faults.append("two tasks drew the same player")
    if set(train) & (set(test) | set(ood)):
        faults.append("not disjoint: a player of the training split was drawn in another split")
    return faults


def _play(
    opponent: Opponent, environment: Environment, seed: int, faults: list[str], policies: bool
) -> tuple[str, ...]:
    """The moves of one game; the seat comes from the seed, the other side moves at random."""
    seat, rng = seed % environment.seats, random.Random(seed)
    task = Task(environment.name, seed, 1 - seat, opponent.name, "train")
    state, moves = environment.start(seed), list[str]()
    opponent = draw_player(opponent, task)
    while (mover := state.turn()) is not None:
        action = rng.choice(state.legal())
        if mover == seat:
            faults += _policy_faults(opponent, state, seat) if policies else []
            chosen, legal = (
                opponent.act(state, seat, move_rng(task, environment, 0, len(moves))),
                state.legal(),
            )
            faults += (
                []
                if chosen in legal
                else [
                    f"{chosen!r} is not a legal move in {state.anchor(seat)!r}: {', '.join(legal)}"
                ]
            )
            action = chosen if chosen in legal else action
        moves.append(action)
        state.apply(action)
    return tuple(moves)


def _policy_faults(opponent: Opponent, state: State, seat: int) -> list[str]:
    chances = opponent.policy(state, seat)
    faults = [
        f"policy() gives {move!r} a probability, but it is not a legal move"
        for move in chances
        if move not in state.legal()
    ]
    if (
        not math.isclose(math.fsum(chances.values()), 1.0, abs_tol=1e-6)
        or min(chances.values(), default=-1) < 0
    ):
        faults.append(f"policy() must return probabilities that sum to 1, not {dict(chances)}")
    return faults
