"""Run jobs on one GPU for a fixed time: `python scripts/gpu_jobs.py JOBS.toml --minutes 28`.

For a machine that is yours until a fixed time. Jobs run side by side while their memory fits, in
the order of the file. A job starts only if its time is left, and none makes the others wait longer
than its limit. What a job should keep is copied to the output folder when it ends, in whatever way.
The script needs nothing but Python. docs/offline.md has an example.

    [jobs.start]
    command = "mage warmup qwen_webshop --out adapters"
    seconds = 360             # expected; it does not start with less time left
    memory = 31               # GB of the card; without it the job runs alone
    limit = 600               # stopped after that; default twice the expected time
    needs = ["/data/ready"]   # files that must exist before it starts
    after = []                # jobs that must have succeeded
    reserve = 120             # {minutes} ends that many seconds before the end
    keep = ["adapters"]       # patterns in its folder; its log is kept always

Every job has a folder of its own in the working folder. In a command `{work}` is that folder,
`{project}` this repository and `{minutes}` the time until the end, less the reserve, as
`--run.minutes` of a training wants it.
The file is read again when it changes: new jobs join, and a job that is no longer there is stopped.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parent.parent
_TICK = 0.5
_ENDED = ("done", "failed", "stopped", "late", "blocked")


class UsageError(ValueError):
    """A fault of the file; the message says what to do."""


@dataclass
class Job:
    """A job of the file, and what has become of it."""

    name: str
    command: str
    seconds: float
    memory: float | None = None
    limit: float | None = None
    reserve: float = 0.0
    needs: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)
    state: str = field(default="waiting", init=False)
    began: float = field(default=0.0, init=False)
    took: float = field(default=0.0, init=False)
    stop_at: float = field(default=0.0, init=False)
    kill_at: float | None = field(default=None, init=False)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)


_KEYS = [one.name for one in fields(Job) if one.init and one.name != "name"]
_WORDS = ("needs", "after", "keep")


def read_jobs(path: Path) -> dict[str, Job]:
    """The jobs of a file, checked."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("jobs")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not tables or not isinstance(tables, dict):
        raise UsageError(f"{path} has no table [jobs.NAME]")
    jobs = {}
    for name, table in tables.items():
        if fault := _fault(table, tables):
            raise UsageError(f"{path}: job {name} {fault}")
        jobs[name] = Job(name=name, **table)
    return jobs


def _fault(table: Any, tables: dict[str, Any]) -> str | None:
    """What is wrong with the table of a job."""
    if not isinstance(table, dict):
        return "is no table"
    for missing in {"command", "seconds"} - table.keys():
        return f"needs {missing!r}"
    for key, value in table.items():
        if key not in _KEYS:
            return f"has {key!r}; known are {', '.join(_KEYS)}"
        if key == "command":
            right, kind = isinstance(value, str), "a text"
        elif key in _WORDS:
            right = isinstance(value, list) and all(isinstance(word, str) for word in value)
            kind = "a list of texts"
        else:
            right, kind = type(value) in (int, float) and value >= 0, "a number"
        if not right:
            return f"has {key} = {value!r}, which must be {kind}"
    for other in set(table.get("after", [])) - tables.keys():
        return f"waits for {other!r}, which is not in the file"
    return None


