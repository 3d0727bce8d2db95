"""ALFWorld game files: the loader, broken files, and the official games."""

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mage.config.loading import load_recipe
from mage.environments.alfworld import Alfworld
from mage.environments.alfworld.engine import World
from mage.environments.alfworld.game_file import read_game
from mage.environments.alfworld.games import FOLDERS, VARIABLE, find_folder, list_games, load_game
from mage.environments.alfworld.generator import generate
from mage.environments.alfworld.planner import plan
from mage.environments.alfworld.problem import TASK_TYPES
from mage.environments.base import check
from mage.training.build import build_components
from mage.types import Split

SPLITS: tuple[Split, ...] = ("train", "test", "ood")
SMALL = {"receptacles": 4, "objects": 4}


def write(folder: Path, split: str, name: str, content: Any) -> Path:
    path = folder / split / name / "trial_0" / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def games(tmp_path):
    """A data folder with two games of every split."""
    for split, folder in FOLDERS.items():
        for seed, name in enumerate(("pick_and_place_simple-a", "look_at_obj_in_light-b")):
            write(tmp_path, folder, name, generate(TASK_TYPES[seed], split, seed, **SMALL))
    return tmp_path


# --- The loader -----------------------------------------------------------------------------------


def test_each_split_of_a_data_folder_is_played(games):
    environment = Alfworld(data=str(games))
    for split in SPLITS:
        world = environment.for_split(split)
        assert world.strata() == 2
        assert {world.game(seed).goal.kind for seed in range(2)} == {"place", "light"}
        assert check(world, games=4) == []
    assert Alfworld(data=str(games), task_types=("light",)).strata() == 1
    with pytest.raises(ValueError, match="holds no game of type heat"):
        Alfworld(data=str(games), task_types=("heat",)).start(0)


