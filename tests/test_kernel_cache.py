"""Compiled kernels have a stable folder, which the user can change or switch off."""

import os

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir

from mage.training.kernel_cache import keep_kernels, kernel_folder


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path)})


def test_in_the_cache_of_the_user_where_torch_finds_it(tmp_path):
    keep_kernels()
    folder = tmp_path / ".cache" / "mage" / "kernels"
    assert folder.is_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == cache_dir() == str(folder / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == str(folder / "triton")


def test_follows_the_variables(tmp_path):
    os.environ["MAGE_CACHE"] = str(tmp_path / "all")
    assert kernel_folder() == tmp_path / "all" / "kernels"
    os.environ["MAGE_KERNELS"] = str(tmp_path / "own")
    assert kernel_folder() == tmp_path / "own"


def test_off_leaves_everything_to_torch():
    os.environ["MAGE_KERNELS"] = "off"
    keep_kernels()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert "TRITON_CACHE_DIR" not in os.environ


def test_a_folder_chosen_for_torch_stays(tmp_path):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/elsewhere"
    keep_kernels()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"
    assert os.environ["TRITON_CACHE_DIR"].startswith(str(tmp_path))


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    os.environ["MAGE_KERNELS"] = str(tmp_path / "file" / "below")
    assert kernel_folder() is None
    keep_kernels()
    assert "TRITON_CACHE_DIR" not in os.environ
