"""The judge: what a panel of played meta-episodes says, for everybody and by opponent and seat, with intervals and ceilings.

A `TaskRow` keeps the little that is needed of a meta-episode; every figure is computed from rows, so stored rows give the
same figures and can be compared in pairs later. The unit is the task: members of one task are averaged before any interval.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mage.evaluation.ceilings import Ceilings, TooLarge, best_response, ceilings, equilibrium_value, expert_score, exploitation
from mage.environments.base import SEATS, Environment
from mage.environments.openspiel import OpenSpiel
from mage.opponents.base import Population, find
from mage.evaluation.panels import NOBODY
from mage.evaluation.statistics import Difference, Estimate, mean, paired, sign_test, stratified_mean, wilson
from mage.types import Episode, MetaEpisode, Split, Task


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One member's meta-episode on one task; the sequences have one entry per episode PLAYED.

    Tokens of moves are `tokens`, those of the reflection before an episode `reflected`, those that the memory asked for `asked`.
    """

    task: Task
    member: int
    scores: tuple[float, ...]
    outcomes: tuple[str, ...]
    endings: tuple[str, ...]
    replies: tuple[int, ...]
    illegal: tuple[int, ...]
    tokens: tuple[int, ...]
    regrets: tuple[float | None, ...] = ()
    reflected: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()

    @property
    def generated(self) -> int:
        """All tokens that the model wrote: moves, reflections, and what a memory asked it."""
        return sum(self.tokens) + sum(self.reflected) + sum(self.asked)

    def passed(self, episodes: int) -> bool:
        """Won at least once in the first so many episodes; a win stands even if play stopped after it."""
        return "won" in self.outcomes[:episodes]


