"""Run folders from strangers: links, private folders, hostile values with valid checksums."""

import gc
import gzip
import json
import lzma
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.errors import ConfigError
from mage.credit import trajectories
from mage.engines.base import ScriptedEngine
from mage.engines.base import run as run_all
from mage.evaluation.rows import read_tasks
from mage.run_folder import DamagedError, RunError, RunFolder
from mage.run_folder import files as run_files
from mage.run_folder.files import reading, write_sealed
from mage.types import Request
from mage.viewer.export import to_json
from mage.viewer.library import Library
from mage.viewer.runs import MOST_POINTS, describe_run
from tests.view_runs import make_run

SECRET = "my-private-key"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("good") / "run").path


@pytest.fixture
def run(good, tmp_path):
    return Path(shutil.copytree(good, tmp_path / "runs" / "run"))


def call(*words: object) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


# --- Links


@pytest.mark.parametrize(
    "name",
    ["versions.json", "report/transcripts.md", "episodes/step_000006.jsonl.gz", "stages/1_x"],
)
def test_no_command_copies_a_file_behind_a_link(run, tmp_path, name):
    private = tmp_path / "private"
    private.write_text(json.dumps({"run_format": 1, "note": SECRET}))
    path = run / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(private)
    page, turns = tmp_path / "page", tmp_path / "turns.jsonl"
    for words in (("export", run, "--out", turns), ("report", run)):
        done = call(*words)
        assert done.exit_code == 2
        assert f"{name} is a symbolic link" in done.stderr
    done = call("view", run.parent, "--export", page)
    assert "run is left out" in done.stderr
    assert "is a symbolic link" in done.stderr
    written = [one.read_text("utf-8", "replace") for one in page.rglob("*") if one.is_file()]
    assert written
    assert not any(SECRET in text for text in written)


def test_a_link_to_the_whole_run_is_read(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").symlink_to(run)
    rows = Library([tmp_path / "elsewhere"]).get("runs")["runs"]
    assert [row["state"] for row in rows] == ["finished"]


def test_a_link_that_appears_while_the_page_is_open_is_refused(run, tmp_path):
    library = Library([run])
    library.get("run/run")
    (tmp_path / "private").write_text(SECRET)
    (run / "report").mkdir()
    (run / "report" / "transcripts.md").symlink_to(tmp_path / "private")
    with pytest.raises(RunError, match="is a symbolic link"):
        library.get("run/run/text")


def test_a_folder_of_links_to_itself_is_read_once(run):
    for number in range(250):
        (run.parent / f"link{number}").symlink_to(run.parent)
    began = time.process_time()
    assert list(Library([run.parent]).runs) == ["run"]
    assert time.process_time() - began < 5  # of this process: others may keep the machine busy


def test_a_private_folder_is_passed_over(run, monkeypatch):
    """The tests may run as root, who may read all folders: so the error is made."""
    private = run.parent / "private"
    (private / "below").mkdir(parents=True)
    real = Path.stat

    def stat(self: Path, **options: Any) -> os.stat_result:
        if private in self.parents:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert [row["id"] for row in Library([run.parent]).get("runs")["runs"]] == ["run"]


# --- Numbers


def test_numbers_that_json_cannot_hold_become_null():
    value = {"a": [float("nan"), float("inf"), 10**400, -(10**400), 1.5, "x"]}
    assert json.loads(to_json(value)) == {"a": [None, None, None, None, 1.5, "x"]}


@pytest.mark.parametrize(
    "number", ["Infinity", "-Infinity", "NaN", "1e999", "1" + "0" * 400, '"x"']
)
def test_one_run_with_a_strange_number_does_not_break_the_list(run, number):
    shutil.copytree(run, run.parent / "second")
    for name in ("timing.jsonl", "metrics.jsonl"):
        with (run / name).open("a") as file:
            file.write(f'{{"update": 7, "total": {number}, "score_1": {number}}}\n')
    (run / "versions.json").write_text('{"run_format": 1}')
    (run / "metrics.sha256").unlink()
    library = Library([run.parent])
    text = to_json(library.get("runs"))
    rows = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["runs"]
    assert {row["id"]: row["state"] for row in rows}["second"] == "finished"
    try:
        json.loads(to_json(library.get("run/run")), parse_constant=pytest.fail)
    except RunError as error:
        assert "damaged" in str(error)  # noqa: PT017


# --- Values of wrong types


def hostile(run: Path, what: str, value: Any) -> None:
    """Write a value of a wrong type with a valid checksum."""
    folder = RunFolder.open(run)
    if what == "metrics":
        folder.append_metrics({"update": 7, "score_1": value, "warnings": value, "episodes": value})
        folder.write_summary({"chosen_update": 6, "updates": 7})
    elif what == "timing":
        folder.append_timing({"update": 7, "total": value})
    elif what == "summary":
        folder.write_summary({"chosen_update": value, "updates": 6, "evaluations": value})
    elif what == "versions":
        versions = json.loads((run / "versions.json").read_text())
        kept = {"run_format": 2, "recipe_sha256": versions["recipe_sha256"]}
        write_sealed(run / "versions.json", {**kept, "packages": value, "forfeit_score": value})
    elif what == "evaluation":
        found = folder.read_evaluation("after_test")
        folder.write_evaluation("after_test", {**found, "overall": value})
    elif what == "rows":
        rows = folder.rows("after_test")
        row = json.loads(rows.read_text().splitlines()[0]) | {"scores": [value], "seat": value}
        rows.write_text(json.dumps(row) + "\n")
        folder.write_evaluation("after_test", folder.read_summary() and _evaluation(run))
    elif what == "episodes":
        path = run / "episodes" / "step_000006.jsonl.gz"
        meta = json.loads(gzip.decompress(path.read_bytes()).splitlines()[0])
        run_files.write_packed(path, json.dumps({**meta, "episodes": value}) + "\n")


def _evaluation(run: Path) -> dict[str, Any]:
    stored = json.loads((run / "evaluations" / "after_test.json").read_text())
    return {name: stored[name] for name in stored.keys() - {"sha256", "file", "rows_sha256"}}


DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
WHAT = ("metrics", "timing", "summary", "versions", "evaluation", "rows", "episodes")


@pytest.mark.e2e
@pytest.mark.parametrize("what", WHAT)
def test_hostile_values_give_one_message(run, tmp_path, what, monkeypatch):
    """Curves are drawn by other tests: they take seconds."""
    monkeypatch.setattr("mage.report.curves.draw_curves", lambda results: {})
    monkeypatch.setattr("mage.api.report.EPISODES", 1)
    kept = tmp_path / "kept"
    for number, value in enumerate(("x", 10**400, DEEP) if what == "summary" else ("x",)):
        shutil.copytree(run, kept)
        hostile(kept, what, value)
        for words in (
            ("check", kept),
            ("report", kept),
            ("export", kept, "--out", tmp_path / f"turns{number}.jsonl"),
            ("view", kept, "--export", tmp_path / f"page{number}", "--episodes", 1),
        ):
            done = call(*words)
            assert done.exit_code in (0, 1, 2)
            assert "Traceback" not in done.output
        shutil.rmtree(kept)


def test_a_wrong_value_is_a_message_with_its_cause():
    told = r"run/x is damaged: .* \(KeyError: 'a'\)"
    with pytest.raises(DamagedError, match=told) as caught, reading("run/x"):
        _ = {}["a"]
    assert isinstance(caught.value.__cause__, KeyError)


# --- Sizes


def test_packed_task_rows_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "_MOST_UNPACKED", 1_000)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * 100_000))
    with pytest.raises(DamagedError, match="hold more than"):
        read_tasks(path)


