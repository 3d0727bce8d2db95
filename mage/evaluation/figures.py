"""Evaluation figures computed from panel results: overall, by opponent and by seat, with intervals.

Ceilings are computed beside the figures where the game is small enough.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mage.config.errors import UserError
from mage.environments.base import Environment
from mage.evaluation.exact.bounds import PanelBounds
from mage.evaluation.exact.ceilings import expert_score, exploitation
from mage.evaluation.panels import NOBODY
from mage.evaluation.rows import (
    TaskRow,
    average,
    gain_of,
    outcome_of,
    passed_by,
    rate,
    ratio,
    regret_of,
    score_of,
    select_rows,
    success_of,
)
from mage.evaluation.statistics import Estimate
from mage.opponents.base import Population
from mage.run_folder.files import finite
from mage.types import Split, Task


@dataclass(frozen=True, slots=True)
class EpisodeFigures:
    """Figures of one episode position (from 1); None if no task has a value.

    All but `pass_at` are over the tasks on which this episode was played. `exploitation`: 0 =
    plays safe, 1 = exploits perfectly. `ceiling`: the best learner's score in this episode.
    `success_gain` and `score_gain` are paired with episode 1 of the same tasks. `regret`: how much
    worse than the best play a turn was.
    """

    episode: int
    pass_at: Estimate
    success: Estimate | None
    draws: Estimate | None
    score: Estimate | None
    success_gain: Estimate | None
    score_gain: Estimate | None
    exploitation: Estimate | None
    ceiling: float | None
    illegal: float | None
    tokens: float | None
    unfinished: float | None
    regret: Estimate | None = None
    cut_off: float | None = None  # replies that ended inside a thought, at the length limit
    folded: float | None = None  # turns whose prompt was shortened
    overflow: float | None = None  # turns whose prompt and reply did not fit into the context


@dataclass(frozen=True, slots=True)
class Expert:
    """The result of the world's own expert on the same tasks, in one episode without memory."""

    success: float
    score: float


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one opponent and/or one seat; None means all. Bounds are scores per game."""

    opponent: str | None
    seat: int | None
    tasks: int
    equilibrium: float | None
    best_response: float | None
    non_adapting: float | None
    knows_opponent: float | None
    episodes: tuple[EpisodeFigures, ...]
    expert: Expert | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All figures of one policy on one panel."""

    environment: str
    split: Split
    overall: Cell
    by_opponent: tuple[Cell, ...]
    by_seat: tuple[Cell, ...]
    by_opponent_seat: tuple[Cell, ...]
    rows: tuple[TaskRow, ...] = ()
    worlds: tuple["Evaluation", ...] = ()  # of a mix; the other figures are over all its worlds

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.overall, *self.by_seat, *self.by_opponent, *self.by_opponent_seat)

    def to_pandas(self) -> Any:
        """A pandas frame with one row per cell and episode; needs pandas."""
        from mage.evaluation.frames import evaluation_frame

        return evaluation_frame(self.cells)

    def to_json(self) -> dict[str, Any]:
        """Plain values without the rows (see `write_tasks`); infinite interval ends become null."""
        plain = asdict(replace(self, rows=(), worlds=()))
        worlds = {"worlds": [one.to_json() for one in self.worlds]} if self.worlds else {}
        return {
            name: finite(value) for name, value in plain.items() if name not in ("rows", "worlds")
        } | worlds


def summarise_rows(
    rows: Sequence[TaskRow],
    environment: Environment,
    population: Population,
    split: Split,
    with_ceilings: bool = True,
) -> Evaluation:
    """The figures of a played panel, from its rows, new or read from a file.

    In a mix every world has its own figures; bounds, opponents and seats belong to one world.
    """
    _check_rows(rows, environment, population, split)
    episodes, pool = max(len(row.scores) for row in rows), population.pool(split)
    if environment.name not in environment.inside():
        worlds = tuple(
            summarise_rows(own, world, population.playing(world), split, with_ceilings)
            for name, world in environment.inside().items()
            if (own := [row for row in rows if row.task.environment == name])
        )
        return _summarise_mix(rows, environment, worlds, episodes)
    bounds = PanelBounds(environment, pool, episodes, enabled=with_ceilings)
    builder = _FigureBuilder(environment, bounds, episodes)
    there = {row.task.opponent for row in rows}
    opponents = [name for name in (*pool, NOBODY) if name in there]
    seats = sorted({row.task.seat for row in rows})
    pairs = [
        (opponent, seat)
        for opponent in opponents
        for seat in seats
        if select_rows(rows, opponent, seat)
    ]
    return Evaluation(
        environment=environment.name,
        split=split,
        overall=builder.cell(rows, None, None),
        by_opponent=tuple(builder.cell(rows, opponent, None) for opponent in opponents),
        by_seat=tuple(builder.cell(rows, None, seat) for seat in seats),
        by_opponent_seat=tuple(builder.cell(rows, opponent, seat) for opponent, seat in pairs),
        rows=tuple(rows),
    )


