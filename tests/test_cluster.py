"""`mage cluster` on a Ray cluster of two nodes on this machine. Skipped where ray is missing."""

import importlib.util
import os
import subprocess
import sys

import pytest
from test_stop import RECIPE
from typer.testing import CliRunner

from mage.cli.main import app
from mage.ranks.cluster import ClusterJob, run_on_cluster
from mage.ranks.ray_nodes import Host
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")


@pytest.fixture
def nodes(monkeypatch):
    """A cluster of a head node and one more node, two CPUs each."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "num_gpus": 0, "include_dashboard": False},
    )
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@needs_ray
@pytest.mark.e2e
def test_a_run_continues_after_a_node_is_lost_and_ends_with_the_same_metrics(
    nodes, tmp_path, monkeypatch
):
    import ray

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    second = nodes.add_node(num_cpus=2, num_gpus=0)
    shown: list[str] = []
    metrics = tmp_path / "runs" / "lost" / "metrics.jsonl"

    def show(text: str) -> None:
        shown.append(text)

    def watch() -> bool:
        """Called at every look: remove the second node after the first update."""
        nonlocal second
        if second is not None and metrics.is_file() and metrics.read_bytes():
            nodes.remove_node(second, allow_graceful=False)
            second = None
        return False

    words = ("train", "tiny.toml", "--run.name=lost", "--runs", str(tmp_path / "runs"))
    job = ClusterJob(words, ranks=2, spread=True, max_restarts=1, wait=300.0)
    assert run_on_cluster(ray, job, show, watch) == 0, "".join(shown)
    assert "restart 1 of 1" in "".join(shown)
    from mage.config.loading import load_recipe

    whole = RunFolder.create(tmp_path / "whole", load_recipe("tiny.toml", []))
    train(whole.path, Callback(), lambda: False)
    found = RunFolder.open(metrics.parent)
    assert found.metrics() == whole.metrics()
    assert found.is_finished


def test_a_missing_package_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    found = CliRunner().invoke(app, ["cluster", "demo", "--runs", str(tmp_path)])
    assert found.exit_code == 2
    assert "pip install '.[ray]' in the checkout of MAGE" in found.output


def test_a_letter_that_is_written_in_two_parts_is_shown_whole():
    host = Host()
    host.process = subprocess.Popen(["true"])
    shown = ""
    for part in ("±".encode()[:1], "±".encode()[1:]):
        os.write(host.output.fileno(), part)
        shown += host.poll()[1]
    assert shown == "±"
    host.process.wait()
