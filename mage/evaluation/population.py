"""Matches of a player against every member of a named population, such as the RoShamBo programs.

A match is a meta-episode of some episodes. Its return is the sum of its scores, in throws (or
hands, or games). The population return is the mean over all members (Lanctot et al. 2023).
Intervals come from repeated matches with other seeds: the members are fixed, not a sample.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mage.config.errors import UserError
from mage.environments.base import Environment
from mage.evaluation.rows import TaskRow, task_row
from mage.evaluation.statistics import Estimate, mean
from mage.opponents.base import find, meet, members, move_rng
from mage.play import PlaySetup, play_wave
from mage.seeds import derive
from mage.types import Task

Matches = dict[str, list[tuple[float, ...]]]  # member -> for each match, a score for each episode


@dataclass(frozen=True, slots=True)
class Against:
    """Results against one member; `low` of the mean return above 0 means surely beaten."""

    member: str
    mean_return: Estimate

    @property
    def is_beaten(self) -> bool:
        return self.mean_return.value > 0

    @property
    def is_surely_beaten(self) -> bool:
        return self.mean_return.low > 0


@dataclass(frozen=True, slots=True)
class PopulationResult:
    """Results of one player. `by_episode`: the mean score of each episode over the population."""

    player: str
    against: tuple[Against, ...]
    population_return: Estimate
    by_episode: tuple[Estimate, ...]

    @property
    def beaten(self) -> int:
        return sum(one.is_beaten for one in self.against)

    @property
    def surely_beaten(self) -> int:
        return sum(one.is_surely_beaten for one in self.against)

    @property
    def worst(self) -> Against:
        """The member with the lowest return: the within-population exploitability."""
        return min(self.against, key=lambda one: one.mean_return.value)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"beaten": self.beaten, "surely_beaten": self.surely_beaten}


def make_matches(environment: Environment, population: str, matches: int) -> list[Task]:
    """The tasks of all matches; the agent changes its seat from match to match."""
    names, seats = members(population), environment.seats
    for name in names:
        if not find(name).plays(environment):
            raise UserError(f"{name} does not play {environment.name}")
    return [
        Task(environment.name, derive("population", name, number), number % seats, name, "test")
        for number in range(matches)
        for name in names
    ]


def play_agent(
    setup: PlaySetup, tasks: Sequence[Task], on_played: Callable[[TaskRow], None] = lambda row: None
) -> Matches:
    """The matches of an agent, all played concurrently."""
    groups = {number: [task] for number, task in enumerate(tasks)}
    seed = derive("population", "agent")
    rows = play_wave(setup, groups, seed, task_row, on_played)
    found: Matches = {task.opponent: [] for task in tasks}
    for row in rows:
        found[row.task.opponent].append(row.scores)
    return found


def play_reference(
    name: str, environment: Environment, tasks: Sequence[Task], episodes: int
) -> Matches:
    """The matches of an opponent of the menu on the agent's side. No model is used."""
    if environment.strata() > 1:
        raise UserError(
            f"reference players need a game without chance; {environment.name} deals cards"
        )
    found: Matches = {task.opponent: [] for task in tasks}
    for task in tasks:
        scores = [_play_reference(name, environment, task, number) for number in range(episodes)]
        found[task.opponent].append(tuple(scores))
    return found


def _play_reference(name: str, environment: Environment, task: Task, episode: int) -> float:
    """The score of one episode. The reference has a state of its own, and so its own program."""
    seed = environment.episode_seed(task.seed, episode)
    state, own = environment.start(seed), environment.start(derive(seed, "reference"))
    player, opponent = find(name), meet(task)
    moves = 0
    while (mover := state.turn()) is not None:
        if mover == task.seat:
            rng = random.Random(derive(seed, "reference", name, moves))
            action = player.act(own, mover, rng)
        else:
            action = opponent.act(state, mover, move_rng(task, environment, episode, moves))
        moves += 1
        state.apply(action)
        own.apply(action)
    return state.scores()[task.seat]


def summarise_matches(player: str, matches: Matches, units: int) -> PopulationResult:
    """Figures from the scores; an episode has `units` throws, and its score is their mean."""
    returns = {name: [units * sum(scores) for scores in found] for name, found in matches.items()}
    repeats = list(zip(*returns.values(), strict=True))  # one row per match number
    episodes = zip(*(zip(*found, strict=True) for found in matches.values()), strict=True)
    return PopulationResult(
        player=player,
        against=tuple(Against(name, mean(found)) for name, found in returns.items()),
        population_return=mean([sum(row) / len(row) for row in repeats]),
        by_episode=tuple(
            mean([sum(row) / len(row) for row in zip(*episode, strict=True)])
            for episode in episodes
        ),
    )
