"""A broken checkpoint is refused by name; a failed save never damages an earlier checkpoint."""

import itertools
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mage.api.check_run import check_run
from mage.config.recipe import build_recipe
from mage.learn import checkpoint
from mage.learn.checkpoint import Checkpoint
from mage.run_folder import RunFolder
from tests.torture.processes import Kill, call

STEP = torch.tensor(3.0)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make(update: int, *, adapter: bool = False, size: int = 8) -> Checkpoint:
    weights, optimizer = {"layer.weight": torch.arange(size) / 7}, {"layer.weight.step": STEP}
    return Checkpoint(update, weights, adapter, optimizer, {"best": 0.5, "name": "ünï"})


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The operating system refuses larger files, with the error of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("adapter", [False, True])
def test_a_saved_checkpoint_is_loaded_with_the_same_content(tmp_path, adapter):
    saved = make(40, adapter=adapter)
    path = checkpoint.save(tmp_path, saved)
    found = checkpoint.load(path)
    assert path == tmp_path / "update_000040"
    assert (found.update, found.adapter, found.state) == (40, adapter, saved.state)
    assert torch.equal(found.weights["layer.weight"], saved.weights["layer.weight"])
    assert torch.equal(found.optimizer["layer.weight.step"], STEP)
    assert names_in(tmp_path) == ["update_000040"], "no temporary folder is left"
    with pytest.raises(ValueError, match="no checkpoint at"):
        checkpoint.load(tmp_path / "update_000001")


def test_latest_skips_broken_checkpoints_and_reports_them(tmp_path):
    for update in (999_999, 1_000_000, 1_000_001):
        checkpoint.save(tmp_path, make(update))
    (tmp_path / "update_1000001" / "model.safetensors").write_bytes(b"")
    (tmp_path / "notes").mkdir()
    found = checkpoint.latest(tmp_path)
    assert found.path == tmp_path / "update_1000000", "numbers are compared as numbers"
    assert len(found.broken) == 1
    assert "update_1000001 is broken: model.safetensors" in found.broken[0]
    assert checkpoint.latest(tmp_path / "nowhere") == checkpoint.Latest(None, ())


@pytest.mark.parametrize("update", [1, 2])
def test_a_full_disk_damages_no_earlier_checkpoint(tmp_path, update):
    checkpoint.save(tmp_path, make(1))
    message = f"update_00000{update} could not be saved .*earlier checkpoints are unchanged"
    with largest_file(10_000), pytest.raises(RuntimeError, match=message):
        checkpoint.save(tmp_path, make(update, size=100_000))
    assert names_in(tmp_path) == ["update_000001"], "the temporary folder is removed"
    assert len(checkpoint.load(tmp_path / "update_000001").weights["layer.weight"]) == 8


def test_saving_an_update_again_replaces_it(tmp_path):
    for size in (8, 5):
        checkpoint.save(tmp_path, make(1, size=size))
    assert len(checkpoint.load(tmp_path / "update_000001").weights["layer.weight"]) == 5
    assert names_in(tmp_path) == ["update_000001"]


def test_files_of_a_killed_save_are_ignored_and_overwritten(tmp_path):
    leftover = tmp_path / ".update_000001.partial"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    assert checkpoint.latest(tmp_path).path is None
    checkpoint.load(checkpoint.save(tmp_path, make(1)))
    assert not leftover.exists()


def test_prune_keeps_the_newest_checkpoints_and_the_named_ones(tmp_path):
    for update in range(6):
        checkpoint.save(tmp_path, make(update))
    checkpoint.prune(tmp_path, keep=2, also={1})
    assert names_in(tmp_path) == ["update_000001", "update_000004", "update_000005"]


@pytest.mark.e2e
def test_a_kill_before_any_operation_of_prune_leaves_whole_checkpoints(tmp_path):
    """The next start repeats the prune, and then the folder is as without a kill."""
    folder, numbers = tmp_path / "checkpoints", itertools.count(1)
    for update in range(4):
        checkpoint.save(tmp_path / "saved", make(update))

    def prune() -> None:
        checkpoint.prune(folder, keep=1, also={1})

    def killed() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "saved", folder)
        return call(prune, tmp_path / "log", Kill(None, next(numbers), folder)).was_killed

    while killed():
        for path in checkpoint.newest_first(folder):
            checkpoint.verify(path)
        checkpoint.recover(folder)
        prune()
        assert sorted(path.name for path in folder.iterdir()) == ["update_000001", "update_000003"]
    assert next(numbers) > 10, "every file of a checkpoint is an operation"


def test_a_state_that_json_cannot_hold_leaves_no_files(tmp_path):
    bad = Checkpoint(1, {}, False, {}, {"value": object()})
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path, bad)
    assert list(tmp_path.iterdir()) == []


def test_recover_undoes_an_interrupted_replacement(tmp_path):
    for update in (1, 2):
        checkpoint.save(tmp_path, make(update))
    (tmp_path / "update_000002").rename(tmp_path / ".update_000002.replaced")
    (tmp_path / ".update_000002.partial").mkdir()
    checkpoint.recover(tmp_path)
    assert names_in(tmp_path) == ["update_000001", "update_000002"]
    checkpoint.verify(tmp_path / "update_000002")


def test_a_damaged_best_checkpoint_is_replaced_by_the_newest_whole_one(tmp_path):
    for update in (1, 2, 3):
        checkpoint.save(tmp_path, make(update))
    assert checkpoint.best_whole(tmp_path, 1) == checkpoint.Latest(tmp_path / "update_000001", ())
    (tmp_path / "update_000001" / "state.json").unlink()
    found = checkpoint.best_whole(tmp_path, 1)
    assert found.path == tmp_path / "update_000003"
    assert "state.json is missing; update_000003 is used instead" in found.broken[0]


def test_only_the_best_checkpoint_of_the_newest_one_must_exist(tmp_path, kuhn_tables):
    """Update 0 was the best one at update 1, and was deleted when update 2 became the best."""
    run = RunFolder.create(tmp_path / "run", build_recipe(kuhn_tables))
    for update, best in ((1, 0), (2, 2)):
        run.append_metrics({"update": update})
        checkpoint.save(run.checkpoints, replace(make(update), state={"best": [0.5, best]}))
    assert check_run(run).faults == ()
    shutil.rmtree(run.checkpoints / "update_000002")
    (fault,) = check_run(run).faults
    assert fault.endswith("update_000000 is missing: it is the best")
