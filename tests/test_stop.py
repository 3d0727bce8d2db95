"""Start and stop of a run with several ranks: torchrun, signals, killed ranks."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from processes import signal_in_update, start_mage, start_torchrun, wait
from processes import start as start_process

from mage.config.loading import load_recipe
from mage.learn import checkpoint
from mage.ranks.ranks import Ranks, RanksStopped
from mage.ranks.stop import Stopped, StopRequest, StopSignals
from mage.ranks.watch import is_alive
from mage.run_folder import RunFolder, lock_run
from mage.training import start as training_start
from mage.training.callbacks import Callback
from mage.training.metrics import Timer
from mage.training.start import train
from mage.training.trainer import Trainer
from mage.types import MetaEpisode
from tests.marks import end_to_end

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
episodes = 2
groups = 2
members = 3
[agent]
max_tokens = 8
[memory]
keep = "history"
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
before = false
temperature = 1.0
top_p = 1.0
top_k = 0
"""
STAGES = """
[[stages]]
name = "first"
[[stages]]
name = "second"
"""
TWO = ("--run.updates=2", "--run.evaluate_every=2")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stop")
    (folder / "tiny.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
@end_to_end
def whole(place):
    """A run of two workers that nothing has interrupted; rank 0 is this process."""
    whole = RunFolder.create(place / "runs" / "whole", load_recipe(place / "tiny.toml", TWO))
    train(whole.path, Callback(), lambda: False)
    return whole


def start(
    place: Path, name: str, ranks: str = "fork", prepare: Callable[[], None] | None = None
) -> BaseProcess:
    """A run of two workers."""
    words = ["train", "tiny.toml", f"--run.name={name}", *TWO]
    return start_mage(words, place, place / f"{name}.log", ranks=ranks, prepare=prepare)


def torchrun(
    place: Path, name: str, *more: str, stages: str = "", **how: Any
) -> tuple[BaseProcess, Path]:
    """A run of two ranks below torchrun, and its log."""
    (place / "tiny.toml").write_text(RECIPE + stages)
    words, log = ["train", "tiny.toml", f"--run.name={name}", *more], place / "log"
    return start_torchrun(words, place, log, **how), log


def wait_until(condition: Callable[[], bool], runs: Callable[[], bool]) -> None:
    while not condition():
        assert runs(), "the run must not end before"
        time.sleep(0.02)


def updates(place: Path, name: str) -> int:
    path = place / "runs" / name / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def children(process: BaseProcess) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in path.read_text().split()]


def is_loading(process: int) -> bool:
    """Whether a process that is no fork has used .3 s of processor time, so it imports torch."""
    place = Path(f"/proc/{process}")
    try:
        used = sum(map(int, (place / "stat").read_text().rpartition(")")[2].split()[11:13]))
        is_new = b"spawn_main" in (place / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended, as `uname` does soon
        return False
    return is_new and used > 0.3 * os.sysconf("SC_CLK_TCK")


def all_end(started: Sequence[int]) -> bool:
    """Whether all that a run has started ends; the time-out of the test ends this otherwise."""
    while any(map(is_alive, started)):
        time.sleep(0.1)
    return True


def pids_of(place: Path) -> list[int]:
    """The processes that have begun an update."""
    return [int(path.read_text()) for path in place.glob("pid-*")]


def die_twice() -> None:
    """Rank 0 is killed in update 2, and so is rank 1 of the restarted run."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt < 2:
        signal_in_update(2, attempt, signal.SIGKILL)


def test_torchrun_restarts_after_killed_ranks_and_equals_workers(tmp_path, whole):
    process, log = torchrun(tmp_path, "killed", *TWO, restarts=2, prepare=die_twice)
    assert wait(process) == 0, log.read_text()
    assert all_end(pids_of(tmp_path))
    run = RunFolder.open(tmp_path / "runs" / "killed")
    assert run.metrics() == whole.metrics()
    weights = Path("checkpoints") / "update_000002" / "model.safetensors"
    assert (run.path / weights).read_bytes() == (whole.path / weights).read_bytes()
    for rank in (0, 1):
        assert f"mage: rank {rank} on " in log.read_text()


def test_a_stop_of_torchrun_is_no_error_of_a_rank(tmp_path):
    process, log = torchrun(tmp_path, "long", "--run.updates=100000")
    try:
        wait_until(lambda: updates(tmp_path, "long") >= 1, process.is_alive)
        ranks = [int(path.name.split("-")[2]) for path in tmp_path.glob("rank-*")]
        process.terminate()
        wait(process)
    finally:
        process.kill()  # its ranks end with it
    assert all_end(ranks)
    assert_is_stopped(tmp_path, log)


def assert_is_stopped(place: Path, log: Path) -> None:
    """Both ranks have ended after a stop, and none reports an error."""
    assert [path.read_text() for path in sorted(place.glob("rank-*"))] == ["130", "0"]
    assert log.read_text().count("Stopped. The run is saved.") == 1
    assert "mage: " not in log.read_text()


def stop_rank_0_alone() -> None:
    """Rank 0 stops in update 2, and torchrun's signals arrive when a rank has stopped."""
    signal_in_update(2, 0, signal.SIGTERM)
    whole = StopSignals.__exit__

    def leave(stop: StopSignals, *error: Any) -> None:
        whole(stop, *error)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)

    StopSignals.__exit__ = leave  # type: ignore[method-assign]


