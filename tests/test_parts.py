"""Recipe parts: every method trains on the recipe of an environment, and parts change one thing."""

import pytest

from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.config.menus import menu
from mage.reproduce.tables import METHODS
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train

TINY = (
    *("--run.updates=1", "--run.workers=1", "--run.evaluate_every=0", "--run.save_every=1"),
    *("--play.groups=1", "--evaluate.episodes=3", "--run.move_probabilities=false"),
    *("--evaluate.size=2", "--evaluate.final_size=4", "--engines.slots=64"),
    "--evaluate.before=false",
)


@pytest.mark.e2e
@pytest.mark.parametrize("label", [arm.label for arm in METHODS])
def test_every_method_trains_on_the_same_recipe_of_a_world(label, tmp_path):
    folder = RunFolder.create(tmp_path / "run", load_recipe(f"kuhn_poker+{label}", TINY))
    summary = train(folder.path, Callback(), lambda: False)
    assert summary["updates"] == len(folder.metrics()) == 1
    # 1 group x 8 members x 3 episodes, or 1 x 24 x 1: the same number for every method
    assert [record["episodes"] for record in folder.metrics()] == [24]
    assert len(summary["after"]["test"]["episodes"]) == 3


def test_a_part_does_not_inherit_options_of_the_item_it_replaces():
    recipe = load_recipe("kuhn_poker+mage")
    assert (recipe.returns.kind, recipe.returns.weights, recipe.returns.step_discount) == (
        "differential",
        None,
        0.95,
    )
    assert recipe.advantages.options["anchor"] == "global"
    assert load_recipe("kuhn_poker+mage+anchor_local").advantages.options["anchor"] == "local"
    assert load_recipe("kuhn_poker+mage").learn == load_recipe("kuhn_poker").learn


def test_the_balanced_return_is_refused_where_a_win_ends_play():
    with pytest.raises(ConfigError, match="play_on"):
        load_recipe("kuhn_poker+balanced", ["--play.stop_on_success=true"])


def test_options_without_effect_are_dropped_from_parts_and_refused_from_users():
    assert "reflection_tokens" not in load_recipe("paper_kuhn_poker+react").tables()["agent"]
    with pytest.raises(ConfigError, match=r"agent\.reflection_tokens = 9: has no effect"):
        load_recipe("kuhn_poker+react", ["--agent.reflection_tokens=9"])


def test_a_part_without_a_recipe_and_an_unknown_part_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"react is a part of a recipe: write it after a recipe, as in kuhn_poker\+react",
    ):
        load_recipe("react")
    with pytest.raises(ConfigError, match=r"there is no part 'reactt' \(did you mean 'react'\?\)"):
        load_recipe("kuhn_poker+reactt")


@pytest.mark.parametrize("part", [name for name, _ in menu("parts")])
def test_every_part_fits_the_paper_recipe_and_the_small_one(part):
    for base in ("tic_tac_toe", "paper_tic_tac_toe"):
        parts = f"mage+{part}" if part.startswith(("anchor", "grouping")) else part
        assert load_recipe(f"{base}+{parts}").toml()


def test_a_part_may_hold_options_for_one_environment(tmp_path):
    part = tmp_path / "mine.toml"
    part.write_text("[learn]\nlr = 0.5\n[when.sokoban.environments]\nboxes = 1\n")
    assert load_recipe(f"sokoban+{part}").environment().boxes == (1,)
    assert load_recipe(f"tic_tac_toe+{part}").learn.lr == 0.5
    part.write_text("[when.sokobann.play]\nepisodes = 2\n")
    with pytest.raises(ConfigError, match=r"when\.sokobann names neither .* \(did you"):
        load_recipe(f"sokoban+{part}")
