"""The forked test processes of `make test` run every test once and report what happened."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.e2e
TESTS = """
import os, time, warnings
import pytest

def note(name):
    with open("ran", "a") as file:
        file.write(f"{name} {os.getpid()}\\n")

@pytest.fixture(scope="module")
def shared():
    note("set_up")
    yield "shared"
    note("torn_down")

@pytest.mark.e2e
def test_first_use(shared): note("first_use")

@pytest.mark.e2e
def test_second_use(shared): note("second_use")

@pytest.mark.e2e
def test_waits_for_the_other_process(tmp_path):
    note("waits")
    while "first_use" not in open("ran").read():
        time.sleep(0.01)

def test_fails():
    note("fails")
    print("text of the failed test")
    warnings.warn("look here")
    assert [1] == [2]

def test_crashes():
    if "CRASH" in os.environ:
        os._exit(7)
"""


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_them.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = e2e\n")
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "forked_workers", "--forks=2", "test_them.py"],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


def test_every_test_runs_once_and_tests_with_a_shared_fixture_in_one_process(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 4 passed, 1 warning" in done.stdout
    for text in ("assert [1] == [2]", "text of the failed test", "UserWarning: look here"):
        assert text in done.stdout
    lines = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    names = Counter(name for name, _ in lines)
    assert names == dict.fromkeys(
        ("set_up", "first_use", "second_use", "torn_down", "waits", "fails"), 1
    )
    processes = dict(lines)
    assert len({processes[name] for name in ("set_up", "first_use", "second_use")}) == 1
    assert processes["waits"] != processes["first_use"]


def test_a_crashed_test_process_is_reported_with_its_test(tmp_path):
    done = run(tmp_path, CRASH="1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "a test process has crashed. It ran test_them.py::test_crashes" in done.stderr


def test_tests_compute_on_the_cpu_also_where_there_is_a_gpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()
