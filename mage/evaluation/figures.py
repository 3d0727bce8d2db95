"""Evaluation figures computed from panel results: overall, by opponent and by seat, with intervals.

Ceilings are computed beside the figures where the game is small enough.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mage.environments.base import Environment
from mage.environments.openspiel import OpenSpiel
from mage.evaluation.ceilings import (
    Ceilings,
    TooLarge,
    best_response,
    ceilings,
    equilibrium_value,
    expert_score,
    exploitation,
)
from mage.evaluation.panels import NOBODY
from mage.evaluation.rows import (
    TaskRow,
    average,
    by_task,
    finite,
    gain_of,
    outcome_of,
    passed_by,
    rate,
    ratio,
    regret_of,
    score_of,
    select_rows,
    success_of,
    task_row,
)
from mage.evaluation.statistics import (
    Estimate,
    mean,
    stratified_mean,
)
from mage.evaluation.throw_ceilings import dirichlet_alpha, throw_ceilings
from mage.opponents.base import Population, find
from mage.types import MetaEpisode, Split, Task


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
    rows: tuple[TaskRow, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.overall, *self.by_seat, *self.by_opponent, *self.by_opponent_seat)

    def to_pandas(self) -> Any:
        """A pandas frame with one row per cell and episode; needs pandas."""
        from mage.evaluation.frames import evaluation_frame

        return evaluation_frame(self.cells)

    def to_json(self) -> dict[str, Any]:
        """Plain values without the rows (see `write_tasks`); infinite interval ends become null."""
        return {
            name: finite(value)
            for name, value in asdict(replace(self, rows=())).items()
            if name != "rows"
        }


def summarise(
    meta_episodes: Iterable[MetaEpisode],
    environment: Environment,
    population: Population,
    split: Split,
    *,
    search: bool = False,
    stratified: bool = False,
    with_ceilings: bool = True,
) -> Evaluation:
    """The figures of a played panel.

    `search` also computes best responses to MCTS (slow, estimated). `stratified` uses the narrower
    score intervals of a stratified panel.
    """
    rows = [task_row(played) for played in meta_episodes]
    return summarise_rows(
        rows,
        environment,
        population,
        split,
        search=search,
        stratified=stratified,
        with_ceilings=with_ceilings,
    )


def summarise_rows(
    rows: Sequence[TaskRow],
    environment: Environment,
    population: Population,
    split: Split,
    *,
    search: bool = False,
    stratified: bool = False,
    with_ceilings: bool = True,
) -> Evaluation:
    """The same from rows, new or read from a file."""
    _check_rows(rows, environment, population, split)
    builder = _FigureBuilder(
        environment,
        population.pool(split),
        max(len(row.scores) for row in rows),
        search,
        stratified,
        with_ceilings,
    )
    opponents = [
        name
        for name in (*population.pool(split), NOBODY)
        if any(row.task.opponent == name for row in rows)
    ]
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


class _FigureBuilder:
    """Computes cells; holds what all cells share: the environment and its bounds."""

    def __init__(
        self,
        environment: Environment,
        pool: Mapping[str, float],
        episodes: int,
        search: bool,
        stratified: bool,
        with_ceilings: bool,
    ) -> None:
        self.environment, self.pool, self.with_ceilings = environment, pool, with_ceilings
        self.episodes, self.search, self.stratified = episodes, search, stratified
        self.ceilings: dict[int, tuple[Ceilings, ...]] = {}
        self.bounds: dict[tuple[str, int], tuple[float, float]] = {}
        self.expert_scores: dict[Task, float | None] = {}

    def cell(self, rows: Sequence[TaskRow], opponent: str | None, seat: int | None) -> Cell:
        chosen = select_rows(rows, opponent, seat)
        tasks = list(dict.fromkeys(row.task for row in chosen))
        bounds = self._bounds(tasks)
        # A ceiling against the whole population is no bound for the games of one opponent.
        first = self._ceiling(tasks, 0) if opponent is None else None
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
        if self.environment.multi_agent:
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
        passed, score = rate(rows, passed_by(k)), self._mean_score(played, k)
        ceiling = self._ceiling(tasks, k) if everybody else None
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

    def _mean_score(self, played: Sequence[TaskRow], k: int) -> Estimate | None:
        values = by_task(played, score_of(k))
        if not values or not self.stratified:
            return mean(list(values.values())) if values else None
        world = self.environment
        strata = [
            (task.opponent, task.seat, world.stratum(world.episode_seed(task.seed, k)))
            for task in values
        ]
        return stratified_mean(list(values.values()), strata)

    def _exploitation(self, score: Estimate | None, played: Sequence[TaskRow]) -> Estimate | None:
        bounds = self._bounds(list(dict.fromkeys(row.task for row in played)))
        if score is None or bounds is None or exploitation(score.value, *bounds) is None:
            return None
        equilibrium, best = bounds
        return score.shifted(-equilibrium, 1 / (best - equilibrium))

    def _bounds(self, tasks: list[Task]) -> tuple[float, float] | None:
        """Equilibrium and best-response score, averaged over the tasks.

        Not for `restart = "same"`: a player that has seen the deal and the opponent's random
        choices may score more than a best response.
        """
        if (
            not tasks
            or not self.with_ceilings
            or self.environment.restart == "same"
            or not isinstance(self.environment, OpenSpiel)
        ):
            return None
        if not all(self._is_exact(task.opponent) for task in tasks):
            return None
        pairs = Counter((task.opponent, task.seat) for task in tasks)
        try:
            bounds = [(count, *self._pair_bounds(*pair)) for pair, count in pairs.items()]
        except TooLarge:
            return None
        return math.fsum(count * low for count, low, _ in bounds) / len(tasks), math.fsum(
            count * high for count, _, high in bounds
        ) / len(tasks)

    def _pair_bounds(self, opponent: str, seat: int) -> tuple[float, float]:
        """Equilibrium and best-response score of one seat against one opponent; computed once."""
        if (opponent, seat) not in self.bounds:
            self.bounds[opponent, seat] = (
                equilibrium_value(self.environment, seat),
                best_response(self.environment, opponent, seat),
            )
        return self.bounds[opponent, seat]

    def _is_exact(self, opponent: str) -> bool:
        knowledge = find(opponent).policy_is
        return knowledge == "exact" or (self.search and knowledge == "sampled")

    def _ceiling(self, tasks: list[Task], k: int) -> Ceilings | None:
        """The ceilings of episode k (from 0), averaged over the seats of the tasks."""
        per_seat = [self._seat_ceilings(task.seat) for task in tasks]
        if not all(len(found) > k for found in per_seat):
            return None
        chosen = [asdict(found[k]) for found in per_seat]
        return Ceilings(
            **{name: math.fsum(one[name] for one in chosen) / len(chosen) for name in chosen[0]}
        )

    def _seat_ceilings(self, seat: int) -> tuple[Ceilings, ...]:
        if seat not in self.ceilings:
            self.ceilings[seat] = self._compute_ceilings(seat)
        return self.ceilings[seat]

    def _compute_ceilings(self, seat: int) -> tuple[Ceilings, ...]:
        alpha = self._dirichlet_alpha()
        if alpha is not None:
            return _throw_ceilings(self.environment, alpha, self.episodes)
        if (
            not self.with_ceilings
            or not isinstance(self.environment, OpenSpiel)
            or self.environment.strata() == 1
            or self.environment.restart == "same"
            or not all(map(self._is_exact, self.pool))
        ):
            return ()
        found: list[Ceilings] = []
        for episodes in range(1, self.episodes + 1):
            try:
                found.append(ceilings(self.environment, self.pool, seat, episodes))
            except TooLarge:
                break
        return tuple(found)

    def _dirichlet_alpha(self) -> float | None:
        """A, if the whole pool is the family `dirichlet-A` of rock-paper-scissors."""
        if not self.with_ceilings or len(self.pool) != 1:
            return None
        return dirichlet_alpha(self.environment, next(iter(self.pool)))


def _throw_ceilings(environment: Environment, alpha: float, episodes: int) -> tuple[Ceilings, ...]:
    throws = environment.model_dump()["throws"]
    found = throw_ceilings(alpha, throws, episodes)
    scores = found.episodes
    return tuple(
        Ceilings(scores[0], scores[k], sum(scores[: k + 1]) / (k + 1), found.knows_opponent)
        for k in range(episodes)
    )


def _share(played: Sequence[TaskRow], k: int, name: str) -> float | None:
    """The share of turns that a column of the rows counts; rows of older runs may lack it."""
    counted = [row for row in played if k < len(getattr(row, name))]
    return ratio((getattr(row, name)[k] for row in counted), (row.replies[k] for row in counted))


def _check_rows(
    rows: Sequence[TaskRow], environment: Environment, population: Population, split: Split
) -> None:
    if not rows:
        raise ValueError("there is nothing to evaluate: no meta-episode was played")
    strangers = {row.task.environment for row in rows} - {environment.name}
    if strangers:
        raise ValueError(
            f"these meta-episodes were played in {', '.join(sorted(strangers))}, "
            f"not in {environment.name}"
        )
    if {row.task.split for row in rows} != {split}:
        splits = ", ".join(sorted({row.task.split for row in rows}))
        raise ValueError(f"these meta-episodes belong to split {splits}, not to {split}")
    pool = set(population.pool(split)) if environment.multi_agent else {NOBODY}
    unknown = {row.task.opponent for row in rows} - pool
    if unknown:
        raise ValueError(
            f"opponents {', '.join(sorted(unknown))} are not in the population's {split} pool "
            f"({', '.join(sorted(pool))})"
        )
