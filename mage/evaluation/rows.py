"""Task rows: the part of a meta-episode that figures need, and how rows are stored.

Every figure is computed from rows, so stored rows give the same figures and can be compared later.
The unit is the task: members of one task are averaged before any interval is computed.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mage.evaluation.statistics import Estimate, mean, wilson
from mage.run_folder import DamagedError, write_atomic
from mage.run_folder.files import unpack_text
from mage.types import Episode, MetaEpisode, Task


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One member's meta-episode on one task; the sequences have one entry per episode PLAYED.

    `tokens`: tokens of moves. `reflected`: tokens of the reflection before the episode. `asked`:
    tokens of answers that the memory asked for. `cut_off`: replies that reached their length limit
    inside a thought. `folded` and `overflow`: turns whose prompt was shortened or did not fit.
    `illegal` counts none of these. `world`: the digest of the environment; empty in old files.
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
    cut_off: tuple[int, ...] = ()
    folded: tuple[int, ...] = ()
    overflow: tuple[int, ...] = ()
    world: str = ""

    @property
    def generated(self) -> int:
        """All tokens that the model wrote: moves, reflections, and what a memory asked it."""
        return sum(self.tokens) + sum(self.reflected) + sum(self.asked)

    def passed(self, episodes: int) -> bool:
        """Whether it won at least once in the first `episodes` episodes."""
        return "won" in self.outcomes[:episodes]


def task_row(played: MetaEpisode, world: str = "") -> TaskRow:
    """The row of a meta-episode. Replies are moves; reflections are counted separately."""
    episodes = played.episodes
    return TaskRow(
        task=played.task,
        member=played.member,
        scores=tuple(episode.score for episode in episodes),
        outcomes=tuple(episode.outcome for episode in episodes),
        endings=tuple(episode.ending for episode in episodes),
        replies=tuple(len(episode.turns) for episode in episodes),
        illegal=tuple(sum(turn.illegal for turn in episode.turns) for episode in episodes),
        tokens=tuple(sum(turn.tokens for turn in episode.turns) for episode in episodes),
        regrets=tuple(episode.regret for episode in episodes),
        reflected=tuple(_reflection_tokens(episode) for episode in episodes),
        asked=played.asked,
        cut_off=tuple(sum(turn.cut_off for turn in episode.turns) for episode in episodes),
        folded=tuple(sum(turn.folded > 0 for turn in episode.turns) for episode in episodes),
        overflow=tuple(sum(turn.overflow for turn in episode.turns) for episode in episodes),
        world=world,
    )


def _reflection_tokens(episode: Episode) -> int:
    return 0 if episode.reflection is None else len(episode.reflection.completion.token_ids)


def write_tasks(path: Path, rows: Iterable[TaskRow]) -> None:
    """Write one JSON line per row; the file is replaced atomically."""
    text = "".join(json.dumps(row_to_json(row)) + "\n" for row in rows)
    write_atomic(path, text.encode())


def read_tasks(path: Path) -> tuple[TaskRow, ...]:
    """The rows of a file of `write_tasks`; it may be packed by gzip (`.gz`)."""
    content = path.read_bytes()
    packed = unpack_text(path, content) if path.suffix == ".gz" else content
    lines = packed.decode("utf-8", errors="replace").splitlines()
    return tuple(_read_row(path, k, line) for k, line in enumerate(lines, start=1) if line)


def _read_row(path: Path, number: int, line: str) -> TaskRow:
    try:
        return row_from_json(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedError(f"{path} is damaged: line {number} is not a task row") from None


def row_to_json(row: TaskRow) -> dict[str, Any]:
    """A row as plain values: the fields of its task and its own."""
    return {
        **asdict(row.task),
        **{name: value for name, value in asdict(row).items() if name != "task" and value != ""},
    }


def row_from_json(fields: dict[str, Any]) -> TaskRow:
    task = Task(**{name: fields.pop(name) for name in Task.__dataclass_fields__})
    member, world = fields.pop("member"), str(fields.pop("world", ""))
    rest = {name: tuple(value) for name, value in fields.items()}
    return TaskRow(task=task, member=member, world=world, **rest)


Measure = Callable[[TaskRow], float | None]


def score_of(k: int) -> Measure:
    return lambda row: row.scores[k] if k < len(row.scores) else None


def outcome_of(k: int, outcome: str) -> Measure:
    return lambda row: float(row.outcomes[k] == outcome) if k < len(row.outcomes) else None


def success_of(k: int) -> Measure:
    return outcome_of(k, "won")


def regret_of(k: int) -> Measure:
    return lambda row: row.regrets[k] if k < len(row.regrets) else None


def passed_by(k: int) -> Measure:
    return lambda row: float(row.passed(k + 1))


def gain_of(k: int, measure: Callable[[int], Measure]) -> Measure:
    def gain(row: TaskRow) -> float | None:
        first, now = measure(0)(row), measure(k)(row)
        return None if first is None or now is None else now - first

    return gain


def by_task(rows: Sequence[TaskRow], measure: Measure) -> dict[Task, float]:
    """The mean over members for every task that has a value."""
    found: dict[Task, list[float]] = {}
    for row in rows:
        value = measure(row)
        if value is not None:
            found.setdefault(row.task, []).append(value)
    return {task: math.fsum(values) / len(values) for task, values in found.items()}


def rate(rows: Sequence[TaskRow], measure: Measure) -> Estimate | None:
    values = by_task(rows, measure)
    return wilson(math.fsum(values.values()), len(values)) if values else None


def average(rows: Sequence[TaskRow], measure: Measure) -> Estimate | None:
    values = by_task(rows, measure)
    return mean(list(values.values())) if values else None


def ratio(above: Iterable[float], below: Iterable[float]) -> float | None:
    total = sum(below)
    return sum(above) / total if total else None


def select_rows(rows: Sequence[TaskRow], opponent: str | None, seat: int | None) -> list[TaskRow]:
    return [
        row
        for row in rows
        if opponent in (None, row.task.opponent) and seat in (None, row.task.seat)
    ]
