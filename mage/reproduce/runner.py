"""The runner: runs the missing jobs of a plan in several processes and reports progress.

Progress is read from the run folders, so processes exchange nothing, and runs from another machine
or from before a kill count. The runner never deletes a run folder.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mage.ranks.rank_log import last_lines
from mage.ranks.ray_nodes import LOST
from mage.reproduce.executors import LOG, Executor, Worker
from mage.reproduce.plan import Job, Plan, finished_runs
from mage.run_folder import RunFolder

_TICK = 0.5
_TRIES = 3  # starts of a run whose node is lost
_TRAINING = 0.9  # fraction of the work of a run that is training, for the progress bar


@dataclass(frozen=True, slots=True)
class RunnerProgress:
    """Progress: runs done and active, the fraction of all work done, and seconds left if known."""

    done: int
    total: int
    running: tuple[str, ...]
    fraction: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed, and the last lines of its log."""

    name: str
    text: str


@dataclass
class Runner:
    """Starts workers for the jobs that are not done, as many at a time as the executor has room."""

    plan: Plan
    runs: Path
    executor: Executor
    failures: list[Failure] = field(default_factory=list)
    working: dict[str, Worker] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)

    def run(self, report: Callable[[RunnerProgress], None], stop: Callable[[], bool]) -> bool:
        """Run the missing jobs; False if `stop` ended it early. `failures` holds failed runs."""
        done = finished_runs(self.plan, self.runs)
        waiting = [job for job in self.plan.jobs if job.name not in done]
        # Long jobs first, so that no long job runs alone at the end.
        waiting.sort(key=lambda job: job.core_seconds or 0.0, reverse=True)
        pace = _Progress(self.plan, self.runs)
        try:
            while (waiting or self.working) and not stop():
                while waiting and len(self.working) < self.executor.size:
                    self._start(waiting.pop(0))
                time.sleep(_TICK)
                lost = self._collect()
                waiting += [job for job in self.plan.jobs if job.name in lost]
                report(pace.standing(tuple(self.working)))
            return not (waiting or self.working)
        finally:
            self._stop_workers()

    def _start(self, job: Job) -> None:
        path = self.runs / job.name
        if not (path / "recipe.toml").is_file():
            RunFolder.create(path, job.recipe)
        self.starts[job.name] += 1
        self.working[job.name] = self.executor.start(path, job.recipe)

    def _collect(self) -> set[str]:
        """Remove workers that have ended; the names of runs to start again on another node."""
        lost: set[str] = set()
        for name, worker in list(self.working.items()):
            if worker.poll() is None:
                continue
            del self.working[name]
            if worker.returncode == LOST and self.starts[name] < _TRIES:
                lost.add(name)
            elif worker.returncode != 0:  # a stop by this runner is not collected
                lines = last_lines(self.runs / name / LOG, 3)
                self.failures.append(Failure(name, "\n".join(lines)))
        return lost

    def _stop_workers(self) -> None:
        """Ask all workers to stop and wait until they have saved."""
        for worker in self.working.values():
            worker.terminate()
        for worker in self.working.values():
            worker.wait()
        self.working.clear()


class _Progress:
    """The finished work in units of the plan's estimates, and the speed of this session."""

    def __init__(self, plan: Plan, runs: Path) -> None:
        self.jobs, self.runs = plan.jobs, runs
        self.finished: set[str] = set()
        self.began, self.before = time.monotonic(), self._work()

    def _work(self) -> float:
        return sum(_weight(job) * self._fraction(job) for job in self.jobs)

    def _fraction(self, job: Job) -> float:
        if job.name in self.finished or (self.runs / job.name / "summary.json").is_file():
            self.finished.add(job.name)
            return 1.0
        metrics = self.runs / job.name / "metrics.jsonl"
        updates = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
        return _TRAINING * min(1.0, updates / job.recipe.run.updates) if job.trains else 0.0

    def standing(self, running: Sequence[str]) -> RunnerProgress:
        total, now = sum(map(_weight, self.jobs)), self._work()
        gained, spent = now - self.before, time.monotonic() - self.began
        left = (total - now) * spent / gained if gained > 0 else None
        return RunnerProgress(len(self.finished), len(self.jobs), tuple(running), now / total, left)


def _weight(job: Job) -> float:
    if job.core_seconds is not None:
        return job.core_seconds
    return float(job.training_episodes + job.evaluation_episodes)