@pytest.mark.parametrize("stages", ["", STAGES], ids=["alone", "stages"])
def test_a_signal_after_the_stop_that_rank_0_has_passed_on_is_no_error(tmp_path, stages):
    """torchrun signals its ranks one after another; the other ranks begin no further stage."""
    process, log = torchrun(tmp_path, "long", stages=stages, prepare=stop_rank_0_alone)
    assert wait(process) != 0
    assert_is_stopped(tmp_path, log)
    assert len(list(tmp_path.glob("runs/long/stages/*"))) == bool(stages)


def signal_rank_1_while_it_learns_of_the_stop() -> None:
    """Rank 0 stops in update 2; torchrun's signal reaches rank 1 as it hears of that."""
    signal_in_update(2, 0, signal.SIGTERM)
    whole = Ranks.gather

    def gather(ranks: Ranks, item: Any) -> Any:
        try:
            return whole(ranks, item)
        except RanksStopped:
            if ranks.rank == 1:
                signal.raise_signal(signal.SIGTERM)
            raise

    Ranks.gather = gather  # type: ignore[method-assign]


def test_a_signal_while_a_rank_learns_of_a_stop_does_not_stop_it_again(tmp_path):
    prepare = signal_rank_1_while_it_learns_of_the_stop
    process, log = torchrun(tmp_path, "long", prepare=prepare)
    assert wait(process) != 0
    assert_is_stopped(tmp_path, log)


def test_ranks_share_the_members_of_every_stage(tmp_path):
    """With one slot a rank takes members from a queue, which begins anew in every stage."""
    short = ("--run.updates=1", "--run.evaluate_every=1", "--engines.slots=1")
    process, log = torchrun(tmp_path, "long", *short, stages=STAGES)
    assert wait(process) == 0, log.read_text()
    folders = sorted(tmp_path.glob("runs/long/stages/*"))
    played = [record["episodes"] for path in folders for record in RunFolder.open(path).metrics()]
    assert played == [12, 12], "2 groups x 3 members x 2 episodes"


def stop_in_the_first_summary() -> None:
    whole = RunFolder.write_summary

    def write(folder: RunFolder, summary: Mapping[str, Any]) -> None:
        if folder.path.name == "1_first":
            signal.raise_signal(signal.SIGINT)
        whole(folder, summary)

    RunFolder.write_summary = write  # type: ignore[method-assign]


def test_a_stop_at_the_end_of_a_stage_begins_no_other_stage(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE + STAGES)
    words = ["train", "tiny.toml", "--run.name=long", "--run.updates=1", "--run.workers=1"]
    process = start_mage(words, tmp_path, tmp_path / "log", prepare=stop_in_the_first_summary)
    assert wait(process) == 130, (tmp_path / "log").read_text()
    first, second = sorted((tmp_path / "runs" / "long" / "stages").iterdir())
    assert RunFolder.open(first).is_finished
    assert not RunFolder.open(second).evaluation_names()


def wait_for_the_lock(path: Path) -> None:
    with StopSignals() as stop, suppress(Stopped):
        (path / "waits").touch()
        train(path, Callback(), stop, wait_for_lock=True)


def test_a_process_that_waits_for_a_run_in_use_is_stopped(place):
    folder = RunFolder.create(place / "locked", load_recipe(place / "tiny.toml", TWO))
    with lock_run(folder.path):
        process = start_process(wait_for_the_lock, folder.path)
        wait_until((folder.path / "waits").exists, process.is_alive)
        process.terminate()
        assert wait(process) == 0


def test_work_that_no_stop_may_divide_is_finished_first():
    ranks, finished = Ranks(), []

    def work(stop: StopRequest) -> None:
        with stop.section(ranks), ranks.undivided():
            signal.raise_signal(signal.SIGTERM)
            ranks.after_gather()  # as a message inside of this work does
            finished.append(True)

    with StopSignals() as stop, pytest.raises(RanksStopped):
        work(stop)
    assert finished == [True]


def test_a_function_that_stops_a_run_is_asked_after_updates_only(place):
    folder = RunFolder.create(place / "counted", load_recipe(place / "tiny.toml", TWO))
    asked: list[int] = []

    def second() -> bool:
        asked.append(1)
        return len(asked) == 1

    with pytest.raises(Stopped):
        train(folder.path, Callback(), second)
    assert len(folder.metrics()) == 1


