"""Items of other packages: `mage new`, and the package in examples/my_lab."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from processes import start_mage, start_python, wait

import mage

ROOT = Path(mage.__file__).parents[1]
LAB = ROOT / "examples" / "my_lab"
SHORT = (
    *("--run.updates=1", "--run.evaluate_every=0", "--run.move_probabilities=false"),
    *("--play.groups=1", "--play.members=2", "--warmup.steps=1", "--warmup.turns=4"),
    *("--evaluate.size=2", "--evaluate.final_size=2", "--evaluate.before=false"),
    *("--play.episodes=2", "--agent.max_tokens=8"),
)


def mage_in(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code and the output of `mage` in a folder, which is not on the module path."""
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        return wait(start_mage(words, folder, log)), log.read_text()


def run_tests(folder: Path) -> tuple[int, str]:
    options = ["-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"]
    program = f"""
import sys
import pytest
for name in [name for name in sys.modules if name.startswith("test_")]:
    del sys.modules[name]  # the process is forked from one that has loaded tests
raise SystemExit(pytest.main({options!r}))
"""
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        return wait(start_python(program, folder, log)), log.read_text()


@pytest.mark.e2e
def test_new_items_pass_their_own_tests(tmp_path):
    for kind in ("environment", "single_agent", "opponent", "memory", "estimator"):
        code, told = mage_in(tmp_path, "new", kind, f"first_{kind}")
        assert code == 0, told
        assert f"my_lab.first_{kind}" in told
    code, told = run_tests(tmp_path)
    assert code == 0, told
    assert "8 passed" in told
    code, told = mage_in(tmp_path, "new", "memory", "first_memory")
    assert (code, "exists already" in told) == (2, True)
    assert "lower-case letters" in mage_in(tmp_path, "new", "memory", "My-Memory")[1]


@pytest.mark.e2e
def test_items_of_the_current_folder_are_found_by_module_and_by_class():
    for name in ("my_lab.lefty", "my_lab.lefty.Lefty", "my_lab.lefty-0.3"):
        code, told = mage_in(LAB, "check", name, "--environment", "my_lab.nim", "--games", "5")
        assert code == 0, told
    assert "no faults" in mage_in(LAB, "check", "my_lab.nim", "--games", "5")[1]
    code, told = mage_in(LAB, "check", "my_lab.lefty")
    assert (code, "--environment" in told) == (2, True)


@pytest.mark.e2e
def test_the_example_package_is_tested_and_trained_by_one_command(tmp_path):
    code, told = run_tests(LAB)
    assert code == 0, told
    assert "5 passed" in told
    code, told = mage_in(LAB, "train", "nim.toml", "--runs", str(tmp_path), *SHORT)
    assert code == 0, told
    assert json.loads((tmp_path / "nim-1" / "summary.json").read_text())["updates"] == 1
    recipe = (tmp_path / "nim-1" / "recipe.toml").read_text()
    assert all(f"my_lab.{item}" in recipe for item in ("nim", "lefty", "scoreboard", "ranked"))
