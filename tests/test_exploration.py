"""Exploration: exact lines, and the curve of a training."""

import json

import pytest

from mage.environments.doors import Doors
from mage.reproduce.exploration import safe_box, search_line, write_exploration
from mage.reproduce.plan import make_plan
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("cumulative", 1.26 / 1.96),
        ("differential", 0.72),
        ("sum", 0.75),
        ("balanced", 0.75),
        ("final", 1.0),
    ],
)
def test_lines_are_those_of_the_searchers_scores(kind, line):
    assert search_line(Doors(), kind, 3, 0.6) == pytest.approx(line, abs=1e-5)


def test_with_ten_episodes_a_small_discount_makes_lamer_and_mage_equal():
    lines = [search_line(Doors(), kind, 10, 0.6) for kind in ("cumulative", "differential", "sum")]
    assert abs(lines[0] - lines[1]) < 0.002
    assert lines[2] - lines[0] > 0.2


def test_the_safe_box_of_a_task_is_the_one_that_is_played():
    world = Doors(safe=(0.2, 0.5, 0.8))
    for seed in range(20):
        assert safe_box(world, seed) == world.start(world.episode_seed(seed, 0)).safe


@pytest.mark.e2e
def test_a_training_gives_a_curve_with_its_line(tmp_path):
    small = ["--run.updates=1", "--play.groups=2", "--play.members=2"]
    small += ["--evaluate.size=2", "--evaluate.final_size=18"]
    plan = make_plan("exploration", only=["mage"], overrides=small)
    (job,) = plan.jobs
    folder = RunFolder.create(tmp_path / "runs" / job.name, job.recipe)
    train(folder.path, Callback(), lambda: False)
    table, values, *pictures = write_exploration(plan, tmp_path)
    (curve,) = json.loads(values.read_text()).values()
    assert curve["line"] == pytest.approx(0.72, abs=1e-5)
    safes = [point["safe"] for point in curve["points"]]
    assert safes == [0.2, 0.4, 0.55, 0.62, 0.68, 0.71, 0.735, 0.78, 0.85]
    assert all(0.5 < point["search"]["value"] < 0.95 for point in curve["points"])  # random: .8
    assert "| 0.68 |" in table.read_text()
    assert [path.suffix for path in pictures] == [".svg", ".png"]
