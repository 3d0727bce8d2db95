"""Mistakes with several ranks: one message on rank 0, exit code 2, and all ranks end."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from learn_toys import make_model
from processes import start_mage, start_torchrun, wait
from test_stop import RECIPE

from mage.cli import main
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.config.sections import LearnOptions
from mage.learn.learner import Learner
from mage.models.base import find_model
from mage.ranks import ranks as ranks_module
from mage.ranks import torchrun
from mage.ranks.launch import recipe_of_rank
from mage.ranks.ranks import Ranks
from mage.ranks.torchrun import World, choose_backend, find_folder, wait_for_report
from mage.ranks.watch import Peer, Watch
from mage.run_folder import LAUNCH, RunFolder
from mage.training import trainer


def open_store() -> Any:
    """A store on a free port, as that of torchrun's agent."""
    return dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


def start_rank(
    rank: int, size: int, folder: Path, words: tuple[str, ...], store: Any, *, holds: bool = False
) -> BaseProcess:
    """Start a rank of `mage train` as torchrun does; its output goes to `RANK.log`.

    The ranks meet in this store. If rank 0 holds the store, it opens one on the same port.
    """
    world = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "bad",
        "TORCHELASTIC_USE_AGENT_STORE": str(not holds),
    }
    return start_mage(["train", *words], folder, folder / f"{rank}.log", world)


def run_ranks(folders: list[Path], *words: str) -> tuple[list[int], list[str]]:
    """`mage train` with one rank in every folder, as torchrun starts them; codes and outputs."""
    store = open_store()
    ranks = [
        start_rank(rank, len(folders), folder, words, store) for rank, folder in enumerate(folders)
    ]
    codes = [wait(rank) for rank in ranks]
    return codes, [(folder / f"{rank}.log").read_text() for rank, folder in enumerate(folders)]


def test_a_restarted_job_finds_its_own_run_among_others(tmp_path):
    recipe = load_recipe("demo", [])
    own = RunFolder.create(tmp_path / "own", recipe, job="host:2")
    RunFolder.create(tmp_path / "a", recipe, job="host:1")
    RunFolder.create(tmp_path / "b", recipe)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / ".launch.json").write_text("[")

    def world(job: str) -> World:
        return World(0, 2, 0, 2, restarts=1, address="localhost", port=1, job=job)

    assert find_folder(tmp_path, world("host:2")) == own.path
    assert find_folder(tmp_path, world("host:3")) is None
    earlier = RunFolder.create(tmp_path / "before", recipe, job="host:2")  # with the same --rdzv-id
    os.utime(earlier.path / LAUNCH, (0, 0))
    assert find_folder(tmp_path, world("host:2")) == own.path