def test_missing_data_gives_a_message_with_download_steps(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for data in (str(tmp_path), str(tmp_path / "nowhere")):
        with pytest.raises(ValueError, match="alfworld-download"):
            Alfworld(data=data).check_data()
    with pytest.raises(ValueError, match=r"ALFWORLD_DATA is not set.*alfworld-download"):
        Alfworld(data="official").start(0)


def test_the_official_folder_is_found_by_environment_variable(games, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(games))
    assert Alfworld(data="official").strata() == 2
    assert find_folder(str(games)) == games


GOOD = generate("place", "train", 0, receptacles=4, objects=4)
PROBLEM, AGENT = GOOD["pddl_problem"], "(atLocation agent1 loc_bar_0)"
BROKEN_PROBLEMS: dict[str, Any] = {
    "no problem": 7,
    "brackets": PROBLEM[:-3],
    "too many": PROBLEM + ")",
    "no init": PROBLEM.replace("(:init", "(:unit"),
    "goal": PROBLEM.replace("(inReceptacle ?o ?r)", "(isHot ?o)"),
    "fact": PROBLEM.replace("(pickupable", "(edible"),
    "arguments": PROBLEM.replace(AGENT, "(atLocation loc_bar_0 agent1)"),
    "nowhere": PROBLEM.replace(AGENT, ""),
    "undeclared": PROBLEM.replace("agent1 - agent\n", ""),
}
BROKEN: dict[str, Any] = {
    "nothing": "",
    "half": json.dumps(GOOD)[:500],
    "list": [1, 2],
    "deep": "[" * 100_000,
    "empty": {},
    **{name: {**GOOD, "pddl_problem": problem} for name, problem in BROKEN_PROBLEMS.items()},
    "grammar": {key: value for key, value in GOOD.items() if key != "task"}
    | {"grammar": "no task here"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_corrupt_game_file_gives_one_clear_message(name, tmp_path):
    write(tmp_path, "train", "pick_and_place_simple-a", BROKEN[name])
    with pytest.raises(ValueError, match=r"game\.tw-pddl is not a"):
        Alfworld(data=str(tmp_path)).start(0)


def test_an_unreadable_game_file_gives_one_clear_message(tmp_path):
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a game file"):
        load_game(path)
    with pytest.raises(ValueError, match="cannot be read"):
        load_game(tmp_path / "gone")


# --- Filter ---------------------------------------------------------------------------------------


def test_movable_sliced_and_unsolvable_games_are_left_out(tmp_path):
    """As in stock ALFWorld's loader (alfred_tw_env.py)."""
    good = generate("place", "test", 1, **SMALL)
    unsolvable = json.dumps(good | {"solvable": False}, separators=(",", ":"))
    kept = write(tmp_path, "valid_seen", "pick_and_place_simple-Mug-None-Shelf-1", good)
    for name, game in (
        ("pick_and_place_with_movable_recep-Mug-Bowl-Shelf-1", good),
        ("pick_and_place_simple-AppleSliced-None-Shelf-1", good),
        ("pick_and_place_simple-Cup-None-Shelf-1", unsolvable),
    ):
        write(tmp_path, "valid_seen", name, game)
    assert list_games(tmp_path, "test", TASK_TYPES) == (kept,)


def test_data_is_checked_before_the_model_loads(tmp_path, monkeypatch):
    def load(*arguments: object) -> None:
        pytest.fail("the model was loaded first")

    monkeypatch.setattr("mage.training.build.load_model", load)
    (tmp_path / "train").mkdir()
    recipe = load_recipe("alfworld", [f"--environments.data={tmp_path}"])
    with pytest.raises(ValueError, match="holds no game of type place"):
        build_components(recipe)


# --- The official games, where they are -----------------------------------------------------------


ARCHIVE = Path(__file__).parents[2] / "shared/data/alfworld/games.tar.xz"


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """The official games: the folder in ALFWORLD_DATA, or unpacked from the shared data."""
    if os.environ.get(VARIABLE):
        return find_folder("official")
    shared = os.environ.get("MAGE_SHARED_DATA")
    archive = Path(shared) / "alfworld/games.tar.xz" if shared else ARCHIVE
    if not archive.is_file():
        pytest.skip(f"{VARIABLE} is not set and {archive.name} is missing")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(archive) as games:
        games.extractall(folder, filter="data")
    return find_folder(str(folder))


@pytest.mark.slow
def test_official_walkthroughs_win_and_plans_are_no_longer(official):
    files = sorted(official.rglob("game.tw-pddl"))
    for path in files:
        game = load_game(path)
        world = World(game)
        steps = plan(world)
        assert steps is not None
        walkthrough = json.loads(path.read_text())["walkthrough"]
        assert len(steps) <= len(walkthrough), path
        twin = World(game)
        for command in walkthrough:
            world.step(command)
        for command in steps:
            twin.step(command)
        assert world.won, path
        assert twin.won, path
    assert len(files) == 4027


@pytest.mark.slow
def test_the_official_splits_have_the_official_sizes(official):
    assert [len(list_games(official, split, TASK_TYPES)) for split in SPLITS] == [3553, 140, 134]


# --- Words of a grammar ---------------------------------------------------------------------------

SENTENCE = '"Your task is to: put a \\"red\\" cup in the sink."'


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ('"help.feedback": [{"rhs": "\\nLook around."}]', "Look around."),
        ('action help { template :: "help"; feedback :: "Go."; }', "Go."),
        ('action help { a } action help { feedback :: "Go {on}." }', "Go {on}."),
        ('action help { a } feedback :: "Go."', "You can look"),
        ("", "You can look"),
    ],
)
def test_task_and_help_are_read_from_the_grammar(rest, told):
    world = World(read_game(_with_grammar(SENTENCE + rest)))
    assert world.game.task == 'Your task is to: put a "red" cup in the sink.'
    assert world.game.help.startswith(told)


def test_a_hostile_grammar_is_read_in_linear_time():
    """The old patterns took seconds for 32,000 characters; these would take hours."""
    read_game(_with_grammar(SENTENCE + "action help {" * 100_000))
    with pytest.raises(ValueError, match="must hold the sentence"):
        read_game(_with_grammar('"Your task is to: \\' * 100_000))


def _with_grammar(grammar: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != "task"} | {"grammar": grammar}
