"""The run folder: files are read back as written; a kill or a full disk loses no earlier file."""

import errno
import itertools
import json
import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.recipe import build_recipe
from mage.report.run_results import read_run_results
from mage.run_folder import (
    LAUNCH,
    DamagedError,
    RunError,
    RunFolder,
    RunLocked,
    choose_path,
    files,
    lock_run,
    read_json,
    versions,
    write_atomic,
)
from mage.run_folder.episode_files import contents_path, read_contents
from mage.run_folder.files import append_line
from mage.run_folder.links import _below
from mage.run_folder.turn_files import write_credits
from mage.run_folder.update_lines import UpdateLines
from mage.types import Completion, Episode, MetaEpisode, Move, Task, Turn
from tests.torture.processes import Kill, call
from tests.toys import meta

finite = st.floats(allow_nan=False)
ids = st.lists(st.integers(0, 200_000), max_size=4).map(tuple)
texts = st.text(max_size=12)
logprobs, ends = st.lists(finite, max_size=4).map(tuple), st.sampled_from(["stop", "eos", "length"])
completions = st.builds(Completion, ids, logprobs, texts, ends, policy_version=st.integers(0, 9))
choices = st.tuples(st.integers(0, 9), st.lists(st.integers(0, 99), max_size=3).map(tuple))
turns = st.builds(
    Turn,
    kind=st.sampled_from(["play", "reflect"]),
    anchor=texts,
    observation=texts,
    prompt_ids=ids,
    completion=completions,
    action=st.none() | texts,
    choices=st.lists(choices, max_size=2).map(tuple),
    legal=st.booleans(),
    penalty=finite,
)
episodes = st.builds(
    Episode,
    turns=st.lists(turns, max_size=2).map(tuple),
    reflection=st.none() | turns,
    moves=st.lists(st.builds(Move, seat=st.integers(0, 1), action=texts), max_size=2).map(tuple),
    score=finite,
    reward=finite,
    outcome=st.sampled_from(["won", "lost", "drawn"]),
    ending=st.sampled_from(["finished", "illegal", "turn_limit", "error"]),
    recap=texts,
)
splits = st.sampled_from(["train", "test", "ood"])
metas = st.builds(
    MetaEpisode,
    task=st.builds(Task, texts, st.integers(0, 2**63 - 1), st.integers(0, 1), texts, splits),
    group=st.integers(0, 99),
    member=st.integers(0, 99),
    episodes=st.lists(episodes, max_size=2).map(tuple),
    memories=st.lists(texts, max_size=2).map(tuple),
    policy_version=st.integers(0, 9),
)


@pytest.fixture
def recipe(kuhn_tables):
    return build_recipe(kuhn_tables)


@pytest.fixture
def run(tmp_path, recipe):
    return RunFolder.create(tmp_path / "run", recipe)


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory):
    tables = {"environments": {"name": "kuhn_poker"}, "opponents": {"train": {"random": 1.0}}}
    return RunFolder.create(tmp_path_factory.mktemp("runs") / "run", build_recipe(tables))


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_is_opened_with_the_recipe_it_was_created_with(run, recipe):
    assert RunFolder.open(run.path).recipe == recipe
    assert run.checkpoints.is_dir()


def test_versions_are_those_of_the_installed_packages(run):
    import numpy

    stored = run.read_versions()
    assert stored.pop("recipe_sha256")
    assert stored.pop("forfeit_score") == run.recipe.environment().forfeit_score
    assert stored == versions()
    assert stored["packages"]["numpy"] == numpy.__version__


def test_an_existing_folder_is_never_overwritten(run, recipe):
    run.append_metrics({"update": 1})
    told = r"exists already: resume it \(--resume .*run\), give the new run another name"
    with pytest.raises(RunError, match=told):
        RunFolder.create(run.path, recipe)
    assert run.metrics() == [{"update": 1}]


