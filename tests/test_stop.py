"""Start and stop of a run with several ranks: torchrun, signals, killed ranks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.trainer import train
from mage.training.watch import is_alive

pytestmark = pytest.mark.e2e
RECIPE = """
[run]
updates = 3
save_every = 1
evaluate_every = 3
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
MAGE = [sys.executable, "-m", "mage"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stop")
    (folder / "tiny.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def whole(place: Path) -> RunFolder:
    """A run of two workers that nothing has interrupted."""
    assert start(place, "whole", [*MAGE]).wait() == 0
    return RunFolder.open(place / "runs" / "whole")


def start(place: Path, name: str, words: Sequence[str], *more: str) -> subprocess.Popen[bytes]:
    command = [*words, "train", "tiny.toml", f"--run.name={name}", *more]
    with open(place / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            command,
            cwd=place,
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def wait_until(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    while not condition():
        assert process.poll() is None, "the run must not end before"
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
        for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if line.startswith(b"RANK="):
                found[int(line[5:])] = child
    return found


def end(process: subprocess.Popen[bytes], started: Sequence[int]) -> int:
    """The exit code; nothing that the run has started is left."""
    code = process.wait()
    deadline = time.monotonic() + 60
    while any(map(is_alive, started)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in started if is_alive(pid)]
    return code


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_restarts_after_a_killed_rank_and_equals_spawned_workers(
    place: Path, whole: RunFolder, rank: int
) -> None:
    name = f"killed_{rank}"
    process = start(place, name, [*TORCHRUN, "--max-restarts", "1", "-m", "mage"])
    wait_until(process, lambda: updates(place, name) >= 1)
    ranks = ranks_of(process.pid)
    os.kill(ranks[rank], signal.SIGKILL)
    assert end(process, list(ranks.values())) == 0, (place / f"{name}.log").read_text()
    run = RunFolder.open(place / "runs" / name)
    assert run.metrics() == whole.metrics()
    weights = Path("checkpoints") / "update_000003" / "model.safetensors"
    assert (run.path / weights).read_bytes() == (whole.path / weights).read_bytes()
    lost = f"rank {rank} on "
    assert f"mage: {lost}" in (place / f"{name}.log").read_text()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_resumed_run_equals_one_that_was_not_stopped(
    place: Path, whole: RunFolder, number: signal.Signals
) -> None:
    name = f"stopped_{number.name}"
    process = start(place, name, MAGE)
    wait_until(process, lambda: updates(place, name) >= 1)
    started = children(process.pid)
    os.killpg(process.pid, number)
    assert end(process, started) == 130
    log = (place / f"{name}.log").read_text()
    assert "Stopped. The run is saved." in log
    assert "Traceback" not in log
    run = RunFolder.open(place / "runs" / name)
    train(run.path, Callback(), lambda: False)
    assert run.metrics() == whole.metrics()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_ctrl_c_while_workers_start_ends_all_of_them(place: Path) -> None:
    process = start(place, "early", MAGE)
    wait_until(process, lambda: len(children(process.pid)) >= 2)  # a worker and its tracker
    started = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    assert end(process, started) == 130
    assert "Traceback" not in (place / "early.log").read_text()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_killed_worker_ends_the_run_with_one_message(place: Path) -> None:
    process = start(place, "lost", MAGE)
    wait_until(process, lambda: updates(place, "lost") >= 1)
    started = children(process.pid)
    os.kill(max(started), signal.SIGKILL)
    assert end(process, started) == 2
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
            [*TORCHRUN, "--no-python", str(script)], cwd=place, stdout=log, stderr=log
        )
    assert code != 0
    text = (place / "differ.log").read_text()
    assert text.count("has another recipe than rank 0") == 1
    assert "exitcode  : 2 " in text
    assert not (place / "runs" / "differ").exists()