@dataclass(frozen=True, slots=True)
class EpisodeFigures:
    """Episode `episode` (from 1). All but `pass_at` speak of the tasks on which it was played; None where there is none.

    `exploitation`: 0 = plays safe, 1 = exploits perfectly. `ceiling`: the score of the best learner's episode of this number.
    `success_gain` and `score_gain` are paired with episode 1 of the same tasks. `regret`: how much worse than the best play a turn was.
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


@dataclass(frozen=True, slots=True)
class Expert:
    """What the world's own expert reaches on the same tasks, in one episode that it has not seen before."""

    success: float
    score: float


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one opponent and/or one seat; None means all of them. Bounds are scores per game."""

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
    """Everything one panel says about one policy."""

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

    def to_json(self) -> dict[str, Any]:
        """Plain values without the rows, which `write_tasks` stores; an infinite end of an interval is null."""
        return {name: _finite(value) for name, value in asdict(replace(self, rows=())).items() if name != "rows"}


@dataclass(frozen=True, slots=True)
class EpisodeComparison:
    """Second minus first in one episode, over the tasks on which both played it (`pass_at`: over all)."""

    episode: int
    score: Difference
    success: Difference
    pass_at: Difference


@dataclass(frozen=True, slots=True)
class Comparison:
    tasks: int
    episodes: tuple[EpisodeComparison, ...]

    def to_json(self) -> dict[str, Any]:
        return {name: _finite(value) for name, value in asdict(self).items()}


def summarise(
    meta_episodes: Iterable[MetaEpisode],
    environment: Environment,
    population: Population,
    split: Split,
    *,
    search: bool = False,
    stratified: bool = False,
) -> Evaluation:
    """The figures of a played panel. `search` also computes best responses to MCTS (slow, estimated); `stratified` takes the
    narrower intervals of scores that a stratified panel allows."""
    rows = [task_row(played) for played in meta_episodes]
    return summarise_rows(rows, environment, population, split, search=search, stratified=stratified)


def summarise_rows(
    rows: Sequence[TaskRow],
    environment: Environment,
    population: Population,
    split: Split,
    *,
    search: bool = False,
    stratified: bool = False,
) -> Evaluation:
    """The same from rows, fresh or read back."""
    _check_rows(rows, environment, population, split)
    judge = _Judge(environment, population.pool(split), max(len(row.scores) for row in rows), search, stratified)
    opponents = [name for name in (*population.pool(split), NOBODY) if any(row.task.opponent == name for row in rows)]
    seats = sorted({row.task.seat for row in rows})
    pairs = [(opponent, seat) for opponent in opponents for seat in seats if _chosen(rows, opponent, seat)]
    return Evaluation(
        environment=environment.name,
        split=split,
        overall=judge.cell(rows, None, None),
        by_opponent=tuple(judge.cell(rows, opponent, None) for opponent in opponents),
        by_seat=tuple(judge.cell(rows, None, seat) for seat in seats),
        by_opponent_seat=tuple(judge.cell(rows, opponent, seat) for opponent, seat in pairs),
        rows=tuple(rows),
    )


def compare(
    first: Evaluation | Sequence[TaskRow], second: Evaluation | Sequence[TaskRow], *, opponent: str | None = None, seat: int | None = None
) -> Comparison:
    """Second minus first over the SAME tasks: mean differences with paired intervals; wins are tested by the sign test."""
    ours, theirs = (one.rows if isinstance(one, Evaluation) else one for one in (first, second))
    _check_same_panel(ours, theirs)
    a, b = (_chosen(rows, opponent, seat) for rows in (ours, theirs))
    if not a:
        raise ValueError(f"the panel has no task with opponent {opponent!r} and seat {seat!r}")
    shared = min(max(len(row.scores) for row in rows) for rows in (a, b))
    played = [k for k in range(shared) if _both(a, b, _score(k))[0]]
    return Comparison(len({row.task for row in a}), tuple(_compare_episode(a, b, k) for k in played))


def task_row(played: MetaEpisode) -> TaskRow:
    """What is kept of a meta-episode. Replies are moves; reflections are counted apart."""
    episodes = played.episodes
    return TaskRow(
        task=played.task,
        member=played.member,
        scores=tuple(episode.score for episode in episodes),
        outcomes=tuple(episode.outcome for episode in episodes),
        endings=tuple(episode.ending for episode in episodes),
        replies=tuple(len(episode.turns) for episode in episodes),
        illegal=tuple(sum(not turn.legal for turn in episode.turns) for episode in episodes),
        tokens=tuple(_reply_tokens(episode) for episode in episodes),
        regrets=tuple(episode.regret for episode in episodes),
        reflected=tuple(_reflection_tokens(episode) for episode in episodes),
        asked=played.asked,
    )


def _reply_tokens(episode: Episode) -> int:
    return sum(len(turn.completion.token_ids) for turn in episode.turns)


def _reflection_tokens(episode: Episode) -> int:
    return 0 if episode.reflection is None else len(episode.reflection.completion.token_ids)


def write_tasks(path: Path, rows: Iterable[TaskRow]) -> None:
    """One JSON line per row, whole or not at all."""
    lines = [json.dumps(row_to_json(row)) for row in rows]
    part = path.with_name(path.name + ".part")
    part.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    os.replace(part, path)


def read_tasks(path: Path) -> tuple[TaskRow, ...]:
    return tuple(row_from_json(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line)


def row_to_json(row: TaskRow) -> dict[str, Any]:
    """A row as plain values, its task's beside its own."""
    return {**asdict(row.task), **{name: value for name, value in asdict(row).items() if name != "task"}}


def row_from_json(fields: dict[str, Any]) -> TaskRow:
    task = Task(**{name: fields.pop(name) for name in Task.__dataclass_fields__})
    member = fields.pop("member")
    return TaskRow(task=task, member=member, **{name: tuple(value) for name, value in fields.items()})


# --- Figures of one cell -------------------------------------------------------------------------------------------

Measure = Callable[[TaskRow], float | None]


def _score(k: int) -> Measure:
    return lambda row: row.scores[k] if k < len(row.scores) else None


