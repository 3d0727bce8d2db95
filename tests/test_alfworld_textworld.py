"""The engine compared with TextWorld, command by command. Slow.

Run with `pytest -m slow tests/test_alfworld_textworld.py`. Install with `pip install -e
'.[dev,alfworld-oracle]'`. ALFWORLD_DATA names the official games; MAGE_ALFWORLD_GAMES sets how many
of them are played (default 204, 34 of each type).
"""

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mage.environments.alfworld.engine import IDLE, World
from mage.environments.alfworld.game_file import read_game
from mage.environments.alfworld.games import FOLDERS, find_folder, list_games
from mage.environments.alfworld.problem import TASK_TYPES, TaskType
from tests.alfworld_files import write_games

STEPS = 30
NONSENSE = ("dance", "", "go to nowhere 1", "take", "LOOK", "look around", "put mug 1")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def open_textworld(path: Path) -> Any:
    """A game in TextWorld, with ALFWorld's names of things."""
    pytest.importorskip("textworld", reason="TextWorld is not installed")
    pytest.importorskip("alfworld", reason="alfworld is not installed")
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.core import EnvInfos
    from textworld.envs.pddl import PddlEnv

    env = AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, won=True)))
    env.load(str(path))
    return env


def choose(admissible: list[str], rng: random.Random) -> str:
    """A random command. Commands that change something are preferred; some are not admissible."""
    if rng.random() < 0.05:
        return rng.choice(NONSENSE)
    busy = [command for command in admissible if not command.startswith((*IDLE, "go to"))]
    return rng.choice(busy if busy and rng.random() < 0.6 else admissible)


def compare(path: Path, commands: list[str] | None, rng: random.Random) -> int:
    """Play one game in both; every text, list and reward must agree. Returns the step count."""
    env, world = open_textworld(path), World(read_game(json.loads(path.read_text())))
    theirs = env.reset()
    assert world.introduction() == theirs.feedback, path
    for step in range(STEPS if commands is None else len(commands)):
        assert world.admissible() == theirs["admissible_commands"], (path, step)
        command = choose(theirs["admissible_commands"], rng) if commands is None else commands[step]
        theirs, reward, done = env.step(command)
        assert world.step(command) == theirs.feedback, (path, step, command)
        assert (int(world.won), world.won) == (reward, done), (path, step, command)
    return STEPS if commands is None else len(commands)


def chosen_games() -> list[tuple[TaskType, Path]]:
    """The same number of games of every type, from all splits, with their types."""
    try:
        folder = find_folder("official")
    except ValueError as reason:
        pytest.skip(str(reason))
    count = int(os.environ.get("MAGE_ALFWORLD_GAMES", "204"))
    found: list[tuple[TaskType, Path]] = []
    for number, kind in enumerate(TASK_TYPES):
        games = [path for split in FOLDERS for path in list_games(folder, split, (kind,))]
        found += [
            (kind, path)
            for path in random.Random(number).sample(
                games, min(len(games), (count + number) // len(TASK_TYPES))
            )
        ]
    return found


def test_random_play_of_official_games_equals_textworld(capsys):
    agreed, steps = Counter[str](), 0
    for number, (kind, path) in enumerate(chosen_games()):
        steps += compare(path, None, random.Random(number))
        agreed[kind] += 1
        with capsys.disabled():  # half an hour without a word is long
            print(f"\r{agreed.total()} games, {steps} steps, no difference", end="", flush=True)  # noqa: T201
    with capsys.disabled():
        print("".join(f"\n  {name}: {count} games agree" for name, count in agreed.items()))  # noqa: T201


def test_exported_games_load_and_play_the_same_in_textworld(tmp_path):
    pytest.importorskip("alfworld", reason="alfworld is not installed")
    for number, path in enumerate(write_games(tmp_path, 12)):
        walkthrough = json.loads(path.read_text())["walkthrough"]
        compare(path, walkthrough, random.Random(number))
        env = open_textworld(path)
        env.reset()
        assert [env.step(command)[1] for command in walkthrough] == [0] * (len(walkthrough) - 1) + [
            1
        ], path
        if number % 3 == 0:
            compare(path, None, random.Random(number))
