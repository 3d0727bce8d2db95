"""Start and stop of a run with several ranks: torchrun, signals, killed ranks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from processes import start_mage, wait

from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.trainer import train
from mage.training.watch import is_alive

pytestmark = pytest.mark.e2e
RECIPE = """
[run]
updates = 4
save_every = 1
evaluate_every = 4
episodes_every = 0
threads = 1
workers = 2
[environments]
name = "kuhn_poker"
[opponents.train]
conservative = 0.5
aggressive = 0.5
[play]
groups = 2
members = 3
[agent]
max_tokens = 8
reflection_tokens = 24
[engines]
name = "local"
slots = 64
context = 512
[learn]
lr = 1e-3
minibatches = 2
[evaluate]
size = 4
final_size = 4
temperature = 1.0
top_p = 1.0
top_k = 0
"""
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stop")
    (folder / "tiny.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def whole(place: Path) -> RunFolder:
    """A run of two workers that nothing has interrupted."""
    assert wait(start(place, "whole")) == 0
    return RunFolder.open(place / "runs" / "whole")


def start(place: Path, name: str) -> BaseProcess:
    """A run of two workers: its first process is forked, the other one spawned."""
    words = ["train", "tiny.toml", f"--run.name={name}"]
    return start_mage(words, place, place / f"{name}.log")


def start_command(place: Path, name: str, words: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """The same run as a command of its own, below torchrun if `words` name it."""
    command = [sys.executable, *words, "-m", "mage", "train", "tiny.toml", f"--run.name={name}"]
    with open(place / f"{name}.log", "wb") as log:
        return subprocess.Popen(command, cwd=place, stdout=log, stderr=log, start_new_session=True)


def wait_until(condition: Callable[[], bool], runs: Callable[[], bool]) -> None:
    while not condition():
        assert runs(), "the run must not end before"
        time.sleep(0.02)


def updates(place: Path, name: str) -> int:
    path = place / "runs" / name / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()]


def ranks_of(pid: int) -> dict[int, int]:
    """The processes that a torchrun agent has started, by rank."""
    found = {}
    for child in children(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                if line.startswith(b"RANK="):
                    found[int(line[5:])] = child
    return found


def all_end(started: Sequence[int]) -> bool:
    """Whether nothing that a run has started is left after a while."""
    deadline = time.monotonic() + 60
    while any(map(is_alive, started)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(is_alive, started))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_torchrun_restarts_after_killed_ranks_and_equals_spawned_workers(
    place: Path, whole: RunFolder
) -> None:
    """Rank 0 is killed after the first update and rank 1 of the restarted run after the second."""
    process = start_command(place, "killed", [*TORCHRUN, "--max-restarts", "2"])
    ended: set[int] = set()

    def is_training(update: int) -> bool:
        running = set(ranks_of(process.pid).values())
        return len(running - ended) == 2 and updates(place, "killed") >= update

    for rank in (0, 1):
        wait_until(partial(is_training, rank + 1), lambda: process.poll() is None)
        ranks = ranks_of(process.pid)
        ended |= set(ranks.values())
        os.kill(ranks[rank], signal.SIGKILL)
    log = place / "killed.log"
    assert process.wait() == 0, log.read_text()
    assert all_end(list(ended))
    run = RunFolder.open(place / "runs" / "killed")
    assert run.metrics() == whole.metrics()
    weights = Path("checkpoints") / "update_000004" / "model.safetensors"
    assert (run.path / weights).read_bytes() == (whole.path / weights).read_bytes()
    for rank in (0, 1):
        assert f"mage: rank {rank} on " in log.read_text()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_resumed_run_equals_one_that_was_not_stopped(
    place: Path, whole: RunFolder, number: signal.Signals
) -> None:
    name = f"stopped_{number.name}"
    process = start(place, name)
    wait_until(lambda: updates(place, name) >= 1, process.is_alive)
    assert process.pid is not None
    started = children(process.pid)
    os.killpg(process.pid, number)
    assert wait(process) == 130
    assert all_end(started)
    log = (place / f"{name}.log").read_text()
    assert "Stopped. The run is saved." in log
    assert "Traceback" not in log
    run = RunFolder.open(place / "runs" / name)
    train(run.path, Callback(), lambda: False)
    assert run.metrics() == whole.metrics()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_ctrl_c_while_workers_start_ends_all_of_them(place: Path) -> None:
    process = start_command(place, "early")
    wait_until(  # a worker and its tracker
        lambda: len(children(process.pid)) >= 2, lambda: process.poll() is None
    )
    started = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert all_end(started)
    assert "Traceback" not in (place / "early.log").read_text()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_killed_worker_ends_the_run_with_one_message(place: Path) -> None:
    process = start(place, "lost")
    wait_until(lambda: updates(place, "lost") >= 1, process.is_alive)
    assert process.pid is not None
    started = children(process.pid)
    os.kill(max(started), signal.SIGKILL)
    assert wait(process) == 2
    assert all_end(started)
    log = (place / "lost.log").read_text()
    assert "mage: rank 1 on " in log
    assert "update 1: learn" in log, "the last lines of its log"
    assert "Traceback" not in log


def test_ranks_with_different_recipes_are_refused(place: Path) -> None:
    script = place / "rank.sh"
    script.write_text(
        "#!/bin/sh\n"
        f'exec "{sys.executable}" -m mage train tiny.toml --run.name=differ --run.seed=$RANK\n'
    )
    script.chmod(0o755)
    with open(place / "differ.log", "wb") as log:
        code = subprocess.call(
            [sys.executable, *TORCHRUN, "--no-python", str(script)],
            cwd=place,
            stdout=log,
            stderr=log,
        )
    assert code != 0
    text = (place / "differ.log").read_text()
    assert text.count("has another recipe than rank 0") == 1
    assert "exitcode  : 2 " in text
    assert not (place / "runs" / "differ").exists()
