"""Runs of adapters know their base weights; resumed runs name changed software."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import mage
from mage.cli.main import app
from mage.models import checks
from mage.models.base import SHIPPED
from mage.models.checks import weights_digest
from mage.run_folder import RunError
from mage.run_folder.versions import changed_software, versions
from mage.training.resume import check_base
from tests.adapter_runs import tiny_recipe


def change_weights(model: Path, count: int = 1) -> None:
    """Other values of the same shapes in `count` tensors."""
    tensors = load_file(model / "model.safetensors")
    for name in sorted(tensors)[:count]:
        tensors[name] = tensors[name] + 1
    save_file(tensors, model / "model.safetensors")


@pytest.mark.e2e
def test_adapters_are_refused_on_other_base_weights(tmp_path):
    model = Path(shutil.copytree(SHIPPED / "embedded", tmp_path / "model"))
    recipe = tiny_recipe(
        {"name": "kuhn_poker"},
        opponents={"train": {"random": 1.0}},
        model={"path": str(model)},
        learn={"lora_rank": 2},
    )
    run = mage.train(recipe, runs=tmp_path / "runs").folder
    call = CliRunner().invoke
    assert call(app, ["check", str(run.path)]).exit_code == 0
    done = call(app, ["model", "export", str(run.path), "--out", str(tmp_path / "out")])
    assert "rounded from float32 to bfloat16" in done.stderr
    change_weights(model)
    for words in (["check"], ["evaluate", "--size", "2"], ["train", "--resume"]):
        if words == ["train", "--resume"]:
            (run.path / "summary.json").unlink()
        done = call(app, [*words, str(run.path)])
        assert done.exit_code in (1, 2)
        assert "were trained with other base weights" in " ".join(done.output.split())


def test_a_checkpoint_of_an_old_version_has_no_base(tmp_path):
    recipe = tiny_recipe({"name": "kuhn_poker"}, opponents={"train": {"random": 1.0}})
    check_base({"best": None}, recipe, tmp_path)
    with pytest.raises(RunError, match="other base weights"):
        check_base({"base_sha256": "0" * 64}, recipe, tmp_path)


def test_a_large_file_is_compared_at_each_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_WHOLE", 1_000)
    model = Path(shutil.copytree(SHIPPED / "embedded", tmp_path / "model"))
    first = weights_digest(model)
    assert first == weights_digest(SHIPPED / "embedded")
    change_weights(model)
    assert weights_digest(model) != first


def test_other_versions_are_one_note():
    now = versions()
    assert changed_software(now) == []
    assert changed_software({"packages": "x"}) == []
    before = now | {"packages": now["packages"] | {"torch": "2.0.0", "numpy": "1.0"}}
    (line,) = changed_software(before)
    assert "torch 2.0.0 (now" in line
    assert "numpy 1.0 (now" in line
    assert "python" not in line
