"""Damaged run folders: `mage check` names the file, and the line, of everything that was changed.

One small folder with every kind of file is damaged in one way for each row of the table. Random
damages of real runs, and all commands that read them, are in tests/torture/damage.py.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mage.api.check_run import check_run
from mage.config.loading import build_recipe
from mage.evaluation.rows import task_row, write_tasks
from mage.learn import checkpoint
from mage.run_folder import RunError, RunFolder
from mage.run_folder.files import write_checksums
from mage.run_folder.turn_files import write_credits
from tests.test_checkpoint import make
from tests.toys import meta


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of three updates, without training."""
    tables = {"environments": {"name": "kuhn_poker"}, "opponents": {"train": {"random": 1.0}}}
    run = RunFolder.create(tmp_path_factory.mktemp("runs") / "run", build_recipe(tables))
    played = meta((1.0, -1.0), group=3)
    for update in (1, 2, 3):
        run.append_metrics({"update": update, "score": 0.25})
        run.write_episodes(update, [played])
        write_credits(run.path, update, [])
    names = ["after_test", "select_000000", "select_000002"]
    for name in names:
        write_tasks(run.rows(name), [task_row(played)])
        run.write_evaluation(name, {"score": 0.25, "of": name})
    state = {"best": [0.5, 2], "evaluations": names}
    for update in (1, 2):
        checkpoint.save(run.checkpoints, replace(make(update), state=state))
    run.warm.mkdir()
    (run.warm / "model.safetensors").write_bytes(b"weights")
    write_checksums(run.warm)
    run.write_summary({"updates": 3, "chosen_update": 2, "evaluations": names})
    assert faults_of(run.path) == ""
    return run.path


def faults_of(path: Path) -> str:
    try:
        return "\n".join(check_run(RunFolder.open(path)).faults)
    except RunError as error:
        return str(error)


def damage(run: Path, name: str, how: str) -> None:
    """Do what the second column of the table says to the file in the first one."""
    path = run / name
    text = path.read_text("latin-1") if path.is_file() else ""
    match how.partition(" "):
        case "missing", _, _:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        case "pipe", _, _:
            os.mkfifo(path)
        case "link", _, target:
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        case "file", _, _:
            shutil.rmtree(path)
            path.write_text("a file")
        case "holds", _, other:
            shutil.copy(run / other, path)
        case "exchange", _, other:
            path.rename(run / "aside")
            (run / other).rename(path)
            (run / "aside").rename(run / other)
        case _:
            changed = edit(text, how)
            assert changed != text, "the table fits to the file"
            path.write_text(changed, "latin-1")


def edit(text: str, how: str) -> str:
    match how.partition(" "):
        case "cut", _, _:
            return text[:-3]
        case "flip", _, _:
            return text[:-9] + chr(ord(text[-9]) ^ 1) + text[-8:]
        case "is", _, content:
            return content
        case "more", _, line:
            return f"{text}{line}\n"
        case "lines", _, numbers:
            return "".join(text.splitlines(True)[int(number) - 1] for number in numbers.split())
    old, arrow, new = how.partition(" -> ")
    assert arrow, "the table knows this change"
    return text.replace(old, new, 1)


