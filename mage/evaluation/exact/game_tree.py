"""Walks over the tree of an OpenSpiel game, with a bound on nodes and on seconds.

Every exact figure counts the positions that it visits in a `Budget`. A figure that would take too
long ends with `TooLarge`, which says what was computed, how far it got and what to do.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pyspiel

from mage.config.errors import UserError
from mage.environments.base import Environment
from mage.environments.openspiel import OpenSpiel, OpenSpielState, load_game

MAX_NODES = 200_000
MAX_SECONDS = 60.0  # of processor time, so that a busy machine gives the same figures


class TooLarge(UserError):
    """The game tree or the set of beliefs is too large for an exact answer."""


@dataclass(slots=True)
class Budget:
    """Counts visited positions and seconds of one exact computation."""

    task: str  # what is computed, for the message
    max_nodes: int | None = None  # None: the module's MAX_NODES at the time of the first visit
    max_seconds: float | None = None
    clock: Callable[[], float] = time.thread_time
    nodes: int = 0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.max_nodes = MAX_NODES if self.max_nodes is None else self.max_nodes
        self.max_seconds = MAX_SECONDS if self.max_seconds is None else self.max_seconds
        self.started = self.clock()

    def visit(self) -> None:
        """Count one position; `TooLarge` if that is one too many."""
        self.nodes += 1
        if self.max_nodes is not None and self.nodes > self.max_nodes:
            raise TooLarge(f"{self.task}: more than {self.max_nodes:,} positions; not computed")
        if self.nodes % 64 == 0:
            self.check_seconds()

    def check_seconds(self) -> None:
        passed = self.clock() - self.started
        if self.max_seconds is not None and passed > self.max_seconds:
            raise TooLarge(
                f"{self.task}: stopped after {passed:.0f} s and {self.nodes:,} positions; "
                "not computed"
            )


def checked_game(environment: Environment, seat: int) -> OpenSpiel:
    """The environment as an OpenSpiel game; an error if it is none or has no such seat."""
    if not isinstance(environment, OpenSpiel):
        raise UserError(
            f"exact ceilings need an OpenSpiel game; {environment.name!r} is not one of them"
        )
    if seat not in range(environment.seats):
        raise UserError(f"{environment.name} has seats 0 to {environment.seats - 1}, not {seat}")
    return environment


def is_perfect_information(game: OpenSpiel) -> bool:
    return bool(
        load_game(game.spiel_game()).get_type().information
        == pyspiel.GameType.Information.PERFECT_INFORMATION
    )


def roots(game: OpenSpiel) -> list[tuple[float, OpenSpielState]]:
    """The start positions with their probabilities.

    A game that names its deals as strata has one root for each deal. Other games have one root,
    and chance nodes follow later in the tree.
    """
    if game.strata() == 1:
        root = game.start(0)
        root.spiel, root.moves = load_game(game.spiel_game()).new_initial_state(), []
        return [(1.0, root)]
    seeds: dict[int, int] = {}
    for seed in range(100 * game.strata()):
        seeds.setdefault(game.stratum(seed), seed)
    assert len(seeds) == game.strata(), (
        "all strata are equally likely, so small seeds reach every one of them"
    )
    return [(1 / len(seeds), game.start(seed)) for _, seed in sorted(seeds.items())]


def moved(state: OpenSpielState, word: str) -> OpenSpielState:
    """The position after a move. Unlike `State.apply`, it draws no chance outcome."""
    child = chanced(state, state.number(word))
    child.moves.append((state.spiel.current_player(), word))
    return child


def chanced(state: OpenSpielState, action: int) -> OpenSpielState:
    """The position after an OpenSpiel action, for example a chance outcome."""
    child = copy.copy(state)
    child.spiel, child.moves = state.spiel.clone(), [*state.moves]
    child.spiel.apply_action(action)
    return child


def count_positions(spiel: pyspiel.State, budget: Budget) -> int:
    """The number of positions of a game, chance included."""
    stack = [spiel]
    while stack:
        budget.visit()
        here = stack.pop()
        actions = () if here.is_terminal() else here.legal_actions()
        stack += [here.child(action) for action in actions]
    return budget.nodes