def _outcome(k: int, outcome: str) -> Measure:
    return lambda row: float(row.outcomes[k] == outcome) if k < len(row.outcomes) else None


def _success(k: int) -> Measure:
    return _outcome(k, "won")


def _regret(k: int) -> Measure:
    return lambda row: row.regrets[k] if k < len(row.regrets) else None


def _passed(k: int) -> Measure:
    return lambda row: float(row.passed(k + 1))


def _gain(k: int, measure: Callable[[int], Measure]) -> Measure:
    def gain(row: TaskRow) -> float | None:
        first, now = measure(0)(row), measure(k)(row)
        return None if first is None or now is None else now - first

    return gain


def _by_task(rows: Sequence[TaskRow], measure: Measure) -> dict[Task, float]:
    """The mean over members for every task on which there is something to measure."""
    found: dict[Task, list[float]] = {}
    for row in rows:
        value = measure(row)
        if value is not None:
            found.setdefault(row.task, []).append(value)
    return {task: math.fsum(values) / len(values) for task, values in found.items()}


def _rate(rows: Sequence[TaskRow], measure: Measure) -> Estimate | None:
    values = _by_task(rows, measure)
    return wilson(math.fsum(values.values()), len(values)) if values else None


def _average(rows: Sequence[TaskRow], measure: Measure) -> Estimate | None:
    values = _by_task(rows, measure)
    return mean(list(values.values())) if values else None


def _ratio(above: Iterable[float], below: Iterable[float]) -> float | None:
    total = sum(below)
    return sum(above) / total if total else None


