"""Shared by all tests: a small Kuhn recipe, the mark `e2e`, and the order of the test files."""

import multiprocessing
import os
import tempfile
from collections import Counter
from functools import cache
from typing import Any

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from mage.ranks import processes as child_processes

# Test processes run side by side, so each has one thread. Torch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Models that the user has added would play in some tests, and caches would stay in the home folder.
_PLACES = tempfile.TemporaryDirectory(prefix="mage-tests-")
os.environ.setdefault("MAGE_MODELS", f"{_PLACES.name}/models")
os.environ.setdefault("MAGE_CACHE", f"{_PLACES.name}/cache")

pytest_plugins = ["forked_workers"]

# The runner of typer would build all commands of `mage` for every call: 20 ms of processor time.
typer.testing._get_command = cache(typer.testing._get_command)

# Processes are forked from a server that has loaded MAGE and torch once, so a start costs
# milliseconds instead of seconds of imports. Tests of the start itself spawn.
child_processes.START_METHOD = "forkserver"
multiprocessing.get_context("forkserver").set_forkserver_preload(
    [
        "mage.cli.verbs.train",
        "mage.report.loggers",
        "mage.api.report",
        "mage.report.curves",
        "mage.training.start",
        "mage.engines.local",
        "transformers.models.llama.modeling_llama",  # of the embedded models
    ]
)

# A slow example is not a failure: every test has a time-out of its own.
settings.register_profile(
    "mage", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mage")


# Files that need most processor time, in this order. They are dealt first, so that no test process
# is left with a long file at the end.
LONGEST = (
    *("test_stop", "test_reproduce_ranks", "test_tools_page", "test_torture", "test_ranks"),
    *("test_cache", "test_reproduce", "test_cli", "test_docs", "test_viewer_browser"),
    *("test_stages", "test_packing", "test_hostile_server", "test_engine_local", "test_viewer"),
    *("test_thinking", "test_endpoint", "test_offline", "test_sokoban_rooms"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Tests compute on the CPU, where results are known; `pytest -m gpu` needs a GPU.

    Torch must look for it without using it, or forked test processes could not use it.
    """
    marks = config.getoption("markexpr")
    if "gpu" in marks and "not gpu" not in marks:
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of fixtures that are `end_to_end`, and put the longest files first.

    Other files follow by their number of end-to-end tests.
    """
    for item in items:
        fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        if any(hasattr(one.func, "end_to_end") for found in fixtures for one in found):
            item.add_marker(pytest.mark.e2e)
    long = Counter(item.path for item in items if item.get_closest_marker("e2e"))
    all_tests = Counter(item.path for item in items)
    first = {name: place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> tuple[int, int, int, str]:
        path = item.path
        return first.get(path.stem, len(first)), -long[path], -all_tests[path], str(path)

    items.sort(key=place)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have empty pictures: drawing takes longer than a tiny training."""
    empty = {"png": b"", "svg": b""}
    monkeypatch.setattr("mage.report.curves.draw_curves", lambda results: empty)


@pytest.fixture
def kuhn_tables() -> dict[str, dict[str, Any]]:
    return {
        "environments": {"name": "kuhn_poker"},
        "opponents": {"train": {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}},
    }
