"""Reward functions of the user: their options, metrics, transcripts and credit."""

import json

import pytest

import mage
from mage.config.errors import UserError
from mage.config.recipe import build_recipe
from mage.config.sections import PlayOptions
from mage.play.rewards import add_rewards, find_rewards
from mage.run_folder.files import read_packed
from mage.types import Episode
from mage.viewer.export import collect
from mage.viewer.library import Library
from tests.adapter_runs import tiny_recipe

TURNS, SHORT = "tests.reward_functions.many_turns", "tests.reward_functions.short"
LOST = Episode((), None, (), -1.0, -10.0, "lost", "finished", "")


@pytest.mark.parametrize(
    "written",
    [
        [TURNS, SHORT],
        f"{TURNS}, {SHORT}",
        {TURNS: 1, SHORT: 1.0},
        {"tests": {"reward_functions": {"many_turns": 1, "short": 1}}},
    ],
)
def test_functions_are_named_by_a_list_words_or_weights(written):
    assert PlayOptions(rewards=written).rewards == {TURNS: 1.0, SHORT: 1.0}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.reward_functions.missing", "tests.reward_functions has no 'missing'"),
        ("no_such_package.bonus", "no_such_package cannot be imported"),
        ("tests.reward_functions.NUMBER", "is not a function of an episode"),
        ("bonus", "is not a dotted path"),
    ],
)
def test_wrong_paths_are_errors_of_the_recipe(path, message):
    with pytest.raises(UserError, match=message):
        build_recipe(
            {
                "environments": {"name": "kuhn_poker"},
                "opponents": {"train": {"random": 1.0}},
                "play": {"rewards": [path]},
            }
        )


def test_bonuses_are_added_by_weight_and_by_name():
    terms = find_rewards({TURNS: 2.0, SHORT: 0.5})
    paid = add_rewards(LOST, terms)
    assert (paid.reward, paid.score) == (-10.0, -1.0)
    assert paid.bonuses == (("many_turns", 0.0), ("short", 0.0))
    assert add_rewards(LOST, ()) is LOST
    both = find_rewards({TURNS: 1.0, "tests.test_rewards.many_turns": 1.0})
    assert [term.name for term in both] == [TURNS, "tests.test_rewards.many_turns"]


def many_turns(episode: Episode) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [("fails", "fails failed: KeyError: 'no such field'"), ("nothing", "returned nan")],
)
def test_a_failing_function_gives_one_message(name, message):
    terms = find_rewards({f"tests.reward_functions.{name}": 1.0})
    with pytest.raises(
        UserError, match=f"play.rewards: tests.reward_functions.{message}|{message}"
    ):
        add_rewards(LOST, terms)


@pytest.mark.e2e
def test_rewards_are_logged_stored_and_explained(tmp_path):
    play = {"episodes": 2, "groups": 2, "members": 2, "rewards": {TURNS: 0.25, SHORT: 1.0}}
    recipe = tiny_recipe({"name": "kuhn_poker"}, opponents={"train": {"random": 1.0}}, play=play)
    run = mage.train(recipe, runs=tmp_path)
    assert mage.load_run(run.path).recipe == recipe
    assert 0.25 <= run.metrics[0]["reward_many_turns"] <= 2
    assert run.metrics[0]["reward_short"] < 0
    for meta in run.folder.read_episodes(1):
        for episode in meta.episodes:
            bonus = dict(episode.bonuses)
            assert bonus["many_turns"] == 0.25 * len(episode.turns)
            game = recipe.environment().reward(episode.score)
            assert episode.reward == pytest.approx(game + sum(bonus.values()))
    shown = {path: value for path, value in collect(Library([run.path])) if "/credit/" in path}
    sentences = [turn["sentences"][-1] for value in shown.values() for turn in value["turns"]]
    assert sentences
    assert all("is the game" in one and "many_turns" in one for one in sentences)


def test_episodes_without_functions_are_stored_as_before(tmp_path):
    from mage.run_folder.episode_files import write_meta_episodes
    from mage.types import MetaEpisode, Task

    task = Task("kuhn_poker", 0, 0, "random", "train")
    path = tmp_path / "one.jsonl.gz"
    write_meta_episodes(path, [MetaEpisode(task, 0, 0, (LOST,), ("",), 0)])
    (line,) = read_packed(path)
    assert "bonuses" not in json.loads(line)["episodes"][0]
