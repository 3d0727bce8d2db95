"""What the viewer reads besides transcripts: kinds of tasks, kept results, tables of contents."""

import gzip
import io
import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corridor import Corridor
from rich.console import Console

from mage.cli.terminal.results import kinds_table
from mage.config.recipe import build_recipe
from mage.evaluation.kinds import figures_by_kind
from mage.evaluation.panels import make_panel
from mage.evaluation.rows import TaskRow, write_tasks
from mage.opponents.base import Population
from mage.reproduce.results import _Played
from mage.run_folder import DamagedError, RunFolder
from mage.run_folder.episode_files import MEMBER, contents_path, read_contents, read_member
from mage.run_folder.files import seal, to_line
from mage.types import Task
from mage.viewer.comparison import _changed
from mage.viewer.export import collect, write_file
from mage.viewer.library import Library
from tests.view_runs import STYLES, make_run, play

RESULTS = Path(__file__).parent.parent / "results"


# --- Runs of another machine


@pytest.mark.parametrize("world", ["alfworld", "webshop"])
def test_a_run_whose_data_is_on_another_machine_is_shown(tmp_path, world):
    options = {"name": world, "data": "/data/of/another/machine"}
    folder = RunFolder.create(tmp_path / "far", build_recipe({"environments": options}))
    folder.append_metrics({"update": 1, "score_1": 0.25})
    library = Library([tmp_path])
    (row,) = library.get("runs")["runs"]
    assert (row["state"], row["environment"], row["updates"]) == ("running", world, 1)
    assert library.get("run/far")["toml"].count("/data/of/another/machine") == 1


# --- Kinds of tasks


def row_of(task: Any, outcomes: tuple[str, ...]) -> TaskRow:
    scores = tuple(float(one == "won") for one in outcomes)
    counts = (1,) * len(outcomes)
    return TaskRow(task, 0, scores, outcomes, ("finished",) * len(outcomes), counts, counts, counts)


def test_success_is_counted_by_kind_of_task(tmp_path):
    """Every task of the type `light` is won from its second episode on, every other one is lost.

    The goal sentence of the game tells the type: only `light` tasks examine something.
    """
    options = {"task_types": ["place", "light"], "receptacles": 3, "objects": 2, "restart": "same"}
    recipe = build_recipe({"environments": {"name": "alfworld", **options}})
    folder = RunFolder.create(tmp_path / "run", recipe)
    world = recipe.environment().for_split("test")
    rows = []
    for task in make_panel(recipe.environment(), Population(), "test", size=8):
        text = world.start(world.episode_seed(task.seed, 0)).observe(0)
        light = "examine" in text or "look at" in text
        rows.append(row_of(task, ("lost", "won" if light else "lost")))
    assert {row.outcomes[1] for row in rows} == {"won", "lost"}
    write_tasks(folder.rows("after_test"), rows)
    found = Library([tmp_path]).get("run/run/kinds/after_test")["kinds"]
    shown = {one["kind"]: [cell["success"]["value"] for cell in one["episodes"]] for one in found}
    assert shown == {"light": [0.0, 1.0], "place": [0.0, 0.0]}
    assert sum(one["episodes"][0]["tasks"] for one in found) == len(rows)


class Halves(Corridor):
    """Tasks with an even seed are of kind `a`, the others of kind `b`."""

    def episode_seed(self, task_seed: int, episode: int) -> int:
        return task_seed

    def task_kind(self, seed: int) -> str:
        return "ab"[seed % 2]


def test_mage_evaluate_shows_success_by_kind_of_task():
    """Two of the three tasks of kind `a` are won in the second episode, the task of `b` never."""
    ends = {0: "won", 2: "won", 4: "lost", 1: "lost"}
    rows = [
        row_of(Task("variants", seed, 0, "", "test"), ("lost", end)) for seed, end in ends.items()
    ]
    rows += [replace(row, member=1) for row in rows]  # a second play adds no task
    out = io.StringIO()
    Console(file=out, width=100).print(kinds_table(figures_by_kind(Halves(), rows)))
    lines = [line.split() for line in out.getvalue().splitlines() if line[1:3] in ("a ", "b ")]
    assert [line[:3] + line[5:6] for line in lines] == [["a", "3", "0", "67"], ["b", "1", "0", "0"]]


def test_equal_plays_of_a_task_are_compared():
    """Two plays of one task differ, but both runs have the same two plays."""
    task = Task("variants", 1, 0, "", "test")
    rows = [row_of(task, ("lost", end)) for end in ("won", "lost")]
    rows = [replace(row, member=play) for play, row in enumerate(rows)]
    assert _changed(rows, rows) == []
    assert len(_changed(rows, [rows[0], replace(rows[0], member=1)])) == 1