@pytest.mark.e2e
def test_a_kill_while_a_folder_is_created_leaves_no_run_or_a_whole_one(tmp_path, recipe):
    """The process is killed before its first file operation, before its second one, and so on."""
    path, numbers = tmp_path / "runs" / "run", itertools.count(1)

    def create() -> None:
        RunFolder.create(path, recipe, job="host:1")

    kills = (Kill(operation=number, folder=tmp_path / "runs") for number in numbers)
    while call(create, tmp_path / "log", next(kills)).was_killed:
        if path.exists():  # killed after the folder was there
            assert RunFolder.open(path).recipe == recipe
            assert read_json(path / LAUNCH)["job"] == "host:1"
            shutil.rmtree(path)
    assert next(numbers) > 10, "every file and folder is an operation"
    assert [one.name for one in path.parent.iterdir()] == ["run"], "no leftovers of killed ones"


def test_a_run_without_a_name_gets_the_next_number(tmp_path, recipe, kuhn_tables):
    assert choose_path(tmp_path, recipe, "demo") == tmp_path / "demo-1"
    (tmp_path / "demo-1").mkdir()
    assert choose_path(tmp_path, recipe, "demo") == tmp_path / "demo-2"
    named = build_recipe(kuhn_tables | {"run": {"name": "mine"}})
    assert choose_path(tmp_path, named, "demo") == tmp_path / "mine"


def test_metrics_hold_one_json_object_per_update(run):
    run.append_metrics({"update": 1, "loss": 0.5})
    run.append_metrics({"update": 2, "loss": float("nan"), "rows": [1, float("inf")]})
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"update": 1, "loss": 0.5},
        {"update": 2, "loss": None, "rows": [1, None]},
    ]
    assert run.timing() == []


def test_a_rewound_run_has_nothing_after_that_update(run):
    for update in (1, 2, 3):
        run.append_metrics({"update": update})
        run.append_timing({"update": update, "seconds": 1.5})
        run.write_episodes(update, [])
    run.rewind(2)
    assert run.metrics() == [{"update": 1}, {"update": 2}]
    assert [record["update"] for record in run.timing()] == [1, 2]
    assert run.episode_steps() == [1, 2]


@pytest.mark.parametrize("rest", [b"{", b'{"update": 2', b'{"update": 2}', b'{"update": 2}\n'])
def test_a_line_that_a_kill_left_without_its_checksum_is_dropped(run, rest):
    run.append_metrics({"update": 1})
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + rest)
    assert run.metrics() == [{"update": 1}]
    run.rewind(1)
    run.append_metrics({"update": 2})
    assert run.metrics() == [{"update": 1}, {"update": 2}]


def test_a_run_of_an_old_version_is_read_without_checksums(run):
    (run.path / "versions.json").write_text('{"mage": "0.1"}')
    (run.path / "metrics.jsonl").write_text('{"update": 1}\n{"update": 2}\n')
    (run.path / "evaluations" / "before.json").write_text('{"score": 0.25}')
    assert run.metrics() == [{"update": 1}, {"update": 2}]
    assert run.read_evaluation("before") == {"score": 0.25}
    run.rewind(1)
    assert run.metrics() == [{"update": 1}]


def hold(path: Path, note: Path) -> None:
    """In a process of its own: keep the lock."""
    sys.argv = ["mage", "hold", str(path)]
    with lock_run(path):
        note.touch()
        time.sleep(600)


def test_a_second_process_is_refused_and_a_stale_lock_is_not(run, tmp_path):
    other = processes.start(hold, run.path, tmp_path / "held")
    while not (tmp_path / "held").exists():
        assert other.is_alive()
        time.sleep(0.01)
    message = rf"is in use by process {other.pid} on .*\(mage hold .*run\) since \d{{4}}-"
    try:
        with pytest.raises(RunLocked, match=message), lock_run(run.path):
            pass
    finally:
        other.kill()  # as a crash: the owner's name stays in the file
        processes.wait(other)
    assert str(other.pid) in (run.path / ".lock").read_text()
    with lock_run(run.path), pytest.raises(RunLocked, match=f"process {os.getpid()} "):
        lock_run(run.path).__enter__()


