"""Mistakes with several ranks: one message on rank 0, exit code 2, and all ranks end."""

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from learn_toys import make_model
from processes import start_mage, wait
from test_stop import RECIPE

from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.config.sections import LearnOptions
from mage.learn.learner import Learner
from mage.learn.ranks import Ranks
from mage.models.base import find_model
from mage.run_folder import RunFolder
from mage.training.distributed import recipe_of_rank
from mage.training.torchrun import World, choose_backend, find_folder


def run_ranks(folders: list[Path], *words: str) -> tuple[list[int], list[str]]:
    """`mage train` with one rank in every folder, as torchrun starts them; codes and outputs."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    world = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(len(folders)),
        "LOCAL_WORLD_SIZE": str(len(folders)),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "bad",
    }
    logs = [folder / f"{rank}.log" for rank, folder in enumerate(folders)]
    ranks = [
        start_mage(
            ["train", *words],
            folder,
            logs[rank],
            world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, folder in enumerate(folders)
    ]
    return [wait(rank) for rank in ranks], [log.read_text() for log in logs]


def test_a_restarted_job_finds_its_own_run_among_others(tmp_path: Path) -> None:
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


def test_a_rank_ends_when_its_launcher_was_killed() -> None:
    """The output ends when both processes have ended; the rank alone would wait ten minutes."""
    program = """
import os, signal, time
from mage.training.launcher import stop_with_launcher
reader, writer = os.pipe()
if os.fork() == 0:
    with stop_with_launcher():
        os.write(writer, b"ready")
        time.sleep(600)
os.read(reader, 5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")


@pytest.mark.e2e
def test_a_node_without_the_model_is_named_by_rank_0(tmp_path: Path) -> None:
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
def test_a_checkpoint_of_another_model_is_refused_once(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    run = RunFolder.create(tmp_path / "run", load_recipe(str(tmp_path / "tiny.toml"), []))
    other = Learner(make_model(exact=False), LearnOptions())
    other.save(run.checkpoints, update=1, state={})
    codes, (told, silent) = run_ranks([tmp_path] * 2, "--resume", str(run.path))
    assert codes == [2, 2]
    assert told.count("it belongs to another model") == 1
    assert "Traceback" not in told + silent
    assert "mage:" not in silent


def test_more_ranks_than_meta_episodes_are_refused() -> None:
    recipe = load_recipe("kuhn_poker", ["--play.groups=2", "--play.members=2", "--run.workers=1"])
    assert recipe_of_rank(recipe, Ranks(3, 4)) == recipe
    with pytest.raises(ConfigError, match="5 ranks are more than the 4 meta-episodes of an update"):
        recipe_of_rank(recipe, Ranks(4, 5))


def test_gpus_without_nccl_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    world = World(0, 2, 0, 2, 0, "127.0.0.1", 1, "job")
    with pytest.raises(ConfigError, match="this build of torch has no NCCL"):
        choose_backend(world)