@dataclass
class Lease:
    """The time and the memory, and the jobs that share them."""

    path: Path
    work: Path
    out: Path
    seconds: float
    memory: float
    grace: float  # seconds between the request to stop and the kill
    jobs: dict[str, Job] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    text: bytes | None = None  # of the file when it was last read; empty if there is no file
    stopping: bool = False

    def run(self) -> bool:
        """Run the jobs until all have ended or the time is over; whether all are done."""
        self.out.mkdir(parents=True, exist_ok=True)
        while True:
            self._read()
            self._collect()
            if self.left() <= 0 or self.stopping:
                self._end()
            else:
                self._start()
            if all(job.state in _ENDED for job in self.jobs.values()):
                return all(job.state == "done" for job in self.jobs.values())
            time.sleep(_TICK)

    def left(self) -> float:
        return self.began + self.seconds - time.monotonic()

    def _read(self) -> None:
        """Read the file if it has changed. A fault in it is told; the jobs go on."""
        text = b""
        with contextlib.suppress(OSError):  # `read_jobs` tells what is wrong
            text = self.path.read_bytes()
        if text == self.text:
            return
        first, self.text = self.text is None, text
        try:
            found = read_jobs(self.path)
        except UsageError as error:
            if first:
                raise
            self._tell(str(error))
            return
        for name, job in self.jobs.items():
            if name not in found and job.state not in _ENDED:
                self._stop(job, "no longer in the file")
        new = {name: job for name, job in found.items() if name not in self.jobs}
        waiting = {n: found.get(n, j) for n, j in self.jobs.items() if j.state == "waiting"}
        self.jobs |= waiting | new
        # The order of the file decides; ended and stopped jobs come last.
        self.jobs = {n: self.jobs[n] for n in [*found, *(self.jobs.keys() - found.keys())]}

    def _start(self) -> None:
        """Start what can start, in the order of the file."""
        for job in self._in("waiting"):
            others = [self.jobs[name].state for name in job.after]
            if any(state in _ENDED and state != "done" for state in others):
                self._note(job, "blocked")
            elif self.left() < job.seconds:
                self._note(job, "late")
            elif all(state == "done" for state in others) and self._fits(job):
                self._launch(job)

    def _fits(self, job: Job) -> bool:
        running = list(self._in("running"))
        if any(not Path(path).exists() for path in job.needs):
            return False
        if job.memory is None or any(other.memory is None for other in running):
            return not running
        return job.memory + sum(other.memory or 0.0 for other in running) <= self.memory

    def _launch(self, job: Job) -> None:
        folder = self.work / job.name
        folder.mkdir(parents=True, exist_ok=True)
        minutes = max(0.0, self.left() - job.reserve) / 60
        command = job.command.replace("{work}", str(self.work.resolve()))
        command = command.replace("{project}", str(_PROJECT))
        command = command.replace("{minutes}", f"{minutes:.2f}")
        with open(folder / "log.txt", "ab") as log:
            job.process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        job.began = time.monotonic()
        job.stop_at = job.began + (job.limit or 2 * job.seconds)
        self._note(job, "running")

    def _collect(self) -> None:
        """Note the jobs that have ended; stop those beyond their limit."""
        now = time.monotonic()
        for job in self._in("running"):
            assert job.process
            if job.process.poll() is None:
                if job.kill_at is None and now >= job.stop_at:
                    self._stop(job, "beyond its limit")
                elif job.kill_at is not None and now >= job.kill_at:
                    _signal(job.process, signal.SIGKILL)
                continue
            _signal(job.process, signal.SIGKILL)  # what it has left behind
            job.took = now - job.began
            self._keep(job)
            code = job.process.returncode
            ended = "stopped" if job.kill_at is not None else "failed"
            self._note(job, "done" if code == 0 else ended)

    def _stop(self, job: Job, why: str) -> None:
        """Ask a job to stop; it is killed after a while. A training saves a checkpoint."""
        self._tell(f"{job.name}: {why}")
        if job.process is None:
            self._note(job, "stopped")
        else:
            job.kill_at = time.monotonic() + self.grace
            _signal(job.process, signal.SIGTERM)

    def _end(self) -> None:
        """The time is over: nothing starts, and everything is asked to stop."""
        for job in self._in("waiting"):
            self._note(job, "late")
        for job in self._in("running"):
            if job.kill_at is None:
                self._stop(job, "the time is over")

    def _in(self, state: str) -> Iterator[Job]:
        return iter([job for job in self.jobs.values() if job.state == state])

    def _keep(self, job: Job) -> None:
        folder, target = self.work / job.name, self.out / job.name
        for pattern in ["log.txt", *job.keep]:
            for path in folder.glob(pattern):
                place = target / path.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.copytree(path, place, dirs_exist_ok=True)
                else:
                    shutil.copy(path, place)

    def _note(self, job: Job, state: str) -> None:
        job.state = state
        self._tell(f"{job.name}: {state}" + (f" after {job.took:.0f} s" if job.took else ""))
        rows = [self._row(one) for one in self.jobs.values()]
        partial = self.out / "jobs.json.partial"
        partial.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        partial.rename(self.out / "jobs.json")

    def _row(self, job: Job) -> dict[str, Any]:
        began = round(job.began - self.began, 1) if job.began else None
        code = job.process.returncode if job.process else None
        row = {"job": job.name, "state": job.state, "began": began}
        return row | {"seconds": round(job.took, 1), "code": code, "command": job.command}

    def _tell(self, text: str) -> None:
        print(f"[{self.seconds - self.left():6.0f} s] {text}", flush=True)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To the job and everything that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", type=Path, help="the file with the jobs")
    parser.add_argument("--minutes", type=float, required=True, help="until everything has ended")
    parser.add_argument("--memory", type=float, default=130.0, help="GB of the card for the jobs")
    parser.add_argument("--work", type=Path, default=Path("gpu_jobs"), help="folders of the jobs")
    parser.add_argument("--out", type=Path, default=Path("gpu_jobs_out"), help="what is kept")
    parser.add_argument("--grace", type=float, default=20.0, help="seconds that a job has to stop")
    words = parser.parse_args()
    # The last jobs get the time to save: they are asked to stop before the end.
    seconds = max(0.0, 60 * words.minutes - words.grace)
    lease = Lease(words.jobs, words.work, words.out, seconds, words.memory, words.grace)

    def stop(number: int, frame: object) -> None:
        lease.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        return 0 if lease.run() else 1
    except UsageError as error:
        print(error, file=sys.stderr)
    except OSError as error:  # a folder that cannot be written, or no bash
        print(f"{error.filename or 'gpu_jobs.py'}: {error.strerror or error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