def test_a_small_file_that_holds_too_much_is_not_unpacked(tmp_path, monkeypatch):
    """100,000 line breaks in 130 bytes; the limit of a real file is larger."""
    monkeypatch.setattr(files, "_MOST_UNPACKED", 1_000)
    path = files.write_packed(tmp_path / "x.jsonl.gz", "\n" * 100_000)
    with pytest.raises(DamagedError, match="hold more than"):
        files.read_packed(path)
    assert files.read_packed(files.write_packed(tmp_path / "y.gz", "a\nb\n")) == [b"a", b"b"]


@pytest.mark.parametrize(
    "name", [".lock", "metrics.jsonl", "timing.jsonl", "checkpoints", "report", "episodes/x.gz"]
)
def test_a_folder_with_a_link_is_not_written(run, tmp_path, name):
    """A stranger's run folder: the link leads to a file or folder of the user."""
    own = tmp_path / "own"
    own.mkdir() if name in ("checkpoints", "report") else own.write_text("mine")
    path = run.path / name
    if path.is_dir():
        path.rmdir()
    path.symlink_to(own)
    with pytest.raises(RunError, match="is a symbolic link"), lock_run(run.path):
        pass
    assert own.is_dir() or own.read_text() == "mine"
    linked = tmp_path / "linked"
    path.unlink()
    linked.symlink_to(run.path)
    with lock_run(linked):  # the whole folder may be a link
        pass


@pytest.mark.e2e
@settings(max_examples=15)
@given(st.lists(metas, max_size=3))
def test_episodes_are_read_back_as_they_were_written(shared_run, stored):
    path = shared_run.write_episodes(40, stored)
    assert path.name == "step_000040.jsonl.gz"
    assert shared_run.read_episodes(40) == stored
    first = path.read_bytes()
    shared_run.write_episodes(40, stored)
    assert path.read_bytes() == first


@pytest.mark.parametrize("change", [b"7", b"[" * 100_000, None])
def test_a_changed_table_of_contents_is_not_used(run, change):
    path = run.write_episodes(5, [meta((1.0, -1.0), group=3)])
    table, rows = contents_path(path), read_contents(path).rows
    assert read_contents(path).offsets
    other = table.read_bytes().replace(b"0.1", b"0.9")  # the scores are 0.1 and -0.1
    assert other != table.read_bytes()
    table.write_bytes(change or other)
    assert read_contents(path).rows == rows
    assert not read_contents(path).offsets, "the file itself was read"


def test_only_the_transcripts_of_the_newest_updates_are_kept(run):
    for update in (10, 20, 30, 40):
        run.write_episodes(update, [])
        write_credits(run.path, update, [])
    run.write_episodes_of("before_test", [])
    run.prune_episodes(0)
    assert run.episode_steps() == [10, 20, 30, 40]
    run.prune_episodes(2)
    assert run.episode_steps() == [30, 40]
    names = sorted(path.name for path in (run.path / "episodes").glob("*.gz"))
    assert names == [
        *("before_test.jsonl.gz", "step_000030.credit.jsonl.gz", "step_000030.jsonl.gz"),
        *("step_000040.credit.jsonl.gz", "step_000040.jsonl.gz"),
    ]


def test_a_kill_before_any_operation_of_a_deletion_of_transcripts_is_made_good(run, tmp_path):
    """The next deletion removes what is left of the same update."""
    numbers = itertools.count(1)

    def fill_and_kill() -> bool:
        for update in (10, 20):
            run.write_episodes(update, [])
            write_credits(run.path, update, [])
        kill = Kill(operation=next(numbers), folder=run.path)
        return call(lambda: run.prune_episodes(1), tmp_path / "log", kill).was_killed

    while fill_and_kill():
        run.prune_episodes(1)
        assert not list((run.path / "episodes").glob("step_000010.*"))
    assert next(numbers) == 5, "transcripts, table of contents and credit were deleted one by one"


def test_temporary_files_of_a_killed_process_are_deleted(run):
    left = [run.path / ".metrics.jsonl.7.tmp", run.path / "episodes" / ".step_000001.7.tmp"]
    for path in left:
        path.write_text("half")
    (run.path / ".warm-abc" / "new").mkdir(parents=True)
    run.delete_leftovers()
    assert [path for path in run.path.rglob(".*") if path.name != ".lock"] == []