def lose_torchrun() -> None:
    """SIGKILL for torchrun, by rank 0; returns when it has ended.

    torchrun starts its ranks with `subprocess`. The forked ranks of this test get a signal at the
    end of their parent, which they must not notice.
    """
    launcher, rank = os.getppid(), os.environ["RANK"]
    ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG
    Path(f"deaf-{rank}").touch()
    while not Path("deaf-0").exists() or not Path("deaf-1").exists():
        time.sleep(0.01)
    if rank == "0":
        os.kill(launcher, signal.SIGKILL)
    while os.getppid() == launcher:
        time.sleep(0.01)


def lose_torchrun_in_update_2() -> None:
    whole = Trainer._play

    def begin(trainer: Trainer, number: int, timer: Timer) -> list[MetaEpisode]:
        if number == 2:
            lose_torchrun()
        return whole(trainer, number, timer)

    Trainer._play = begin  # type: ignore[method-assign]


def test_ranks_save_and_end_when_torchrun_is_killed(tmp_path):
    """With two slots the ranks take members from a queue, which ended with torchrun."""
    more = ("--run.updates=100000", "--engines.slots=2")
    process, log = torchrun(tmp_path, "long", *more, prepare=lose_torchrun_in_update_2)
    while len(ended := [one for one in tmp_path.glob("rank-*") if one.read_text()]) < 2:
        time.sleep(0.1)
    for one in ended:  # a forked rank waits for torchrun after its end
        with suppress(ProcessLookupError):
            os.kill(int(one.name.split("-")[2]), signal.SIGKILL)
    wait(process)
    assert log.read_text().count("Stopped. The run is saved.") == 1
    assert "Traceback" not in log.read_text()
    run = RunFolder.open_whole(tmp_path / "runs" / "long")
    assert checkpoint.latest(run.checkpoints).path == run.checkpoints / "update_000001"
    assert len(run.metrics()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_stopped_or_killed_run_is_resumed_and_equals_one_that_was_not(place, whole, number):
    """Ctrl-C (SIGINT) and a closed terminal (SIGHUP) reach all processes, SIGKILL the first one."""
    name, is_killed = f"stopped_{number.name}", number == signal.SIGKILL
    prepare = partial(signal_in_update, 2, 0, number, group=not is_killed)
    process = start(place, name, prepare=prepare)
    assert wait(process) == (-signal.SIGKILL if is_killed else 130)
    assert all_end(pids_of(place))
    log, run = place / f"{name}.log", RunFolder.open(place / "runs" / name)
    assert ("Stopped. The run is saved." in log.read_text()) == (not is_killed)
    assert (f"mage train --resume runs/{name}" in log.read_text()) == (not is_killed)
    assert "Traceback" not in log.read_text()
    assert wait(start_mage(["train", "--resume", str(run.path)], place, log)) == 0
    assert run.metrics() == whole.metrics()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_ctrl_c_while_workers_start_ends_all_of_them(place):
    process = start(place, "early", ranks="spawn")
    assert process.pid is not None
    wait_until(lambda: any(map(is_loading, children(process))), process.is_alive)
    started = children(process)
    os.killpg(process.pid, signal.SIGINT)
    assert wait(process) == 130
    assert all_end(started)
    assert "Traceback" not in (place / "early.log").read_text()


def test_a_killed_worker_ends_the_run_with_one_message(place):
    prepare = partial(signal_in_update, 2, 1, signal.SIGKILL)
    assert wait(start(place, "lost", prepare=prepare)) == 2
    assert all_end(pids_of(place))
    log = (place / "lost.log").read_text()
    assert "mage: rank 1 on " in log
    assert "update 1: learn" in log, "the last lines of its log"
    assert "Traceback" not in log


def test_ctrl_c_after_the_stop_of_rank_0_does_not_interrupt_a_worker(place, monkeypatch):
    """Ctrl-C reaches all processes, and rank 0 passes it on: either signal may be the first."""

    class Signalled:
        def __init__(self, folder: RunFolder, ranks: Ranks, callback: Callback, stop: StopRequest):
            self.stop = stop

        def resume(self) -> None:
            pass

        def run(self) -> bool:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            return self.stop()

    monkeypatch.setattr(training_start, "Trainer", Signalled)
    folder = RunFolder.create(place / "signalled", load_recipe(place / "tiny.toml"))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the process of a worker
    try:
        assert training_start._train_child(Ranks(), folder.path)
    finally:
        signal.signal(signal.SIGINT, before)


def test_two_workers_play_the_same_groups_as_one(place, whole):
    recipe = load_recipe(place / "tiny.toml", ["--run.workers=1", "--run.updates=1"])
    alone = RunFolder.create(place / "alone", recipe)
    train(alone.path, Callback(), lambda: False)
    one, two = alone.metrics()[0], whole.metrics()[0]
    # The same groups are played with the same seeds; only the mini-batches differ.
    for name in ("score_1", "score_2", "illegal_rate", "episodes", "reply_tokens", "samples"):
        assert one[name] == pytest.approx(two[name]), name
