"""RunResults: the results that a run folder holds so far, read once, as records."""

import re
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from mage.evaluation.figures import Cell, EpisodeFigures, Evaluation
from mage.evaluation.rows import TaskRow, read_tasks
from mage.evaluation.statistics import Estimate
from mage.run_folder import Json, RunError, RunFolder
from mage.types import Split

Stage = Literal["before", "after", "emptied"]
STAGES: tuple[Stage, ...] = ("before", "after", "emptied")
SPLITS: tuple[Split, ...] = ("test", "ood", "train")
TITLES: dict[Stage, str] = {
    "before": "before training",
    "after": "after training",
    "emptied": "without memory",
}

_EVALUATION = TypeAdapter(Evaluation)
_SELECT = re.compile(r"select_(\d+)")


def title_of(stage: Stage, among: Container[Stage]) -> str:
    """The title of a stage; a run without training has one stage, the model as it is."""
    return TITLES[stage] if "before" in among or "emptied" in among else "as it is"


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that a report shows over a run; `metric` is its name in metrics.jsonl."""

    metric: str
    title: str
    percent: bool
    of: Callable[[EpisodeFigures], Estimate | None]


SCORE = Measure("score", "score", False, lambda figures: figures.score)
SUCCESS = Measure("success", "success", True, lambda figures: figures.success)
PASS = Measure("pass", "Pass@k", True, lambda figures: figures.pass_at)
DRAWS = Measure("draws", "draws", True, lambda figures: figures.draws)
REGRET = Measure("regret", "regret a turn", False, lambda figures: figures.regret)


@dataclass(frozen=True, slots=True)
class RunResults:
    """`selections`: overall figures on the select panel by update. `finals`: the final panels."""

    folder: RunFolder
    metrics: tuple[Json, ...]
    selections: tuple[tuple[int, Cell], ...]
    finals: dict[tuple[Stage, Split], Evaluation]
    chosen_update: int | None
    finished: bool
    seconds: float
    versions: Json
    world: str = ""  # the world of a mix that these results are about; empty = all of them

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Updates and values of one metric, where it has a value."""
        found = [
            (record["update"], record[name])
            for record in self.metrics
            if record.get(name) is not None
        ]
        return [update for update, _ in found], [float(value) for _, value in found]

    @property
    def title(self) -> str:
        return self.folder.recipe.run.name or self.folder.path.name

    @property
    def environment(self) -> str:
        return self.world or self.folder.recipe.environments.name

    def by_world(self) -> "list[RunResults]":
        """The final panels of every world of a mix; empty for other environments."""
        names = [one.environment for found in self.finals.values() for one in found.worlds]
        return [self._in_world(name) for name in dict.fromkeys(names)]

    def _in_world(self, name: str) -> "RunResults":
        finals = {
            key: one
            for key, found in self.finals.items()
            for one in found.worlds
            if one.environment == name
        }
        return replace(self, selections=(), finals=finals, world=name)

    @property
    def updates(self) -> int:
        return max((record["update"] for record in self.metrics), default=0)

    @property
    def played(self) -> int:
        """Episodes played in training; in poker, hands."""
        return int(sum(self.series("episodes")[1]))

    @property
    def episodes(self) -> int:
        """The most episodes of a meta-episode, in training or evaluation."""
        recipe = self.folder.recipe
        return max(recipe.play.episodes, recipe.evaluation_episodes())

    @property
    def splits(self) -> list[Split]:
        """The splits with a final panel, the most important first."""
        return [split for split in SPLITS if any(found == split for _, found in self.finals)]

    @property
    def bounds(self) -> Cell | None:
        """Overall figures that carry the exact lines; they are equal in all panels of a split."""
        cells = [cell for _, cell in self.selections] + [
            self.finals[key].overall for key in self.finals if key[1] == "test"
        ]
        return next((cell for cell in cells if cell.non_adapting is not None), None)

    @property
    def has_stakes(self) -> bool:
        """Whether a loss can cost more than one point, as in poker: then wins say little."""
        return self.folder.forfeit_score() < -1

    @property
    def measure(self) -> Measure:
        """The score where exact lines are known or stakes differ, otherwise the success rate."""
        return SCORE if self.bounds or self.has_stakes else SUCCESS

    def overall(self, split: Split) -> dict[Stage, Cell]:
        """The overall figures of the final panels of a split that have been played."""
        return {
            stage: self.finals[stage, split].overall
            for stage in STAGES
            if (stage, split) in self.finals
        }

    def measure_of(self, split: Split) -> Measure:
        """`measure`, for the final panel of one split."""
        cells = self.overall(split).values()
        exact = any(cell.non_adapting is not None for cell in cells)
        return SCORE if exact or self.has_stakes else SUCCESS

    def rows(self, stage: Stage, split: Split) -> tuple[TaskRow, ...] | None:
        """The stored rows of all tasks of a final panel, for paired comparisons."""
        rows = read_rows(self.folder, f"{stage}_{split}")
        if rows is None or not self.world:
            return rows
        return tuple(row for row in rows if row.task.environment == self.world)


