"""The page on single-agent environments: its code keeps the contract and has about 30 lines."""

import re
from pathlib import Path

from toys import scripted_agent

from mage.environments.base import check
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import Task

PAGE = Path(__file__).parent.parent / "docs" / "tutorials" / "single_agent.md"


def page_code():
    return re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)[1]


def test_the_environment_of_the_page_works():
    names = {}
    exec(compile(page_code(), str(PAGE), "exec"), names)
    world = names["Hot"]()
    assert check(world, games=50) == []
    task = Task("hot", 3, 0, "", "test")
    agent = scripted_agent(lambda prompt: "<action>5</action>")
    (played,) = play_groups(PlaySetup(world, agent, Notes(keep="history"), 2), [[task]], seed=1)
    assert "5 is" in played.memories[1]
    assert len([line for line in page_code().splitlines() if line.strip()]) <= 34
