"""Kept results of a run: small files, figures and pictures, no paths of the machine."""

import json
import runpy
from pathlib import Path

import pytest

from mage.viewer.library import find_runs
from mage.viewer.runs import list_run
from tests.view_runs import make_run

SCRIPTS = Path(__file__).parent.parent / "scripts"
RESULTS = Path(__file__).parent.parent / "results"
FOLDERS = sorted(path.parent for path in RESULTS.rglob("README.md") if path.parent != RESULTS)
KEPT = [one for one in FOLDERS if not any(one in other.parents for other in FOLDERS)]  # no groups


@pytest.mark.e2e
def test_the_results_of_a_run_are_kept_without_its_weights(tmp_path, no_pictures):
    folder = make_run(tmp_path / "one")
    (folder.checkpoints / "model.safetensors").write_bytes(b"weights")
    keep = runpy.run_path(str(SCRIPTS / "keep_results.py"))["keep"]
    for _ in range(2):  # the second call replaces the folder
        keep(tmp_path / "one", tmp_path / "kept")
    kept = tmp_path / "kept"
    files = {path.relative_to(kept).as_posix() for path in kept.rglob("*.*")}
    assert {
        *("recipe.toml", "metrics.jsonl", "summary.json", "report/curves.svg"),
        *("report/transcripts.md", "evaluations/select_000000.json"),
        *("evaluations/select_000006.json", "evaluations/before_test.json"),
        *("evaluations/after_test.json", "evaluations/after_test.tasks.jsonl"),
    } <= files
    assert "timing.jsonl" not in files
    assert not [name for name in files if name.endswith(".safetensors")]
    assert json.loads((kept / "summary.json").read_text())["run"] == "one"
    assert list_run("kept", kept)["state"] == "finished"


@pytest.mark.parametrize("folder", KEPT, ids=lambda path: path.name)
def test_results_in_the_repository_are_small_and_name_no_machine(folder):
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 2_000_000
    for path in folder.rglob("*.json"):
        assert "/tmp/" not in path.read_text()
    for run in find_runs(folder):
        assert list_run(run.name, run)["state"] in ("finished", "stopped")


def test_every_folder_of_results_says_how_it_was_made():
    assert {path for path in RESULTS.iterdir() if path.is_dir()} <= set(FOLDERS)
    for folder in FOLDERS:
        text = (folder / "README.md").read_text()
        assert f"({folder.name}/README.md)" in (folder.parent / "README.md").read_text()
        for word in ("command", "machine", "seed", "tasks", "date", "shows"):
            assert f"| {word}" in text, f"{folder.name}: {word}"


@pytest.mark.e2e
def test_the_pictures_of_the_results_are_drawn_from_the_kept_files(tmp_path):
    runpy.run_path(str(SCRIPTS / "draw_results.py"))["draw"](tmp_path)
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(drawn) == {
        f"{name}.svg"
        for name in ("adaptation", "adapts", "mage_and_lamer", "qwen", "real_models", "worlds")
    }
    for name, picture in drawn.items():
        stored = (RESULTS.parent / "docs" / "images" / name).read_bytes()
        assert len(stored) == pytest.approx(len(picture), rel=0.05), "run scripts/draw_results.py"


@pytest.mark.parametrize("name", ["kuhn", "draws", "cfr"])
def test_the_page_about_the_figures_of_the_paper_is_computed(name):
    """The table of rooms takes a minute, so it is computed by the script alone."""
    script = runpy.run_path(str(SCRIPTS / "paper_figures.py"))
    text = script["PAGE"].read_text("utf-8")
    assert script["fill"](text, name) == text, "run python scripts/paper_figures.py"