def test_evaluations_and_the_summary_are_read_back(run):
    run.write_evaluation("before", {"score": 0.25})
    run.write_summary({"gain": 0.5})
    assert run.evaluation_names() == ["before"]
    assert run.read_evaluation("before") == {"score": 0.25}
    assert run.read_summary() == {"gain": 0.5}
    with pytest.raises(RunError, match=r"there is no .*after\.json"):
        run.read_evaluation("after")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_temporary_file(tmp_path, monkeypatch, failing):
    path = write_atomic(tmp_path / "summary.json", b"old")
    monkeypatch.setattr(os, failing, full_disk)
    told = r"cannot write .*summary\.json: No space left on device\. Files saved earlier are unch"
    with pytest.raises(RunError, match=told):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_between_the_first_line_and_its_checksum_leaves_a_valid_file(tmp_path, monkeypatch):
    """The second write is the checksum of the first line. The run can be read and resumed."""
    calls: list[Path] = []

    def killed(path: Path, line: bytes) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        append_line(path, line)

    lines = UpdateLines(tmp_path / "metrics.jsonl", checked=True)
    monkeypatch.setattr("mage.run_folder.update_lines.append_line", killed)
    with pytest.raises(KeyboardInterrupt):
        lines.append({"update": 1})
    monkeypatch.undo()
    assert lines.read() == []
    lines.keep_until(0)
    lines.append({"update": 1})
    assert lines.read() == [{"update": 1}]


@pytest.mark.parametrize("cut", [0, 1, 40, 64])
def test_an_update_is_added_without_reading_the_updates_before_it(tmp_path, monkeypatch, cut):
    """`cut`: bytes of an incomplete checksum, which a kill can leave."""
    lines = UpdateLines(tmp_path / "metrics.jsonl", checked=True)
    monkeypatch.delattr("mage.run_folder.update_lines.read_lines")
    for update in range(1, 4):
        with open(lines.sums, "ab") as file:
            file.write(b"x" * cut)
        lines.append({"update": update})
    monkeypatch.undo()
    assert [record["update"] for record in lines.read()] == [1, 2, 3]


def test_emptied_checksums_of_a_finished_run_are_reported(run):
    run.append_metrics({"update": 1})
    run.write_summary({"updates": 1, "chosen_update": 0})
    (run.path / "metrics.sha256").write_text("")
    with pytest.raises(RunError, match=r"metrics\.sha256 is damaged: 0 updates have checksums"):
        read_run_results(run)


@pytest.mark.parametrize("state", ["empty", "warm", "locked"])
def test_a_failed_start_deletes_a_new_run_only_if_it_is_unused_and_empty(
    tmp_path, monkeypatch, state
):
    """A finished warm-up stays, and so does a run that another process has locked since then."""
    path, held = tmp_path / "runs" / "mine", ExitStack()

    def fail(*arguments: Any, **options: Any) -> None:
        if state == "warm":
            (path / "warm").mkdir()
        if state == "locked":
            held.enter_context(lock_run(path))
        raise RunError("cannot write: No space left on device")

    monkeypatch.setattr("mage.api.runs.train_shown", fail)
    words = ["train", "demo", "--run.name=mine", "--runs", str(path.parent)]
    with held:
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert path.exists() == (state != "empty")
    assert ("continue with: mage train --resume" in done.output) == path.exists()


def test_a_run_that_was_deleted_under_its_lock_is_not_used(run):
    with lock_run(run.path):
        waiting = open(run.path / ".lock", "ab+", buffering=0)  # noqa: SIM115
        shutil.rmtree(run.path)
    with waiting, pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.open", lambda *_, **__: waiting)
        with pytest.raises(RunError, match="was deleted by the process"), lock_run(run.path):
            pass


def test_a_full_disk_does_not_hinder_a_lock(run, monkeypatch):
    """What it holds is for a message only; a run that has failed is deleted under its lock."""
    monkeypatch.setattr("mage.run_folder.lock._write_owner", full_disk)
    with lock_run(run.path), pytest.raises(RunLocked, match="another process"):
        lock_run(run.path).__enter__()


def test_a_folder_that_a_training_deletes_meanwhile_holds_no_links(tmp_path):
    assert not list(_below(str(tmp_path / "update_000001")))
