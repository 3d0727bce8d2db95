"""Items of other packages: `mage new`, and the package in examples/my_lab."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mage

ROOT = Path(mage.__file__).parents[1]
LAB = ROOT / "examples" / "my_lab"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SCRIPT = "import sys; from mage.cli.main import main; sys.argv[0] = 'mage'; main()"
SHORT = ("--run.updates=1", "--warmup.steps=2", "--evaluate.size=4", "--evaluate.final_size=4")


def mage_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command `mage` in a folder; like the installed script, it does not add the folder."""
    command = [sys.executable, "-P", "-c", SCRIPT, *words]
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=600
    )


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.e2e
def test_new_items_pass_their_own_tests(tmp_path: Path) -> None:
    for kind in ("environment", "opponent", "memory", "estimator"):
        done = mage_in(tmp_path, "new", kind, f"first_{kind}")
        assert done.returncode == 0, done.stderr
        assert f"my_lab.first_{kind}" in done.stdout
    tests = run_tests(tmp_path)
    assert tests.returncode == 0, tests.stdout
    assert "6 passed" in tests.stdout
    again = mage_in(tmp_path, "new", "memory", "first_memory")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    assert "lower-case letters" in mage_in(tmp_path, "new", "memory", "My-Memory").stderr


def test_items_of_the_current_folder_are_found_by_module_and_by_class() -> None:
    for name in ("my_lab.lefty", "my_lab.lefty.Lefty", "my_lab.lefty-0.3"):
        done = mage_in(LAB, "check", name, "--environment", "my_lab.nim", "--games", "5")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "no faults" in mage_in(LAB, "check", "my_lab.nim", "--games", "5").stdout
    unclear = mage_in(LAB, "check", "my_lab.lefty")
    assert (unclear.returncode, "--environment" in unclear.stderr) == (2, True)


@pytest.mark.e2e
def test_the_example_package_is_tested_and_trained_by_one_command(tmp_path: Path) -> None:
    assert run_tests(LAB).returncode == 0
    done = mage_in(LAB, "train", "nim.toml", "--runs", str(tmp_path), *SHORT, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["updates"] == 1
    recipe = (tmp_path / "nim-1" / "recipe.toml").read_text()
    assert all(f"my_lab.{item}" in recipe for item in ("nim", "lefty", "scoreboard", "ranked"))