class _Judge:
    """Computes cells; holds what they share: the world, and the bounds that come with it."""

    def __init__(self, environment: Environment, pool: Mapping[str, float], episodes: int, search: bool, stratified: bool) -> None:
        self.environment, self.pool = environment, pool
        self.episodes, self.search, self.stratified = episodes, search, stratified
        self.ceilings: dict[int, tuple[Ceilings, ...]] = {}
        self.bounds: dict[tuple[str, int], tuple[float, float]] = {}
        self.expert_scores: dict[Task, float | None] = {}

    def cell(self, rows: Sequence[TaskRow], opponent: str | None, seat: int | None) -> Cell:
        chosen = _chosen(rows, opponent, seat)
        tasks = list(dict.fromkeys(row.task for row in chosen))
        bounds = self._bounds(tasks)
        # One opponent's games are not bounded by what is best against all of them together.
        first = self._ceiling(tasks, 0) if opponent is None else None
        return Cell(
            opponent=opponent,
            seat=seat,
            tasks=len(tasks),
            equilibrium=bounds[0] if bounds else None,
            best_response=bounds[1] if bounds else None,
            non_adapting=first.non_adapting if first else None,
            knows_opponent=first.knows_opponent if first else None,
            episodes=tuple(self._figures(chosen, tasks, k, opponent is None) for k in range(self.episodes)),
            expert=self._expert(tasks),
        )

    def _expert(self, tasks: list[Task]) -> Expert | None:
        """Only worlds without other agents have one: in a game the best play depends on the opponent."""
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

    def _figures(self, rows: Sequence[TaskRow], tasks: list[Task], k: int, everybody: bool) -> EpisodeFigures:
        played = [row for row in rows if k < len(row.scores)]
        passed, score = _rate(rows, _passed(k)), self._mean_score(played, k)
        ceiling = self._ceiling(tasks, k) if everybody else None
        assert passed is not None, "a cell has at least one task"
        return EpisodeFigures(
            episode=k + 1,
            pass_at=passed,
            success=_rate(played, _success(k)),
            draws=_rate(played, _outcome(k, "drawn")),
            score=score,
            success_gain=_average(played, _gain(k, _success)) if k else None,
            score_gain=_average(played, _gain(k, _score)) if k else None,
            exploitation=self._exploitation(score, played),
            ceiling=ceiling.bayes_final if ceiling else None,
            illegal=_ratio((row.illegal[k] for row in played), (row.replies[k] for row in played)),
            tokens=_ratio((row.tokens[k] for row in played), (row.replies[k] for row in played)),
            unfinished=_ratio((float(row.endings[k] != "finished") for row in played), (1 for _ in played)),
            regret=_average(played, _regret(k)),
        )

    def _mean_score(self, played: Sequence[TaskRow], k: int) -> Estimate | None:
        values = _by_task(played, _score(k))
        if not values or not self.stratified:
            return mean(list(values.values())) if values else None
        world = self.environment
        strata = [(task.opponent, task.seat, world.stratum(world.episode_seed(task.seed, k))) for task in values]
        return stratified_mean(list(values.values()), strata)

    def _exploitation(self, score: Estimate | None, played: Sequence[TaskRow]) -> Estimate | None:
        bounds = self._bounds(list(dict.fromkeys(row.task for row in played)))
        if score is None or bounds is None or exploitation(score.value, *bounds) is None:
            return None
        equilibrium, best = bounds
        return score.shifted(-equilibrium, 1 / (best - equilibrium))

    def _bounds(self, tasks: list[Task]) -> tuple[float, float] | None:
        """Equilibrium and best-response score, averaged over the tasks. Not for `restart = "same"`: whoever has seen the
        deal and the opponent's draws once may beat the best response to a stranger."""
        if not tasks or self.environment.restart == "same" or not isinstance(self.environment, OpenSpiel):
            return None
        if not all(self._is_exact(task.opponent) for task in tasks):
            return None
        pairs = Counter((task.opponent, task.seat) for task in tasks)
        try:
            bounds = [(count, *self._pair_bounds(*pair)) for pair, count in pairs.items()]
        except TooLarge:
            return None
        return math.fsum(count * low for count, low, _ in bounds) / len(tasks), math.fsum(count * high for count, _, high in bounds) / len(tasks)

    def _pair_bounds(self, opponent: str, seat: int) -> tuple[float, float]:
        """Equilibrium and best-response score of one seat against one opponent: a walk of the game tree, made once."""
        if (opponent, seat) not in self.bounds:
            self.bounds[opponent, seat] = equilibrium_value(self.environment, seat), best_response(self.environment, opponent, seat)
        return self.bounds[opponent, seat]

    def _is_exact(self, opponent: str) -> bool:
        told = find(opponent).policy_is
        return told == "exact" or (self.search and told == "sampled")

    def _ceiling(self, tasks: list[Task], k: int) -> Ceilings | None:
        """The ceilings of episode k (from 0), averaged over the seats of the tasks; fresh deals of Kuhn poker only."""
        per_seat = [self._seat_ceilings(task.seat) for task in tasks]
        if not all(len(found) > k for found in per_seat):
            return None
        chosen = [asdict(found[k]) for found in per_seat]
        return Ceilings(**{name: math.fsum(one[name] for one in chosen) / len(chosen) for name in chosen[0]})

    def _seat_ceilings(self, seat: int) -> tuple[Ceilings, ...]:
        if seat not in self.ceilings:
            self.ceilings[seat] = self._compute_ceilings(seat)
        return self.ceilings[seat]

    def _compute_ceilings(self, seat: int) -> tuple[Ceilings, ...]:
        if (
            not isinstance(self.environment, OpenSpiel)
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


# --- Pairs ---------------------------------------------------------------------------------------------------------


def _compare_episode(a: Sequence[TaskRow], b: Sequence[TaskRow], k: int) -> EpisodeComparison:
    return EpisodeComparison(
        episode=k + 1,
        score=paired(*_both(a, b, _score(k))),
        success=_wins(*_both(a, b, _success(k))),
        pass_at=_wins(*_both(a, b, _passed(k))),
    )


def _both(a: Sequence[TaskRow], b: Sequence[TaskRow], measure: Measure) -> tuple[list[float], list[float]]:
    """The per-task values of both sides, on the tasks on which both have something to measure."""
    first, second = (_by_task(rows, measure) for rows in (a, b))
    tasks = [task for task in first if task in second]
    return [first[task] for task in tasks], [second[task] for task in tasks]


def _wins(first: Sequence[float], second: Sequence[float]) -> Difference:
    pairs = list(zip(first, second, strict=True))
    return Difference(paired(first, second).difference, sign_test(sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)))