def _summarise_mix(
    rows: Sequence[TaskRow], environment: Environment, worlds: tuple[Evaluation, ...], episodes: int
) -> Evaluation:
    """The figures over all worlds, with those of every world; a mix of one world is that world."""
    if len(environment.inside()) == 1:
        return worlds[0]
    bounds = PanelBounds(environment, {}, episodes, enabled=False)
    return Evaluation(
        environment=environment.name,
        split=worlds[0].split,
        overall=_FigureBuilder(environment, bounds, episodes).cell(rows, None, None),
        by_opponent=(),
        by_seat=(),
        by_opponent_seat=(),
        rows=tuple(rows),
        worlds=worlds,
    )


class _FigureBuilder:
    """Computes cells; holds what all cells share: the environment and its bounds."""

    def __init__(self, environment: Environment, bounds: PanelBounds, episodes: int) -> None:
        self.environment, self.bounds, self.episodes = environment, bounds, episodes
        self.expert_scores: dict[Task, float | None] = {}

    def cell(self, rows: Sequence[TaskRow], opponent: str | None, seat: int | None) -> Cell:
        chosen = select_rows(rows, opponent, seat)
        tasks = list(dict.fromkeys(row.task for row in chosen))
        bounds = self.bounds.scores(tasks)
        # A ceiling against the whole population is no bound for the games of one opponent.
        first = self.bounds.ceiling(tasks, 0) if opponent is None else None
        return Cell(
            opponent=opponent,
            seat=seat,
            tasks=len(tasks),
            equilibrium=bounds[0] if bounds else None,
            best_response=bounds[1] if bounds else None,
            non_adapting=first.non_adapting if first else None,
            knows_opponent=first.knows_opponent if first else None,
            episodes=tuple(
                self._figures(chosen, tasks, k, opponent is None) for k in range(self.episodes)
            ),
            expert=self._expert(tasks),
        )

    def _expert(self, tasks: list[Task]) -> Expert | None:
        """Only worlds without other agents have an expert."""
        if self.environment.multi_agent or len(self.environment.inside()) > 1:
            return None
        for task in tasks:
            if task not in self.expert_scores:
                self.expert_scores[task] = expert_score(self.environment, task)
        scores = [self.expert_scores[task] for task in tasks]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return None
        wins = sum(self.environment.outcome(score) == "won" for score in known)
        return Expert(wins / len(known), math.fsum(known) / len(known))

    def _figures(
        self, rows: Sequence[TaskRow], tasks: list[Task], k: int, everybody: bool
    ) -> EpisodeFigures:
        played = [row for row in rows if k < len(row.scores)]
        passed, score = rate(rows, passed_by(k)), average(played, score_of(k))
        ceiling = self.bounds.ceiling(tasks, k) if everybody else None
        assert passed is not None, "a cell has at least one task"
        return EpisodeFigures(
            episode=k + 1,
            pass_at=passed,
            success=rate(played, success_of(k)),
            draws=rate(played, outcome_of(k, "drawn")),
            score=score,
            success_gain=average(played, gain_of(k, success_of)) if k else None,
            score_gain=average(played, gain_of(k, score_of)) if k else None,
            exploitation=self._exploitation(score, played),
            ceiling=ceiling.bayes_final if ceiling else None,
            illegal=ratio((row.illegal[k] for row in played), (row.replies[k] for row in played)),
            tokens=ratio((row.tokens[k] for row in played), (row.replies[k] for row in played)),
            unfinished=ratio(
                (float(row.endings[k] != "finished") for row in played), (1 for _ in played)
            ),
            regret=average(played, regret_of(k)),
            cut_off=_share(played, k, "cut_off"),
            folded=_share(played, k, "folded"),
            overflow=_share(played, k, "overflow"),
        )

    def _exploitation(self, score: Estimate | None, played: Sequence[TaskRow]) -> Estimate | None:
        bounds = self.bounds.scores(list(dict.fromkeys(row.task for row in played)))
        if score is None or bounds is None or exploitation(score.value, *bounds) is None:
            return None
        equilibrium, best = bounds
        return score.shifted(-equilibrium, 1 / (best - equilibrium))


def _share(played: Sequence[TaskRow], k: int, name: str) -> float | None:
    """The share of turns that a column of the rows counts; rows of older runs may lack it."""
    counted = [row for row in played if k < len(getattr(row, name))]
    return ratio((getattr(row, name)[k] for row in counted), (row.replies[k] for row in counted))


def _check_rows(
    rows: Sequence[TaskRow], environment: Environment, population: Population, split: Split
) -> None:
    if not rows:
        raise UserError("there is nothing to evaluate: no meta-episode was played")
    worlds = environment.inside()
    strangers = {row.task.environment for row in rows} - worlds.keys()
    if strangers:
        raise UserError(
            f"these meta-episodes were played in {', '.join(sorted(strangers))}, "
            f"not in {', '.join(worlds)}"
        )
    if {row.task.split for row in rows} != {split}:
        splits = ", ".join(sorted({row.task.split for row in rows}))
        raise UserError(f"these meta-episodes belong to split {splits}, not to {split}")
    if environment.name not in worlds:
        return  # the opponents belong to its worlds
    pool = set(population.pool(split)) if environment.multi_agent else {NOBODY}
    unknown = {row.task.opponent for row in rows} - pool
    if unknown:
        raise UserError(
            f"opponents {', '.join(sorted(unknown))} are not in the population's {split} pool "
            f"({', '.join(sorted(pool))})"
        )
