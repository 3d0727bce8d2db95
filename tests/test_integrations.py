"""The examples of docs/integrations.md are written to files, checked and trained."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

import mage
from mage.config.loading import load_recipe
from mage.config.menus import find_item
from mage.environments.base import check
from mage.opponents.base import find
from mage.play.rewards import add_rewards, find_rewards
from mage.types import Episode
from tests.openenv_server import OpenEnvServer

PAGE = Path(mage.__file__).parents[1] / "docs" / "integrations.md"
FILES = dict(
    re.findall(r"^```\w+\n# (my_\w+\.\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)
TINY = [
    *("--run.updates=1", "--run.workers=1", "--play.groups=1", "--play.members=2"),
    *("--warmup.first=false", "--evaluate.size=1", "--evaluate.final_size=1"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the files of the page, as the current folder of a user."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.partition(".")[0], None)


def test_the_page_has_all_files():
    assert set(FILES) == {
        *("my_maze.py", "my_maze.toml", "my_lake.py", "my_player.py", "my_server.toml"),
        "my_rewards.py",
    }
    glue = [line for line in FILES["my_lake.py"].splitlines() if line.strip()]
    assert len(glue) <= 5


BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for kind, text in BLOCKS
    for line in text.replace("\\\n", "").splitlines()
    if kind == "bash" and line.startswith(("mage train", "mage check"))
]


def test_the_commands_of_the_page_name_options_that_exist(place):
    pytest.importorskip("textarena")
    pytest.importorskip("gymnasium")
    assert len(COMMANDS) >= 9
    for _, verb, name, *options in COMMANDS:
        if verb == "train":
            recipe = load_recipe(place / name if name in FILES else name, options)
            assert not recipe.environment().multi_agent or recipe.opponents.train
        else:
            words = [one.removeprefix("--environments.").split("=", 1) for one in options]
            assert find_item("environments", name).model_validate(dict(words))


@pytest.mark.e2e
def test_an_own_class_is_checked_and_trained(place, no_pictures):
    recipe = load_recipe(place / "my_maze.toml", TINY)
    recipe.environment().check_data()
    assert check(recipe.environment(), games=4) == []
    run = mage.train(recipe, runs=place / "runs")
    assert len(run.metrics) == 1


def test_a_world_with_words_of_its_own(place):
    pytest.importorskip("gymnasium")
    lake = find_item("environments", "my_lake.Lake")()
    assert check(lake, games=4) == []
    assert lake.rules() == "Cross the lake from P to G. H is a hole."


def test_an_own_player_takes_the_other_seat(place):
    pytest.importorskip("textarena")
    kuhn = find_item("environments", "textarena")()
    state, player = kuhn.start(0), find("my_player.Caller")
    seat = state.turn()
    state.apply("[bet]")
    assert player.policy(state, 1 - seat) == {"[call]": 1.0}


def test_functions_add_to_the_reward(place):
    (written,) = re.findall(r"^\[play\.rewards\]\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    weights = tomllib.loads(written)
    lost = Episode((), None, (), -1.0, -10.0, "lost", "finished", "")
    paid = add_rewards(lost, find_rewards(weights))
    assert paid.bonuses == (("short_replies", 0.0), ("no_repeats", 0.0))


def test_a_server_by_its_address(place):
    with OpenEnvServer() as server:
        change = f"--environments.url={server.url()}"
        world = load_recipe(place / "my_server.toml", [*TINY, change]).environment()
        world.check_data()
        assert check(world, games=2) == []
