"""Scale `paper`: requirements, settings that match the paper, and its out-of-domain rows."""

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.models.shapes import PRESETS
from mage.reproduce.cost import estimate_cost, sum_costs, update_seconds
from mage.reproduce.paper import find_differences, find_missing, paper_note
from mage.reproduce.plan import make_plan
from mage.reproduce.results import read_results
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.memory_bytes import GB
from mage.training.memory_plan import plan_memory
from mage.training.start import train

GAMES = ("kuhn_poker", "tic_tac_toe")


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


@pytest.mark.e2e
def test_the_scale_of_the_paper_names_everything_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    done = call("table1", "--scale", "paper", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "Qwen" not in done.stderr, "the model is downloaded when the data is here"
    assert "alfworld-download" in done.stderr
    assert "WEBSHOP_DATA" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_exist_is_named(tmp_path):
    words = ("--scale", "paper", "--environment", "tic_tac_toe", "--dry-run")
    done = call("table1", *words, "--model", tmp_path / "gone")
    assert done.exit_code == 2
    assert f"the model {tmp_path / 'gone'}: model.path = " in done.stderr


def test_a_generated_shop_is_not_the_official_data():
    plan = make_plan(
        "table1", scale="paper", worlds=["webshop"], overrides=["--environments.data="]
    )
    assert find_missing(plan) == ["the official data of webshop: see docs/worlds.md"]
    assert "environments.data" in find_differences(plan.jobs[0])


def test_the_scale_for_a_cpu_needs_nothing():
    assert find_missing(make_plan("table1")) == []


@pytest.mark.e2e
def test_runs_of_the_paper_recipes_with_qwen3_4b_match_the_paper():
    plan = make_plan("table1", scale="paper", model="/models/Qwen3-4B", worlds=GAMES)
    assert {tuple(find_differences(job)) for job in plan.jobs} == {()}
    assert "a standard error of about four percentage points" in paper_note(plan)


@pytest.mark.parametrize(
    ("model", "override", "key"),
    [
        ("embedded", "--run.seed=1", "model.path"),
        ("qwen3-4b-base", "--run.seed=1", "model.path"),
        ("qwen3-4b", "--engines.context=2048", "engines.context"),
        ("qwen3-4b", "--advantages.name=gigpo", "advantages.name"),
        ("qwen3-4b", "--agent.prompts=chat", "agent.prompts"),
        ("qwen3-4b", "--learn.lr=1e-5", "learn.lr"),
        ("qwen3-4b", "--learn.lora_rank=16", "learn.lora_rank"),
        ("qwen3-4b", "--run.updates=5", "run.updates"),
        ("qwen3-4b", "--evaluate.final_size=64", "evaluate.final_size"),
    ],
)
def test_other_settings_hide_the_figures_of_the_paper(model, override, key):
    plan = make_plan(
        "table1",
        scale="paper",
        model=model,
        worlds=["kuhn_poker"],
        only=["mage"],
        overrides=[override],
    )
    assert key in find_differences(plan.jobs[0])
    assert key in paper_note(plan)


def test_memory_and_speed_options_do_not_hide_the_figures_of_the_paper():
    overrides = ["--engines.slots=8", "--learn.recompute=true", "--learn.micro_tokens=4096"]
    plan = make_plan(
        "table1", scale="paper", model="qwen3-4b", worlds=["kuhn_poker"], overrides=overrides
    )
    assert find_differences(plan.jobs[0]) == []


@pytest.mark.e2e
def test_rooms_with_one_and_three_boxes_have_separate_rows(tmp_path):
    plan = make_plan(
        "ood",
        worlds=["sokoban"],
        only=["react"],
        overrides=[
            *("--environments.ood_boxes=[1, 3]", "--environments.shortest=3"),
            *("--environments.longest=6", "--environments.max_turns=6", "--evaluate.final_size=8"),
            "--run.episodes_every=0",
        ],
    )
    for job in plan.jobs:
        train(RunFolder.create(tmp_path / job.name, job.recipe).path, Callback(), lambda: False)
    results = read_results(plan, tmp_path)
    assert [result.title for result in results] == ["sokoban, 1 box", "sokoban, 3 boxes"]
    assert sum(result.arms[0].tasks for result in results) == 8
    assert all(result.arms[0].tasks > 0 for result in results)


@pytest.mark.e2e
def test_the_draw_rate_is_compared_against_mcts_1000(tmp_path):
    plan = make_plan(
        "population",
        worlds=["tic_tac_toe"],
        only=["full"],
        seeds=[0],
        overrides=[
            *("--run.updates=1", "--play.groups=1", "--play.members=2", "--evaluate.size=2"),
            *("--evaluate.final_size=4", "--opponents.ood={mcts-10 = 1}"),
        ],
    )
    for job in plan.jobs:
        train(RunFolder.create(tmp_path / job.name, job.recipe).path, Callback(), lambda: False)
    in_domain, out_of_domain = read_results(plan, tmp_path)
    assert (in_domain.split, in_domain.measure) == ("test", "pass_at")
    assert (out_of_domain.split, out_of_domain.measure) == ("ood", "draw_at")
    assert out_of_domain.second is not None
    assert out_of_domain.second.measure == "draws"
    episodes = out_of_domain.arms[0].episodes
    assert out_of_domain.arms[0].by_seed == (episodes[-1].draw_at.value,)
    cumulative = [one.draw_at.value for one in episodes]
    assert cumulative == sorted(cumulative)
    assert all(one.draw_at.value >= one.draws.value for one in episodes)


H200 = {  # measured seconds of an update with replies of 256 tokens, docs/performance.md
    "alfworld": (127.9, 141, ()),
    "sokoban": (92.1, 80, ("--learn.lora_rank=16", "--engines.context=2048")),
    "webshop": (143.1, 80, ("--learn.lora_rank=16", "--engines.context=4096")),
}


@pytest.mark.parametrize("world", H200)
def test_the_estimate_is_near_a_measured_update(world):
    """Games are left out: random weights gave illegal replies up to the turn limit there."""
    measured, card, changes = H200[world]
    short = ("--agent.max_tokens=256", "--agent.reflection_tokens=256") if changes else ()
    recipe = load_recipe(f"paper_{world}", [*changes, *short])
    plan = plan_memory(recipe, PRESETS["qwen3-4b"], card * GB)
    assert update_seconds(recipe, plan, 256, 256) == pytest.approx(measured, rel=0.25)


def test_a_dry_run_shows_tokens_and_hours_as_an_estimate_without_data_or_model(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    words = ("table1", "--scale", "paper", "--environment", "alfworld", "--only", "react,mage")
    shown = call(*words, "--seeds", "2", "--dry-run", "--out", tmp_path / "out").stderr
    assert "still missing: the official data of alfworld" in shown
    assert "3 runs" in shown
    assert "an estimate, not measured" in shown
    assert "GPU-hours on H200 cards with 1 rank per run" in shown
    assert "docs/performance.md" in shown
    assert not (tmp_path / "out").exists()


def test_the_cost_counts_long_replies_runs_and_ranks():
    (job,) = make_plan("table1", scale="paper", worlds=["alfworld"], only=["mage"]).jobs
    one, eight = estimate_cost(job), estimate_cost(job, 8)
    # 28,800 + 28,160 episodes of 10 turns; 2 of 3 and 9 of 10 episodes have a reflection.
    replies = 10 * (28_800 + 28_160) + 28_800 * 2 / 3 + 28_160 * 9 / 10
    assert one.short.tokens == pytest.approx(256 * replies)
    assert one.long.tokens == pytest.approx(1024 * replies)
    assert one.short.hours < one.long.hours < eight.long.hours
    assert sum_costs([one, one]).long.hours == pytest.approx(2 * one.long.hours)
