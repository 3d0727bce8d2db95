"""Warnings of a training run: given once, with what to do, in the callback and in the metrics."""

import pytest

import mage
from mage.config.recipe import build_recipe
from mage.training.warnings import (
    LIMITS,
    UpdateWarnings,
    choice_warnings,
    panel_warnings,
    start_warnings,
    warmup_line,
)

SMALL = {
    "run.updates": 4,
    "run.workers": 1,
    "run.threads": 1,
    "run.evaluate_every": 4,
    "play.groups": 2,
    "play.members": 2,
    "agent.max_tokens": 1,
    "evaluate.size": 4,
    "evaluate.final_size": 4,
}


def test_a_share_above_the_limit_over_three_updates_gives_one_warning():
    warnings = UpdateWarnings()
    shares = (0.6, 0.4, 0.3, 0.9, 0.9, 1.0)  # means of three: .43, .53, .7, .93
    found = [warnings.check({"illegal_rate": share, "flat_groups": 0.1}) for share in shares]
    assert [len(lines) for lines in found] == [0, 0, 0, 1, 0, 0]
    (line,) = [line for lines in found for line in lines]
    assert "not legal moves" in line
    assert "mage warmup" in line


def test_flat_groups_give_a_warning():
    warnings = UpdateWarnings()
    lines = [line for _ in range(4) for line in warnings.check({"flat_groups": 1.0})]
    assert len(lines) == 1
    assert lines[0].startswith("100 % of the groups")
    assert "play.members" in lines[0]


def test_a_different_sampler_in_evaluation_gives_a_warning():
    assert start_warnings(mage.load_recipe("kuhn_poker")) == []
    (line,) = start_warnings(mage.load_recipe("kuhn_poker", {"evaluate.temperature": 0.5}))
    assert "temperature 0.5 in evaluation, 1.0 in training" in line


def test_evaluation_samples_as_training_unless_the_recipe_says_otherwise(kuhn_tables):
    tables = kuhn_tables | {"agent": {"temperature": 0.9}}
    assert build_recipe(tables).evaluation_sampler() == (0.9, 1.0, 0)
    recipe = build_recipe(tables | {"evaluate": {"temperature": 0.5, "top_k": 5}})
    assert (recipe.evaluation_sampler(), recipe.training_sampler()) == (
        (0.5, 1.0, 5),
        (0.9, 1.0, 0),
    )
    assert start_warnings(build_recipe(tables)) == []


def test_the_untrained_checkpoint_as_the_best_one_gives_a_warning():
    recipe = mage.load_recipe("kuhn_poker")
    assert choice_warnings(recipe, 3) == []
    assert "Train longer" in choice_warnings(recipe, 0)[0]
    assert "warmup.first" in choice_warnings(recipe, 0, illegal=0.9)[0]


def test_after_a_warm_up_no_warning_asks_for_warmup_first():
    recipe = mage.load_recipe("start", {"warmup.first": True})
    (panel,) = panel_warnings(0.9, warmed_up=True)
    (choice,) = choice_warnings(recipe, 0, illegal=0.9)
    warnings = UpdateWarnings(warmed_up=True)
    (update,) = [line for _ in range(3) for line in warnings.check({"illegal_rate": 0.9})]
    for line in (panel, choice, update):
        assert "warmup.first" not in line
        assert "raise warmup.steps" in line
    assert "warmup.first = true" in panel_warnings(0.9)[0]


class Recorder(mage.Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_warning(self, line: str) -> None:
        self.lines.append(line)


def test_a_warm_up_is_judged_by_the_limit_of_illegal_replies(monkeypatch):
    """Of the replies after the warm-up 30 % are illegal: too many if 20 % are allowed."""
    monkeypatch.setitem(LIMITS, "illegal_rate", 0.2)
    assert "Raise warmup.steps" in warmup_line(0.1, 0.7)
    assert "Raise" not in warmup_line(0.1, 0.9)


@pytest.mark.e2e
def test_illegal_replies_are_reported_in_the_callback_and_the_metrics(tmp_path):
    recorder = Recorder()
    run = mage.train(mage.load_recipe("kuhn_poker", SMALL), runs=tmp_path, callbacks=[recorder])
    found = [line for line in recorder.lines if "not legal moves" in line]
    assert ["first panel" in line for line in found] == [True, False, False], "then the verdict"
    assert "of the last 3 updates" in found[1]
    assert "not legal moves" in run.metrics[2]["warnings"][0]
    assert all("warnings" not in run.metrics[number] for number in (0, 1, 3))
