"""A training does not depend on what ran earlier in its process."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import start_training, wait

from mage.config.recipe import build_recipe
from mage.models.arithmetic import reset_arithmetic
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train


def start(path: Path, dtype: str) -> RunFolder:
    tables: dict[str, Any] = {
        "run": {"updates": 1, "save_every": 1, "evaluate_every": 0, "threads": 1},
        "model": {"dtype": dtype},
        "environments": {"name": "kuhn_poker"},
        "opponents": {"train": {"conservative": 0.5, "aggressive": 0.5}},
        "play": {"groups": 1, "members": 4},
        "agent": {"max_tokens": 8, "reflection_tokens": 24},
        "engines": {"name": "local", "slots": 64, "context": 512},
        "learn": {"lr": 1e-3, "minibatches": 1, "entropy": 0.1},
        "evaluate": {"size": 4, "final_size": 4},
    }
    return RunFolder.create(path, build_recipe(tables))


def disturb() -> None:
    """Change every global option and every global random number generator."""
    torch.set_num_threads(2)
    torch.backends.mkldnn.set_flags(False)
    torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(17)
    np.random.seed(17)
    random.seed(17)
    # On a processor without bfloat16, this switches oneDNN off for the whole process.
    square = torch.ones(64, 64, dtype=torch.bfloat16)
    torch.nn.functional.linear(square, square)


@pytest.fixture
def restored():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    reset_arithmetic(torch.float32, torch.device("cpu"))


@pytest.mark.e2e
@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]
)  # bfloat16 takes minutes on a processor without it
def test_a_training_equals_one_in_a_fresh_process_bit_for_bit(tmp_path, dtype):
    """The other process has loaded torch and computed nothing."""
    expected, later = (start(tmp_path / name, dtype) for name in ("fresh", "later"))
    assert wait(start_training(expected.path)) == 0
    disturb()
    train(later.path, Callback(), lambda: False)
    assert later.metrics() == expected.metrics()
    for name in expected.evaluation_names():
        assert later.read_evaluation(name) == expected.read_evaluation(name)
    files = [run.checkpoints / "update_000001" / "model.safetensors" for run in (later, expected)]
    assert files[0].read_bytes() == files[1].read_bytes()
