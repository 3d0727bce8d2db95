"""Where the runs of a reproduction work: one run per GPU, on this machine or on a Ray cluster."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from test_cluster import needs_ray, nodes  # noqa: F401 - a fixture

from mage.config.loading import load_recipe
from mage.reproduce import executors
from mage.reproduce.executors import LOG, LocalExecutor, RayExecutor

SHOW = "import os, sys; print(os.environ.get('CUDA_VISIBLE_DEVICES')); sys.stdin.read()"


@pytest.fixture
def recipe(monkeypatch):
    """A worker prints the GPU that it sees, instead of training."""
    monkeypatch.setattr(executors, "_command", lambda *_: [sys.executable, "-S", "-c", SHOW])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    return load_recipe("kuhn_poker", [])


def start(executor: Any, folder: Path, recipe: Any) -> Any:
    folder.mkdir()
    return executor.start(folder, recipe)


def test_every_run_has_a_gpu_of_its_own_and_a_free_gpu_is_used_again(tmp_path, recipe):
    executor = LocalExecutor(0, ("4", "6"))
    assert executor.size == 2
    first = start(executor, tmp_path / "a", recipe)
    first.wait()
    second = start(executor, tmp_path / "b", recipe)
    second.wait()
    assert [(tmp_path / name / LOG).read_text() for name in "ab"] == ["4\n", "4\n"]


def test_two_runs_at_once_have_different_gpus(tmp_path, recipe, monkeypatch):
    endless = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(executors, "_command", lambda *_: endless)
    executor = LocalExecutor(0, ("4", "6"))
    workers = [start(executor, tmp_path / name, recipe) for name in "ab"]
    assert [gpu for gpu, worker in executor.places if worker in workers] == ["4", "6"]
    for worker in workers:
        worker.terminate()
        worker.wait()


def test_more_jobs_than_gpus_do_not_share_a_gpu_by_accident():
    assert LocalExecutor(8, ("0", "1")).size == 2
    assert LocalExecutor(1, ("0", "1")).size == 1
    assert LocalExecutor(8, ("0", "1"), per_gpu=3).size == 6
    assert LocalExecutor(8).size == 8
    assert LocalExecutor(0).size == os.cpu_count()


def test_a_run_with_several_ranks_has_a_gpu_for_each(tmp_path, recipe):
    executor = LocalExecutor(0, ("4", "6", "7", "8", "9"), ranks=2)
    assert executor.size == 2
    assert [gpus for gpus, _ in executor.places] == ["4,6", "7,8"]
    start(executor, tmp_path / "a", recipe).wait()
    assert (tmp_path / "a" / LOG).read_text() == "4,6\n"
    assert LocalExecutor(0, ranks=2).size == max(1, (os.cpu_count() or 1) // 2)


@needs_ray
@pytest.mark.e2e
def test_runs_work_on_the_nodes_of_a_ray_cluster(
    nodes,  # noqa: F811
    tmp_path,
    recipe,
):
    executor = RayExecutor(0)
    assert executor.size == 2  # CPUs of the cluster
    worker = start(executor, tmp_path / "a", recipe)
    assert worker.wait() == 0
    assert (tmp_path / "a" / LOG).read_text().strip() in ("4,6", "None", "")