def _chosen(rows: Sequence[TaskRow], opponent: str | None, seat: int | None) -> list[TaskRow]:
    return [row for row in rows if opponent in (None, row.task.opponent) and seat in (None, row.task.seat)]


def _check_rows(rows: Sequence[TaskRow], environment: Environment, population: Population, split: Split) -> None:
    if not rows:
        raise ValueError("there is nothing to evaluate: no meta-episode was played")
    strangers = {row.task.environment for row in rows} - {environment.name}
    if strangers:
        raise ValueError(f"these meta-episodes were played in {', '.join(sorted(strangers))}, not in {environment.name}")
    if {row.task.split for row in rows} != {split}:
        raise ValueError(f"these meta-episodes belong to split {', '.join(sorted({row.task.split for row in rows}))}, not to {split}")
    pool = set(population.pool(split)) if environment.multi_agent else {NOBODY}
    unknown = {row.task.opponent for row in rows} - pool
    if unknown:
        raise ValueError(f"opponents {', '.join(sorted(unknown))} are not in the population's {split} pool ({', '.join(sorted(pool))})")


def _check_same_panel(a: Sequence[TaskRow], b: Sequence[TaskRow]) -> None:
    first, second = ({row.task for row in rows} for rows in (a, b))
    if first != second:
        raise ValueError(
            f"the two evaluations were not played on the same panel: {len(first - second)} of {len(first)} tasks are in the first only, "
            f"{len(second - first)} of {len(second)} in the second only; compare runs with the same panel name, size, seats and episodes"
        )


# --- For people ----------------------------------------------------------------------------------------------------

HEADER = ("opponent", "seat", "episode", "tasks", "success", "Pass@k", "draws", "score", "gain", "regret", "ceiling", "exploits", "illegal", "tokens")


def table(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """The header and one row per cell and episode, as plain strings; `88 % (80-93)` is a rate and its 95 % interval."""
    return [HEADER, *(_table_row(cell, figures) for cell in evaluation.cells for figures in cell.episodes)]


def _table_row(cell: Cell, figures: EpisodeFigures) -> tuple[str, ...]:
    return (
        "all" if cell.opponent is None else cell.opponent,
        "both" if cell.seat is None else SEATS[cell.seat],
        str(figures.episode),
        str(figures.score.count if figures.score else 0),
        _show_rate(figures.success),
        _show_rate(figures.pass_at),
        _show_rate(figures.draws),
        _show_score(figures.score),
        _show_score(figures.score_gain),
        "-" if figures.regret is None else f"{figures.regret.value:.2f}",
        "-" if figures.ceiling is None else f"{figures.ceiling:.3f}",
        "-" if figures.exploitation is None else f"{figures.exploitation.value:.2f}",
        "-" if figures.illegal is None else f"{100 * figures.illegal:.1f} %",
        "-" if figures.tokens is None else f"{figures.tokens:.0f}",
    )


def _show_rate(rate: Estimate | None) -> str:
    return "-" if rate is None else f"{100 * rate.value:.0f} % ({100 * rate.low:.0f}-{100 * rate.high:.0f})"


def _show_score(score: Estimate | None) -> str:
    if score is None:
        return "-"
    return f"{score.value:+.3f}" + (f" ({score.low:+.3f} to {score.high:+.3f})" if math.isfinite(score.low) else "")


def _finite(value: Any) -> Any:
    """JSON has no infinity and no tuples."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
