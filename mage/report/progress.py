"""The live display of a run: progress bars, the time left, and scores beside their ceilings.

Without a terminal (a log file, a pipe) the same figures are printed as one line every 30 seconds.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import fmean
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from mage.config.recipe import Recipe
from mage.evaluation.figures import Cell, Evaluation
from mage.opponents.base import population_of
from mage.report.plain import show, training_problems
from mage.report.run_results import SCORE
from mage.training.callbacks import Callback, Metrics

_RECENT = 20  # updates whose mean is shown: a single update is mostly noise
_EVERY = 30.0  # seconds between lines without a terminal
_STAGES = {"before": "before", "after": "after", "emptied": "memory emptied"}


@dataclass
class Pace:
    """Durations of updates and panels so far, and the time left computed from them."""

    recipe: Recipe
    updates: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    panels: dict[str, float] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    spent: float = 0.0  # seconds of all updates of this process

    def updated(self, seconds: float) -> None:
        self.updates.append(seconds)
        self.spent += seconds
        self.since = time.monotonic()

    def evaluated(self, kind: str) -> None:
        now = time.monotonic()
        self.panels[kind], self.since = now - self.since, now

    def left(self, done: int) -> float | None:
        """Seconds to the end of the run: updates, select panels and final panels."""
        if not self.updates:
            return None
        run, sizes = self.recipe.run, self.recipe.evaluate
        select = self.panels.get("select", 0.0)
        final = next(
            (self.panels[kind] for kind in ("after", "before") if kind in self.panels),
            select * sizes.final_size * sizes.plays / sizes.size,
        )
        last, every = self._last(done), run.evaluate_every or run.updates
        selects = sum(number % every == 0 or number == last for number in range(done + 1, last + 1))
        finals = len(sizes.splits) * sum(kind not in self.panels for kind in ("after", "emptied"))
        return (last - done) * fmean(self.updates) + selects * select + finals * final

    def _last(self, done: int) -> int:
        """The last update, as far as run.minutes can be foreseen."""
        run = self.recipe.run
        if run.minutes is None:
            return run.updates
        more = max(0.0, 60 * run.minutes - self.spent) / fmean(self.updates)
        return min(run.updates, done + math.ceil(more))


class TerminalCallback(Callback):
    """Shows a run while it runs. A context manager: on exit the terminal is restored."""

    def __init__(self, recipe: Recipe, console: Console, bounds: Cell | None = None) -> None:
        self.recipe, self.console = recipe, console
        self.bounds = bounds if _same_pool(recipe) else None
        self.pace, self.recent = Pace(recipe), deque[Metrics](maxlen=_RECENT)
        self.done, self.printed_at = 0, time.monotonic()
        self.display = _Display(console)
        self.training = self.display.add_task(
            "training", total=recipe.run.updates, visible=False, unit="update"
        )
        self.panel: TaskID | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.display.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.display.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    # -- events of the trainer

    def on_update(
        self, done: int, total: int, metrics: Metrics, timing: Mapping[str, float]
    ) -> None:
        self.pace.updated(timing["total"])
        self.recent.append(metrics)
        self.done = done
        left = self.pace.left(done)
        ends = None if left is None else time.monotonic() + left
        self.display.lines = _lines(self.recent, self.bounds)
        self.display.update(self.training, completed=done, visible=True, ends=ends)
        if not self.console.is_terminal and (
            done == total or time.monotonic() - self.printed_at > _EVERY
        ):
            self.printed_at = time.monotonic()
            first = f"update {done} of {total}{_time_left(ends)}"
            self.say(" ".join("; ".join([first, *self.display.lines]).split()))

    def on_tasks_played(self, done: int, total: int, name: str) -> None:
        if self.panel is None:
            self.panel = self.display.add_task(_title(name), total=total, unit="task")
        self.display.update(self.panel, completed=done)

    def on_evaluation(self, name: str, update: int, evaluation: Evaluation) -> None:
        self.pace.evaluated(name.split("_")[0])
        if self.panel is not None:
            self.display.remove_task(self.panel)
            self.panel = None
        if self.bounds is None and evaluation.split == "test" and _same_pool(self.recipe):
            self.bounds = evaluation.overall
        scores = ", ".join(show(SCORE, figures) for figures in evaluation.overall.episodes)
        self.say(f"{_title(name):<27} score {scores}")

    def on_compile(self, line: str) -> None:
        if self.console.is_terminal:
            self.display.lines = [f"learning: {line}"]
        elif time.monotonic() - self.printed_at > _EVERY:
            self.printed_at = time.monotonic()
            self.say(f"learning: {line}")

    def on_warmup(self, line: str) -> None:
        if not line.startswith("step") or time.monotonic() - self.printed_at > _EVERY:
            self.printed_at = time.monotonic()
            self.say(f"warm-up: {line}")

    def on_warning(self, line: str) -> None:
        self.say(f"warning: {line}")


class _Display(Progress):
    """Progress bars with lines of figures below them."""

    def __init__(self, console: Console) -> None:
        self.lines: list[str] = []
        count = TextColumn("{task.fields[unit]} {task.completed:.0f} of {task.total:.0f}")
        columns = TextColumn("{task.description}"), BarColumn(), count, _Left()
        super().__init__(*columns, console=console, transient=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield from (Text(line, style="dim") for line in self.lines)


class _Left(ProgressColumn):
    """The estimated time left."""

    def render(self, task: Task) -> Text:
        return Text(_time_left(task.fields.get("ends")).removeprefix(", "), style="cyan")


def _time_left(ends: float | None) -> str:
    if ends is None:
        return ""
    return f", {timedelta(seconds=round(max(0.0, ends - time.monotonic())))} left"


def _same_pool(recipe: Recipe) -> bool:
    """Whether training and test have the same opponents, so that test ceilings hold for both."""
    population = population_of(recipe)
    return population.pool("train") == population.pool("test")


def _title(name: str) -> str:
    kind, _, rest = name.partition("_")
    if kind == "select":
        return f"update {int(rest)} (select)"
    return f"{_STAGES.get(kind, kind)} (final {rest})"


def _lines(recent: Iterable[dict[str, Any]], bounds: Cell | None) -> list[str]:
    """Means over the last updates: scores and ceilings by episode, entropy, illegal replies."""
    held = list(recent)
    names = [name for name in held[-1] if name.startswith("score_")]
    scores = "  ".join(
        f"{fmean(one[name] for one in held if one.get(name) is not None):+.3f}"
        for name in sorted(names, key=_number)
    )
    of = "of 1 update" if len(held) == 1 else f"mean of {len(held)} updates"
    lines = [f"score by episode in training  {scores}  ({of})"]
    if bounds is not None and bounds.non_adapting is not None:
        best = "  ".join(
            "-" if one.ceiling is None else f"{one.ceiling:+.3f}" for one in bounds.episodes
        )
        lines.append(
            f"best possible learner         {best}  (without adapting {bounds.non_adapting:+.3f})"
        )
    entropy, illegal = (
        fmean(one.get(name) or 0.0 for one in held) for name in ("action_entropy", "illegal_rate")
    )
    lines.append(f"action entropy {entropy:.3f}, illegal replies {100 * illegal:.1f} %")
    return [*lines, *training_problems(held)]


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])