# File | what is done to it | part of the message.
TABLE = """
recipe.toml | seed = 0 -> seed = 1 | recipe.toml was changed after the run began
versions.json | "run_format": 2 -> "run_format": 1 | versions.json does not match its checksum
versions.json | "sha256" -> "sha356" | has no checksum (sha256)
versions.json | missing | versions.json is missing
versions.json | holds summary.json | content of another file (summary.json)
metrics.jsonl | 0.25 -> 0.26 | line 1 was changed
metrics.jsonl | { -> [ | line 1 was changed
metrics.jsonl | lines 1 3 | line 2 is missing or changed
metrics.jsonl | lines 1 2 | 2 lines, 3 were written
metrics.jsonl | cut | 2 lines, 3 were written
metrics.jsonl | is | 0 lines, 3 were written
metrics.jsonl | missing | 0 lines, 3 were written
metrics.jsonl | more {"update": 4} | it has 4 lines, 3 were written
metrics.jsonl | link /dev/zero | is a pipe or a device
metrics.sha256 | missing | metrics.sha256 is missing
evaluations/after_test.json | 0.25 -> 0.35 | after_test.json does not match its checksum
evaluations/after_test.json | is [] | after_test.json
evaluations/after_test.json | is 3 | after_test.json
evaluations/after_test.json | is { | after_test.json
evaluations/after_test.json | is | after_test.json
evaluations/after_test.json | is DEEP | after_test.json
evaluations/after_test.json | is {"score": 0.25} | after_test.json has no checksum
evaluations/after_test.json | missing | after_test.json is missing
evaluations/select_000000.json | exchange evaluations/select_000002.json | content of another file
evaluations/after_test.tasks.jsonl | 0.1 -> 0.9 | after_test.tasks.jsonl does not match its checks
evaluations/after_test.tasks.jsonl | missing | after_test.tasks.jsonl is missing
evaluations/x.json | pipe | is a pipe or a device
evaluations | file | evaluations is damaged: it is not a folder
summary.json | 3 -> 4 | summary.json does not match its checksum
episodes/step_000002.jsonl.gz | cut | is damaged and cannot be read
episodes/step_000002.jsonl.gz | is | is damaged: it is empty
episodes/step_000002.jsonl.gz | holds episodes/step_000001.jsonl.gz | another file (step_000001
episodes/step_000002.credit.jsonl.gz | link gone | credit.jsonl.gz is a symbolic link
episodes/step_000002.moves.jsonl.gz | link gone | moves.jsonl.gz is a symbolic link
warm/model.safetensors | weights -> weighty | model.safetensors does not match its checksum
warm/model.safetensors | missing | model.safetensors is missing
CHECKPOINT | missing | update_000002 is missing: it is the best
CHECKPOINT | exchange checkpoints/update_000001 | is broken: it is the checkpoint of update 1
CHECKPOINT/x | pipe | is a pipe or a device
CHECKPOINT/model.safetensors | cut | broken: model.safetensors has
CHECKPOINT/model.safetensors | flip | broken: model.safetensors does not have the SHA-256
CHECKPOINT/model.safetensors | missing | broken: model.safetensors is missing
CHECKPOINT/optimizer.safetensors | cut | broken: optimizer.safetensors has
CHECKPOINT/optimizer.safetensors | flip | broken: optimizer.safetensors does not have the SHA-256
CHECKPOINT/optimizer.safetensors | missing | broken: optimizer.safetensors is missing
CHECKPOINT/state.json | cut | broken: state.json has
CHECKPOINT/state.json | flip | broken: state.json does not have the SHA-256
CHECKPOINT/state.json | missing | broken: state.json is missing
CHECKPOINT/manifest.json | "format": 1 -> "format": 99 | format 99; this version reads format 1
CHECKPOINT/manifest.json | missing | broken: manifest.json cannot be read
CHECKPOINT/manifest.json | is | broken: manifest.json cannot be read
CHECKPOINT/manifest.json | is [] | broken: manifest.json does not list
CHECKPOINT/manifest.json | is { | broken: manifest.json cannot be read
CHECKPOINT/manifest.json | is {"files": {}} | broken: manifest.json does not list
CHECKPOINT/manifest.json | is {"files": {"state.json": 3}} | broken: manifest.json does not list
CHECKPOINT/manifest.json | is DEEP | broken: manifest.json cannot be read
"""
SHORT = {"CHECKPOINT": "checkpoints/update_000002", "DEEP": "[" * 100_000}


@pytest.mark.parametrize("row", TABLE.strip().splitlines())
def test_a_damaged_file_is_named(whole, tmp_path, row):
    for name, meant in SHORT.items():
        row = row.replace(name, meant)
    name, how, message = (word.strip() for word in row.split(" | "))
    damage(shutil.copytree(whole, tmp_path / "run"), name, how)
    assert message in faults_of(tmp_path / "run")


def test_what_a_checkpoint_depends_on_must_exist(whole, tmp_path):
    """In an unfinished run, and if a file and its checksums are gone together."""
    run = shutil.copytree(whole, tmp_path / "run")
    for name in ("summary.json", "evaluations/select_000000.json"):
        damage(run, name, "missing")
    assert "select_000000.json is missing" in faults_of(run)
    for name in ("metrics.jsonl", "metrics.sha256"):
        damage(run, name, "missing")
    assert "Updates 1 to 2 are missing" in faults_of(run)


READERS: tuple[tuple[str, str, Callable[[RunFolder], Any], str], ...] = (
    ("metrics.jsonl", "0.25 -> 0.26", RunFolder.metrics, "line 1 was changed"),
    ("warm/model.safetensors", "missing", RunFolder.begun_recipe, "is missing"),
    ("episodes/step_000003.jsonl.gz", "cut", lambda run: run.read_episodes(3), "cannot be read"),
    ("episodes/step_000003.jsonl.gz", "missing", lambda run: run.read_episodes(3), "it has 1, 2"),
    (
        "evaluations/after_test.json",
        "0.25 -> 0.35",
        lambda run: run.read_evaluation("after_test"),
        "does not match its checksum",
    ),
    (
        "checkpoints/update_000002/state.json",
        "cut",
        lambda run: checkpoint.load(run.checkpoints / "update_000002"),
        "broken: state.json has",
    ),
)


@pytest.mark.parametrize(("name", "how", "read", "message"), READERS)
def test_readers_verify_what_they_read(whole, tmp_path, name, how, read, message):
    """Training and reports use these functions, without `mage check`."""
    run = RunFolder.open(shutil.copytree(whole, tmp_path / "run"))
    read(run)
    damage(run.path, name, how)
    with pytest.raises(ValueError, match=message):
        read(run)


def test_a_gap_in_metrics_without_checksums_is_reported(whole, tmp_path):
    """Old versions of MAGE wrote no checksums."""
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "versions.json").write_text(json.dumps({"mage": "0.1"}))
    damage(run, "metrics.sha256", "missing")
    damage(run, "metrics.jsonl", "lines 1 3")
    assert "line 2 should hold update 2, it holds update 3" in faults_of(run)