def test_several_plays_of_a_task_count_as_one_task_in_a_table():
    tasks = [Task("variants", seed, 0, "", "test") for seed in (1, 2)]
    ends = (("lost", "won"), ("lost", "lost"), ("won", "lost"), ("lost", "lost"))
    rows = [
        replace(row_of(tasks[k % 2], end), member=k // 2) for k, end in enumerate(ends)
    ]  # task 1 is played as lost, won and won, lost; task 2 is never won
    played = _Played([(0, rows)], True)
    assert (played.tasks, played.plays) == (tasks, 2)
    assert played.values["success"][0].tolist() == [[0.5, 0.5], [0.0, 0.0]]
    assert played.values["pass_at"][0].tolist() == [[0.5, 1.0], [0.0, 0.0]]


def test_an_environment_with_one_kind_has_no_table(tmp_path):
    make_run(tmp_path / "one")
    assert Library([tmp_path]).get("run/one/kinds/after_test")["kinds"] == []


# --- Kept results


@pytest.mark.e2e
def test_kept_results_show_their_figures_and_texts():
    library = Library([RESULTS])
    rows = {row["id"]: row for row in library.get("runs")["runs"]}
    assert [id for id, row in rows.items() if row["state"] == "damaged"] == []
    stored = json.loads((RESULTS / "demo" / "evaluations" / "after_test.json").read_text())
    last = stored["overall"]["episodes"][-1]["score"]
    assert rows["demo"]["score"]["value"] == last["value"]
    assert rows["demo"]["started"] is None, "the time of a copy is not that of the run"
    run = library.get("run/demo")
    selected = sorted((RESULTS / "demo" / "evaluations").glob("select_*.json"))
    assert [cell["update"] for cell in run["select"]] == [int(one.stem[7:]) for one in selected]
    assert "### 1. against dirichlet-0.5" in library.get("run/demo/text")["text"]
    assert run["stored"] == []


@pytest.mark.e2e
def test_kept_results_without_summary_are_stopped_runs():
    rows = {row["id"]: row for row in Library([RESULTS]).get("runs")["runs"]}
    assert rows["smollm2_sokoban_long.gigpo_seed1"]["state"] == "stopped"


@pytest.mark.e2e
def test_kept_task_rows_give_the_strip_and_the_paired_differences_of_the_run(tmp_path):
    make_run(tmp_path / "runs" / "one")
    keep = runpy.run_path(str(RESULTS.parent / "scripts" / "keep_results.py"))["keep"]
    keep(tmp_path / "runs" / "one", tmp_path / "kept" / "one")
    run, kept = Library([tmp_path / "runs"]), Library([tmp_path / "kept"])
    assert kept.get("run/one/tasks/after_test") == run.get("run/one/tasks/after_test")
    assert kept.get("compare/one/one") == run.get("compare/one/one")
    for name in ("panels", "warnings"):
        assert kept.get("run/one")[name] == run.get("run/one")[name]
    for path in (tmp_path / "kept" / "one").rglob("*.*"):
        assert str(tmp_path).encode() not in path.read_bytes(), path.name


# --- Tables of contents


def many(path: Path, count: int) -> Path:
    few = play("train", 4)
    metas = [few[k % len(few)] for k in range(count)]
    tables = {"environments": {"name": "kuhn_poker"}, "opponents": {"train": STYLES}}
    RunFolder.create(path, build_recipe(tables)).write_episodes(1, metas)
    return path / "episodes" / "step_000001.jsonl.gz"


def test_the_table_of_contents_equals_the_file_and_leads_to_every_line(tmp_path):
    path = many(tmp_path / "run", 2 * MEMBER + 3)
    written = read_contents(path)
    lines = gzip.decompress(path.read_bytes()).splitlines()
    for number, line in enumerate(lines):
        member, place = written.place(number)
        assert read_member(path, written, member)[place] == line
    contents_path(path).unlink()
    assert read_contents(path).rows == written.rows
    assert len(written.rows) == len(lines) == 2 * MEMBER + 3


def test_a_table_of_contents_of_another_file_is_ignored(tmp_path):
    path = many(tmp_path / "run", 3)
    table = json.loads(contents_path(path).read_text())
    contents_path(path).write_text(json.dumps(table | {"rows": []}))
    assert len(read_contents(path).rows) == 3, "its checksum does not fit"
    del table["sha256"]
    resized = seal(table | {"size": table["size"] + 1, "rows": []})
    contents_path(path).write_bytes(to_line(resized))
    assert len(read_contents(path).rows) == 3
    contents_path(path).write_text("no table")
    assert len(read_contents(path).rows) == 3


def test_files_of_one_gzip_member_are_read_as_before(tmp_path):
    path = many(tmp_path / "run", MEMBER + 2)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())))
    contents = read_contents(path)
    assert contents.offsets == ()
    library = Library([tmp_path])
    assert library.get(f"run/run/meta/step_000001/{MEMBER + 1}")["number"] == MEMBER + 1
    assert len(RunFolder.open(tmp_path / "run").read_episodes(1)) == MEMBER + 2


def test_a_damaged_member_gives_one_message(tmp_path):
    path = many(tmp_path / "run", MEMBER + 2)
    contents = read_contents(path)
    data = bytearray(path.read_bytes())
    data[contents.offsets[1] + 40] ^= 0xFF
    path.write_bytes(bytes(data))
    assert len(read_member(path, contents, 0)) == MEMBER, "other members stay readable"
    with pytest.raises(DamagedError, match="is damaged"):
        read_member(path, contents, 1)


# --- Hostile names


def test_a_folder_with_markup_in_its_name_gets_a_plain_id_and_stays_text(tmp_path):
    name = "<img src=x onerror=alert(1)>"
    make_run(tmp_path / name)
    library = Library([tmp_path])
    (id,) = library.runs
    assert re.fullmatch(r"[A-Za-z0-9_.+-]+", id)
    assert library.get("runs")["runs"][0]["title"] == name
    page = write_file(tmp_path / "page.html", collect(library)).read_text("utf-8")
    assert name not in page
    assert "\\u003cimg src=x" in page