def test_packed_trajectories_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(trajectories, "_MOST_UNPACKED", 1_000)
    path = tmp_path / "games.jsonl.xz"
    path.write_bytes(lzma.compress(b" " * 10_000_000))
    with pytest.raises(ConfigError, match="holds more than"):
        list(trajectories.read_trajectories(path))
    path.write_bytes(lzma.compress(b"{}")[:-5])
    with pytest.raises(ConfigError, match=r"not a valid \.xz file"):
        list(trajectories.read_trajectories(path))


def test_a_long_table_of_credit_is_printed_as_lines(tmp_path, monkeypatch):
    """A table of the terminal needs minutes for 320,000 rows."""
    monkeypatch.setattr("mage.cli.verbs.credit.MOST_IN_TABLE", 10)
    turns = [{"state": f"s{k}"} for k in range(20)]
    episodes = [{"reward": 1, "turns": turns}]
    told = {"trajectories": [{"group": 0, "member": k, "episodes": episodes} for k in range(2)]}
    (tmp_path / "games.jsonl").write_text(json.dumps(told))
    done = call("credit", tmp_path / "games.jsonl", "--recipe", "kuhn_poker")
    lines = done.stdout.splitlines()
    assert len(lines) == 41
    assert lines[0].split()[:3] == ["line", "group", "member"]
    assert len({len(line) for line in lines}) == 1


def test_an_error_of_an_engine_leaves_no_open_coroutine():
    """Python would print "coroutine ... was never awaited" after the message of the error."""

    async def wait() -> str:
        return str(await engine.sample(Request((1,), 1, seed=0, temperature=0)))

    def fail(request: Request) -> str:
        raise RuntimeError("out of memory")

    engine = ScriptedEngine(fail, lambda text: (), batch=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match="out of memory"):
            run_all([wait() for _ in range(4)], limit=2)
        gc.collect()
    assert caught == []


def test_many_updates_are_listed_and_drawn(run):
    """The list reads few lines; a curve keeps its first and last point."""
    count = 3 * MOST_POINTS + 2
    lines = [json.dumps({"update": k, "score_1": 0.5}).encode() for k in range(1, count + 1)]
    run_files.write_lines(run / "metrics.jsonl", lines)
    (run / "metrics.sha256").unlink()
    (run / "summary.json").unlink()
    (run / "versions.json").write_text('{"run_format": 1}')
    library = Library([run])
    assert library.get("runs")["runs"][0]["updates"] == count
    updates = describe_run(RunFolder.open(run))["metrics"]["update"]
    assert (updates[0], updates[-1]) == (1, count)
    assert len(updates) <= MOST_POINTS + 1


def test_a_new_item_is_not_named_by_a_word_of_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("new", "environment", "class")
    assert done.exit_code == 2
    assert "is a word of Python itself" in done.stderr
    assert list(tmp_path.iterdir()) == []