def read_rows(folder: RunFolder, name: str) -> tuple[TaskRow, ...] | None:
    """The task rows of an evaluation; None if they are not stored."""
    path = folder.rows(name)
    return read_tasks(path) if path.is_file() else None


def read_run_results(folder: RunFolder, *, brief: bool = False) -> RunResults:
    """The results of a run. `brief`: only what a list of runs shows, with the newest evaluations.

    Then metrics are those with warnings and the last ones.
    """
    if not brief:
        folder.check_evaluations()
    names = folder.evaluation_names()
    keys = [(stage, split) for split in SPLITS for stage in STAGES]
    finals = {key: "_".join(key) for key in keys if not brief or key == ("after", "test")}
    selections = sorted(
        (int(match[1]), name) for name in names if (match := _SELECT.fullmatch(name))
    )
    selections = selections[-1:] if brief else selections
    cells = tuple((update, read_evaluation(folder, name).overall) for update, name in selections)
    summary = folder.read_summary() if (folder.path / "summary.json").is_file() else None
    metrics = tuple(folder.brief_metrics() if brief else folder.metrics())
    if summary is not None and not brief and len(metrics) != summary.get("updates", len(metrics)):
        raise RunError(
            f"{folder.path / 'metrics.sha256'} is damaged: {len(metrics)} updates have checksums, "
            f"the summary counts {summary['updates']}"
        )
    return RunResults(
        folder=folder,
        metrics=metrics,
        selections=cells,
        finals={
            key: read_evaluation(folder, name) for key, name in finals.items() if name in names
        },
        chosen_update=_chosen(cells) if summary is None else int(summary["chosen_update"]),
        finished=summary is not None,
        seconds=float(sum(record["total"] for record in folder.timing())),
        versions={} if brief else folder.read_versions(),
    )


def read_evaluation(folder: RunFolder, name: str) -> Evaluation:
    """A stored evaluation without its rows."""
    try:
        return _EVALUATION.validate_python(_unbounded(folder.read_evaluation(name)) | {"rows": ()})
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise RunError(
            f"evaluation {name} of {folder.path} has another format than this version of MAGE "
            f"writes ({place}: {fault['msg']}). Evaluate the checkpoint again: mage evaluate RUN"
        ) from None


def _chosen(selections: tuple[tuple[int, Cell], ...]) -> int | None:
    """The update that the trainer would choose now: the first with the best last-episode score."""
    scores = {
        update: score.value
        for update, cell in selections
        if (score := cell.episodes[-1].score) is not None
    }
    return max(scores, key=lambda update: scores[update]) if scores else None


def _unbounded(value: Any) -> Any:
    """JSON stores an infinite end of an interval as null; restore it."""
    if isinstance(value, list):
        return [_unbounded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ends = {}
    if {"value", "low", "high"} <= value.keys():
        ends = {"low": float("-inf"), "high": float("inf")}
    return {
        name: ends[name] if item is None and name in ends else _unbounded(item)
        for name, item in value.items()
    }
