"""SIGKILL for ranks of torchrun and of a Ray cluster, and for torchrun itself, at random moments.

The launcher starts all ranks again. The run must end by itself, with the files of a run that was
not interrupted, byte for byte. If torchrun is killed, its ranks must end, and `--resume` continues.
A cluster is started only if the package ray is installed.
"""

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mage.run_folder.files import is_alive
from tests.torture.kills import differences
from tests.torture.processes import Ended
from tests.torture.rank_kill import COUNTED, KILLED, PLACE, PLAN
from tests.torture.result import Result, show_progress
from tests.torture.runs import train_words, write_recipe

ROOT = Path(__file__).parents[2]
_RANKS = 2
_KILLS_OF_A_JOB = 3
Moment = dict[str, int | float | None]
# Place of the job, words of `mage`, number of restarts.
Launch = Callable[[Path, list[str], int], Ended]


def torture(place: Path, scale: float, seed: int) -> list[Result]:
    """Kill ranks of torchrun, and of a cluster where one can be started."""
    found = []
    if kills := round(6 * scale):
        found.append(_torture("torchrun, two ranks", place / "torchrun", _torchrun, kills, seed))
        kills = round(3 * scale)
        found.append(_kill_launchers("torchrun itself", place / "torchrun", kills, seed))
    if (kills := round(3 * scale)) and importlib.util.find_spec("ray"):
        with _start_cluster(place / "cluster"):
            found.append(_torture("mage cluster, ray", place / "cluster", _cluster, kills, seed))
    return found


def _torture(name: str, place: Path, launch: Launch, kills: int, seed: int) -> Result:
    prepare(place)
    good, begun = place / "good", time.monotonic()
    ended = _run(place, good, [], launch)
    assert ended.code == 0, ended.output
    seconds, operations = time.monotonic() - begun, int((place / COUNTED).read_text())
    rng, folder, done, failures = random.Random(f"{seed}/{name}"), place / "runs", 0, []
    while done < kills:
        count = min(_KILLS_OF_A_JOB, kills - done)
        moments = [_moment(rng, seconds, operations) for _ in range(count)]
        ended = _run(place, folder, moments, launch)
        done += (place / KILLED).read_text().count("\n") if (place / KILLED).is_file() else 0
        found = [f"{one} after {moments}" for one in _compare(good, folder, ended)]
        failures += found
        show_progress(name, done, kills, found)
        shutil.rmtree(folder, ignore_errors=True)
    return Result(f"SIGKILL: {name}", done, tuple(failures))


def prepare(place: Path) -> None:
    """Write the recipe, and the file that every Python process of the job imports."""
    (place / "site").mkdir(parents=True, exist_ok=True)
    write_recipe(place)
    (place / "site" / "sitecustomize.py").write_text(
        "from tests.torture.rank_kill import install\n\ninstall()\n"
    )


def environment(place: Path) -> dict[str, str]:
    paths = [str(place / "site"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {PLACE: str(place), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _moment(rng: random.Random, seconds: float, operations: int) -> Moment:
    """Half of the kills come before a file operation of rank 0, which writes the run folder."""
    if rng.random() < 0.5:
        return {"rank": 0, "seconds": None, "operation": rng.randrange(1, operations + 1)}
    rank, after = rng.randrange(_RANKS), rng.uniform(0.0, 0.7 * seconds)
    return {"rank": rank, "seconds": round(after, 2), "operation": None}


def _run(place: Path, runs: Path, moments: list[Moment], launch: Launch) -> Ended:
    (place / KILLED).unlink(missing_ok=True)
    (place / PLAN).write_text(json.dumps({"runs": str(runs), "moments": moments}))
    return launch(place, _words(place, runs), len(moments))


def _words(place: Path, runs: Path) -> list[str]:
    return train_words(place / "tiny.toml", runs, "run", f"--run.workers={_RANKS}")


def _torchrun(place: Path, words: list[str], restarts: int) -> Ended:
    process = _start_torchrun(place, words, restarts)
    return Ended(process.wait(), (place / "log").read_text(errors="replace"))


def _start_torchrun(place: Path, words: list[str], restarts: int) -> subprocess.Popen[bytes]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_RANKS}"]
    command = [*launcher, f"--max-restarts={restarts}", "-m", "mage", *words]
    with open(place / "log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | environment(place),
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )


def _kill_launchers(name: str, place: Path, kills: int, seed: int) -> Result:
    """Kill torchrun, wait for the end of its ranks, and continue; after the ranks were tortured."""
    rng, folder, failures = random.Random(f"{seed}/{name}"), place / "runs", []
    for number in range(kills):
        process = _start_torchrun(place, _words(place, folder), 0)
        _wait_for_ranks(process)
        time.sleep(rng.uniform(0.0, 8.0))
        ranks = _children(process.pid)
        process.kill()
        process.wait()
        left = _left_after(ranks, seconds=120.0)
        found = [f"process {one} is left" for one in left]
        failures += found
        show_progress(name, number + 1, kills, found)
    failures += _compare(place / "good", folder, _run(place, folder, [], _torchrun))
    return Result(f"SIGKILL: {name}", kills, tuple(failures))


def _wait_for_ranks(process: subprocess.Popen[bytes]) -> None:
    while len(_children(process.pid)) < _RANKS and process.poll() is None:
        time.sleep(0.1)


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.is_file() else []


def _left_after(processes: list[int], seconds: float) -> list[int]:
    """The processes that have not ended by themselves; they are killed."""
    end = time.monotonic() + seconds
    while (left := [one for one in processes if is_alive(one)]) and time.monotonic() < end:
        time.sleep(0.2)
    for one in left:
        os.kill(one, signal.SIGKILL)
    return left


@contextmanager
def _start_cluster(place: Path) -> Iterator[None]:
    """A Ray cluster of one node, whose processes know where the plan is."""
    ray = importlib.import_module("ray")
    os.environ |= environment(place)
    try:
        ray.init(num_cpus=_RANKS, num_gpus=0, include_dashboard=False, logging_level="error")
        yield
    finally:
        ray.shutdown()


def _cluster(place: Path, words: list[str], restarts: int) -> Ended:
    from mage.ranks.cluster import ClusterJob, run_on_cluster

    shown: list[str] = []
    job = ClusterJob(tuple(words), _RANKS, max_restarts=restarts)
    ray = importlib.import_module("ray")
    return Ended(run_on_cluster(ray, job, shown.append, lambda: False), "".join(shown))


def _compare(good: Path, folder: Path, ended: Ended) -> list[str]:
    if ended.code != 0 or "Traceback" in ended.output:
        return [f"exit code {ended.code}: {ended.output.strip()[-1500:]}"]
    return [f"{name} differs" for name in differences(good, folder)]