def test_a_rank_ends_when_its_launcher_was_killed():
    """The output ends when both processes have ended; the rank alone would wait ten minutes."""
    program = """
import os, signal, time
from mage.ranks.processes import stop_with_launcher
reader, writer = os.pipe()
if os.fork() == 0:
    with stop_with_launcher():
        os.write(writer, b"ready")
        time.sleep(600)
os.read(reader, 5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=3600)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")


@pytest.mark.e2e
def test_a_node_without_the_model_is_named_by_rank_0(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "tiny.toml").write_text(RECIPE + '[model]\npath = "here"\n')
    shutil.copytree(find_model("embedded"), first / "here")
    runs = str(tmp_path / "runs")
    codes, (told, silent) = run_ranks([first, second], "tiny.toml", "--runs", runs)
    assert codes == [2, 2]
    assert told.count(f"mage: rank 1 on {socket.gethostname()}: ") == 1
    assert "here" in told.partition("mage: rank 1")[2]
    assert "Traceback" not in told + silent
    assert "mage:" not in silent
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))


@pytest.mark.e2e
def test_a_checkpoint_of_another_model_is_refused_once(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    run = RunFolder.create(tmp_path / "run", load_recipe(str(tmp_path / "tiny.toml"), []))
    other = Learner(make_model(exact=False), LearnOptions())
    other.save(run.checkpoints, update=1, state={})
    codes, (told, silent) = run_ranks([tmp_path] * 2, "--resume", str(run.path))
    assert codes == [2, 2]
    assert told.count("it belongs to another model") == 1
    assert "Traceback" not in told + silent
    assert "mage:" not in silent


def run_torchrun(folder: Path, prepare: Callable[[], None]) -> tuple[list[str], str]:
    """Train with two ranks of torchrun; their exit codes and their output."""
    (folder / "tiny.toml").write_text(RECIPE)
    process = start_torchrun(["train", "tiny.toml"], folder, folder / "log", prepare=prepare)
    try:
        assert wait(process) != 0
    finally:
        process.kill()  # its ranks end with it
    codes = [path.read_text() for path in sorted(folder.glob("rank-*"))]
    return codes, (folder / "log").read_text()


def delay(function: Callable[..., Any]) -> Callable[..., Any]:
    def late(*arguments: Any, **named: Any) -> Any:
        time.sleep(1)
        return function(*arguments, **named)

    return late


def differ_and_delay() -> None:
    """Rank 1 has another recipe. Rank 0 takes a second to leave the group and a second to print."""
    if os.environ["RANK"] == "1":
        sys.argv.append("--run.seed=1")
    else:
        dist.destroy_process_group = delay(dist.destroy_process_group)
        main._print_error = delay(main._print_error)


@pytest.mark.e2e
def test_torchrun_does_not_stop_rank_0_before_its_message(tmp_path):
    """torchrun sends SIGTERM to rank 0 when rank 1 has ended with an error."""
    codes, told = run_torchrun(tmp_path, differ_and_delay)
    assert codes == ["2", "2"]
    assert told.count("mage: ") == 1
    assert f"mage: rank 1 on {socket.gethostname()} has another recipe than rank 0" in told
    assert not list(tmp_path.glob("runs/*")), "nothing is created"


def break_rank_1() -> None:
    def crash(*arguments: Any) -> None:
        raise RuntimeError("a broken card")

    if os.environ["RANK"] == "1":
        trainer.Trainer._run = crash  # type: ignore[assignment]
        torchrun.wait_for_report = lambda store: os._exit(7)  # type: ignore[assignment]


@pytest.mark.e2e
def test_a_rank_that_fails_alone_ends_at_once_and_rank_0_shows_its_error(tmp_path):
    codes, told = run_torchrun(tmp_path, break_rank_1)
    assert codes == ["2", "2"]
    assert told.count("mage: ") == 1
    _, _, lines = told.partition(f"mage: rank 1 on {socket.gethostname()} ")
    assert "Last lines of its log:" in lines
    assert "RuntimeError: a broken card" in lines


def break_rank_0() -> None:
    """A full disk, which rank 0 alone meets. It takes a second to print.

    Rank 1 only knows that the connection is lost.
    """

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")

    if os.environ["RANK"] == "0":
        trainer.Trainer._update = refuse  # type: ignore[assignment]
        main._print_error = delay(main._print_error)
    else:
        ranks_module._EXPLAIN = 0.0


@pytest.mark.e2e
def test_an_error_of_rank_0_alone_is_one_message(tmp_path):
    codes, told = run_torchrun(tmp_path, break_rank_0)
    assert codes == ["2", "2"]
    assert told.count("mage: ") == 1
    assert "mage: No space left on device: metrics.jsonl\n" in told
    assert "Traceback" not in told.partition("mage: ")[0]


def lose_rank_1_in_an_import() -> None:
    """Rank 1 is killed while rank 0 imports a package, which wraps the interruption."""

    def end(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def load(*arguments: Any) -> None:
        try:
            time.sleep(600)
        except Exception as error:
            raise ImportError("the package could not be imported") from error

    trainer.Trainer._run = load if os.environ["RANK"] == "0" else end  # type: ignore[assignment]


@pytest.mark.e2e
def test_a_lost_rank_is_one_message_also_during_an_import(tmp_path):
    _, told = run_torchrun(tmp_path, lose_rank_1_in_an_import)
    assert told.count("mage: ") == 1
    assert f"mage: rank 1 on {socket.gethostname()} " in told
    assert "ImportError" not in told


def add_a_bug_to_rank_0() -> None:
    def fail(*arguments: Any) -> None:
        raise AssertionError("this is a bug")

    if os.environ["RANK"] == "0":
        trainer.Trainer._update = fail  # type: ignore[assignment]


@pytest.mark.e2e
def test_a_bug_of_rank_0_is_not_a_message_of_rank_1(tmp_path):
    codes, told = run_torchrun(tmp_path, add_a_bug_to_rank_0)
    assert codes == ["", "2"], "rank 0 ends with a traceback"
    assert "AssertionError: this is a bug" in told
    assert "mage: " not in told


def test_a_rank_waits_until_rank_0_reports_an_error():
    held = open_store()
    other = dist.TCPStore("127.0.0.1", held.port, None, is_master=False)
    assert not wait_for_report(other, seconds=0.1)
    held.set("reports", "")
    assert wait_for_report(other)
    held.delete_key("reports")
    del held  # the store ends with rank 0
    assert wait_for_report(other)


def test_no_rank_is_reported_lost_after_an_error_of_all_ranks():
    ended = subprocess.Popen(["true"])
    ended.wait()
    ranks = Ranks(0, 2)
    ranks.failed = True
    with Watch(ranks, [Peer(0, "here", os.getpid()), Peer(1, "here", ended.pid)]) as watch:
        watch._thread.join()
    assert watch.lost is None


@pytest.mark.e2e
def test_a_taken_port_is_refused(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    other = open_store()
    assert wait(start_rank(0, 2, tmp_path, ("tiny.toml",), other, holds=True)) == 2
    told = (tmp_path / "0.log").read_text()
    assert told.startswith(f"mage: rank 0 on {socket.gethostname()} cannot listen on port ")
    assert f"port {other.port} (MASTER_PORT): address already in use. Stop the program" in told
    assert "Traceback" not in told


@pytest.mark.e2e
def test_ranks_end_at_once_if_torchrun_was_killed_before_they_met(tmp_path):
    """No store listens on the port of torchrun."""
    (tmp_path / "tiny.toml").write_text(RECIPE)
    with socket.socket() as silent_port:  # held, so that nobody else listens on it
        silent_port.bind(("127.0.0.1", 0))
        ended = SimpleNamespace(port=silent_port.getsockname()[1])
        ranks = [start_rank(rank, 2, tmp_path, ("tiny.toml",), ended) for rank in (0, 1)]
        assert [wait(rank) for rank in ranks] == [2, 2]
    told, silent = ((tmp_path / f"{rank}.log").read_text() for rank in (0, 1))
    assert told.startswith(f"mage: torchrun has ended: there is no store at 127.0.0.1:{ended.port}")
    assert told.count("\n") == 1
    assert silent == ""


@pytest.mark.e2e
def test_sigterm_ends_a_rank_that_waits_for_rank_0(tmp_path):
    """Rank 1 waits in torch, which calls no signal handler."""
    (tmp_path / "tiny.toml").write_text(RECIPE)
    store = open_store()
    empty = store.num_keys()
    rank = start_rank(1, 2, tmp_path, ("tiny.toml",), store)
    try:
        while store.num_keys() == empty:  # it has not joined
            assert rank.is_alive()
            time.sleep(0.01)
        rank.terminate()
        assert wait(rank) == -signal.SIGTERM
    finally:
        rank.kill()
    assert (tmp_path / "1.log").read_text() == ""


def test_more_ranks_than_meta_episodes_are_refused():
    recipe = load_recipe("kuhn_poker", ["--play.groups=2", "--play.members=2", "--run.workers=1"])
    assert recipe_of_rank(recipe, Ranks(3, 4)) == recipe
    with pytest.raises(ConfigError, match="5 ranks are more than the 4 meta-episodes of an update"):
        recipe_of_rank(recipe, Ranks(4, 5))


def test_gpus_without_nccl_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    world = World(0, 2, 0, 2, 0, "127.0.0.1", 1, "job")
    with pytest.raises(ConfigError, match="this build of torch has no NCCL"):
        choose_backend(world)
