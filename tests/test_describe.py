"""`mage show` and `mage list options`: values, defaults, sources and meanings of all options."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.describe import describe_recipe, describe_sections
from mage.config.loading import load_recipe
from mage.config.menus import menu
from mage.config.recipe import Recipe

SECTIONS = [field.alias or name for name, field in Recipe.sections().items()]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def test_each_layer_of_a_recipe_is_a_source():
    found = describe_recipe("kuhn_demo+lamer", ["--learn.lr=0.5", "--opponents.train.random=1"])
    sources = {
        "run.seed": (1, 0, "recipe"),
        "run.keep": (2, 2, "default"),
        "returns.kind": ("cumulative", "differential", "part lamer"),
        # The part replaces [returns], so the step discount of the recipe is gone.
        "returns.step_discount": (0.95, 0.95, "default"),
        "advantages.anchor": ("global", "global", "part lamer"),
        "learn.lr": (0.5, 3e-4, "command line"),
        "engines.context": (1024, 2048, "base kuhn_poker"),
        "engines.prefix_cache": (True, True, "default"),
        "environments.name": ("kuhn_poker", None, "base kuhn_poker"),
        "environments.max_turns": (6, 6, "default"),
        "memory.keep": ("history", "reflections", "base kuhn_poker"),
    }
    for key, expected in sources.items():
        section, option = key.split(".")
        one = found[section][option]
        assert (one.value, one.default, one.source) == expected, key
    assert found["opponents"]["train"].source == "command line"
    assert found["opponents"]["train"].value["random"] == 1


def test_an_empty_override_and_another_item_remove_the_source_of_the_recipe():
    found = describe_recipe("kuhn_demo", ["--run.seed=", "--advantages.name=grpo"])
    assert (found["run"]["seed"].value, found["run"]["seed"].source) == (0, "default")
    assert "anchor" not in found["advantages"]
    assert found["advantages"]["name"].source == "command line"


def test_a_part_from_a_file_has_the_name_of_the_file(tmp_path):
    (tmp_path / "mine.toml").write_text("[learn]\nlr = 0.25\n")
    found = describe_recipe(f"kuhn_demo+{tmp_path / 'mine.toml'}")
    assert found["learn"]["lr"].source == "part mine"


@pytest.mark.parametrize("name", [name for name, _ in menu("recipes")])
def test_every_recipe_shows_all_options_with_their_values(name):
    found = describe_recipe(name)
    recipe = load_recipe(name)
    assert list(found) == SECTIONS
    for section, options in found.items():
        field = "memory_choice" if section == "memory" else section
        chosen = getattr(recipe, field)
        for option, value in {**chosen.model_dump(), **(chosen.model_extra or {})}.items():
            assert options[option].value == value
            assert options[option].help, f"{section}.{option} has no description"


def test_the_sections_have_a_meaning_and_every_option_a_description():
    found = describe_sections()
    assert list(found) == SECTIONS
    assert all(meaning for meaning, _ in found.values())
    for section, (_, options) in found.items():
        assert [name for name, option in options.items() if not option.help] == [], section


def test_show_prints_json_and_a_table():
    words = ("show", "paper_sokoban+mage", "--play.groups=4")
    found = json.loads(call(*words, "--json").stdout)
    assert list(found) == SECTIONS
    expected = {"value": 4, "default": 16, "source": "command line", "help": "tasks per update"}
    assert found["play"]["groups"] == expected
    assert found["environments"]["failure_reward"]["source"] == "recipe"
    text = call(*words).stdout
    assert "[environments]" in text
    assert "tasks per update" in text


def test_list_options_prints_all_sections():
    text = call("list", "options").stdout
    assert "learning rate of AdamW" in text
    found = json.loads(call("list", "options", "--json").stdout)["options"]
    assert [section["name"] for section in found] == SECTIONS
    play = next(section for section in found if section["name"] == "play")
    assert {"name": "groups", "default": 16, "description": "tasks per update"} in play["options"]
