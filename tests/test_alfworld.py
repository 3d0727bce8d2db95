"""ALFWorld without TextWorld: recorded transcript, generated games, planner, contract."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from toys import scripted_agent

from mage.engines.base import run
from mage.environments.alfworld import Alfworld
from mage.environments.alfworld.engine import NOTHING_HAPPENS, Game, World
from mage.environments.alfworld.game_file import read_game
from mage.environments.alfworld.games import make_game
from mage.environments.alfworld.generator import generate
from mage.environments.alfworld.planner import plan
from mage.environments.alfworld.problem import TASK_TYPES
from mage.environments.alfworld.rooms import SEEN, UNSEEN
from mage.environments.base import check
from mage.evaluation.panels import make_panel
from mage.memory.notes import Notes
from mage.opponents.base import Population
from mage.play import PlaySetup, play_meta_episode
from mage.types import Split, Task

GOLDEN = Path(__file__).parent / "golden"
SPLITS: tuple[Split, ...] = ("train", "test", "ood")
SMALL = {"receptacles": 4, "objects": 4}


# --- The engine -----------------------------------------------------------------------------------


def test_a_transcript_of_textworld_is_reproduced_word_for_word():
    """Recorded from TextWorld 1.7.0 with alfworld 0.4.2.

    The game covers its peculiarities: shared places, an object in two places, slices, a full bowl.
    """
    record = json.loads((GOLDEN / "alfworld_textworld.json").read_text())
    world = World(read_game(record["game"]))
    assert world.introduction() == record["introduction"]
    assert world.admissible() == record["admissible"]
    for command, answer, admissible, reward in record["steps"]:
        assert world.step(command) == answer, command
        assert (world.admissible(), int(world.won)) == (admissible, reward), command
    assert len(record["steps"]) > 100


def test_inadmissible_commands_change_nothing():
    world = World(make_game("place", "train", 0, 8, 12, 10))
    before = world.admissible()
    odd = ("take \x00\x1b[31m", "x" * 100_000, "go to shelf 1; look")
    for command in ("", "dance", "LOOK", "go to", *odd):
        assert world.step(command) == NOTHING_HAPPENS
    assert world.admissible() == before
    state = Alfworld().start(3)
    legal = state.legal()
    state.refuse("fly to the moon")
    assert state.observe(0).startswith("Nothing happens.")
    assert state.legal() == legal
    assert state.read(legal[0].upper()) == legal[0], "commands ignore case"
    assert state.read("sing") is None


# --- Generated games ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_every_generated_game_is_won_by_its_plan_and_not_before(kind):
    for split, (receptacles, objects) in product(SPLITS, ((3, 2), (4, 4), (8, 12))):
        for seed in range(4):
            game = make_game(kind, split, seed, receptacles, objects, 10)
            world, won = World(game), []
            for command in plan(world) or ():
                assert world.step(command) != NOTHING_HAPPENS
                won.append(world.won)
            assert won == [False] * (len(won) - 1) + [True]
            assert len(won) <= 10


def test_no_game_of_one_split_is_a_game_of_another():
    """In the smallest rooms, where repetitions are frequent. Wording and numbers do not count."""
    train, test, ood = (
        {content(make_game("place", split, seed, 3, 2, 10)) for seed in range(80)}
        for split in SPLITS
    )
    assert min(len(train), len(test), len(ood)) > 40
    assert train.isdisjoint(test)
    assert ood.isdisjoint(train | test)


def content(game: Game) -> tuple[Any, ...]:
    lying = sorted(
        (game.object_types[o], game.receptacle_types[r])
        for r, objects in enumerate(game.inside)
        for o in objects
    )
    return game.goal, tuple(sorted(game.receptacle_types)), tuple(lying)


def test_rooms_out_of_domain_have_furniture_of_no_seen_room():
    seen, unseen = (
        [Counter(f"{name.lower()}type" for name in layout.receptacles) for layout in layouts]
        for layouts in (SEEN, UNSEEN)
    )
    for kind, seed in product(TASK_TYPES, range(10)):
        found = Counter(make_game(kind, "ood", seed, 4, 4, 10).receptacle_types)
        assert not any(found <= types for types in seen)
        assert any(found <= types for types in unseen)


def test_a_seed_gives_the_same_game_in_every_process():
    told = (
        "from mage.environments.alfworld.generator import generate; print(generate('heat', "
        "'test', 7, receptacles=5, objects=6)['pddl_problem'])"
    )
    other = {**os.environ, "PYTHONHASHSEED": "99"}
    done = subprocess.check_output([sys.executable, "-c", told], text=True, env=other)
    game = generate("heat", "test", 7, receptacles=5, objects=6)
    assert done.strip() == game["pddl_problem"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 5}, "max_turns = 5 is too few: heat takes at least 6, cool takes at least"),
        ({"max_turns": 5}, "cool takes at least 6, two takes at least 8"),
        ({"task_types": ()}, "task_types"),
        ({"task_types": ("place", "place")}, "task_types"),
        ({"task_types": ("sweep",)}, "task_types"),
        ({"split": "valid"}, "split"),
        ({"receptacles": 2}, "receptacles"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValidationError, match=message):
        Alfworld(**options)


# --- The expert -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_the_expert_wins_after_random_play(kind):
    environment = Alfworld(task_types=(kind,), max_turns=60)
    for seed in range(6):
        state, rng = environment.start(seed), random.Random(seed)
        for _ in range(20):
            if state.turn() is not None:
                state.apply(rng.choice(state.legal()))
        while state.turn() is not None:
            move = state.expert()
            assert move is not None
            assert move in state.legal()
            state.apply(move)
        assert state.scores() == (1.0,)


def test_there_is_no_plan_for_a_finished_or_impossible_task():
    world = World(make_game("clean", "train", 0, 8, 12, 10))
    for command in plan(world) or ():
        world.step(command)
    assert plan(world) == []
    game = generate("heat", "train", 0, **SMALL)
    lines = game["pddl_problem"].splitlines()
    left = "\n".join(line for line in lines if not line.startswith("(pickupable"))
    assert plan(World(read_game(game | {"pddl_problem": left}))) is None


# --- The environment ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split": "test", "idle": False},
        {"split": "ood", **SMALL, "commands": 5, "characters": 200},
    ],
    ids=str,
)
def test_it_keeps_the_contract(options):
    assert check(Alfworld(**options), games=40) == []


def test_an_inadmissible_command_is_recorded_as_illegal_and_never_raised():
    said = ["dance", "go " * 30_000, "look\x07\x00"]
    answers = iter([*(f"<action>{one}</action>" for one in said), "no tags"] * 3)
    agent = scripted_agent(lambda prompt: next(answers))
    world = Alfworld(max_turns=4, task_types=("place",))
    setup = PlaySetup(world, agent, Notes(keep="history"), episodes=1)
    (played,) = run([play_meta_episode(setup, Task("alfworld", 3, 0, "", "train"), 0, 0, 0)])
    (episode,) = played.episodes
    assert [turn.legal for turn in episode.turns] == [False] * 4
    assert (episode.ending, episode.outcome, episode.score) == ("illegal", "lost", 0.0)


def test_an_observation_is_bounded_and_states_what_was_cut():
    state = Alfworld(commands=3, characters=200).start(0)
    shown = state.observe(0).rsplit("Commands: ", 1)[1]
    assert f"(and {len(state.legal()) - 3} more, not shown)" in shown
    assert shown.count(",") == 2 + 1
    assert "help, inventory, look" in shown  # what can be done here comes before the ways elsewhere
    long = Alfworld(characters=200, max_turns=30).start(0)
    for _ in range(30):
        long.apply("inventory")
    assert "characters cut]" in long.recap(0)
    assert long.recap(0).endswith("You did not finish the task in 30 steps.")
    assert len(long.recap(0)) < 260


def test_a_recap_has_the_task_the_commands_and_the_seen_contents_only():
    game = make_game("place", "train", 6, 8, 12, 10)
    state, steps = Alfworld(task_types=("place",)).start(6), plan(World(game)) or []
    for command in steps:
        state.apply(command)
    told = state.recap(0)
    assert told.startswith(game.task)
    assert f"You did: {', '.join(steps)}." in told
    assert told.endswith(f"You did the task in {len(steps)} steps.")
    assert told.count("At first ") == len(state.seen) < len(game.receptacles)
    source = next(one for one in steps if one.startswith("take"))
    thing, _, place = source.removeprefix("take ").partition(" from ")
    # as it will be again, not as it was left
    assert thing in told.split(f"At first {place} held ")[1].split(".")[0]


def test_the_anchor_depends_on_the_situation_and_not_on_the_path():
    one, other = Alfworld().start(0), Alfworld().start(0)
    ways = [command for command in one.legal() if command.startswith("go to")]
    for command in (ways[0], ways[1]):
        one.apply(command)
    for command in (ways[1], ways[0], ways[1]):
        other.apply(command)
    assert (one.anchor(0) == other.anchor(0)) == (set(one.seen) == set(other.seen))
    before = one.anchor(0)
    one.apply("inventory")
    assert one.anchor(0) == before
    one.apply(ways[2])
    assert one.anchor(0) != before


def test_splits_have_different_games_and_panels_cover_task_types_evenly():
    environment = Alfworld()
    tasks = {split: environment.for_split(split).game(11) for split in SPLITS}
    assert len({(game.task, game.objects, game.receptacles) for game in tasks.values()}) == 3
    panel = make_panel(environment, Population(train={}), "test", size=60)
    test = environment.for_split("test")
    kinds = Counter(test.game(test.episode_seed(task.seed, 0)).goal.kind for task in panel)
    assert kinds == dict.fromkeys(TASK_TYPES, 10)
    first, second = (environment.start(environment.episode_seed(5, one)) for one in range(2))
    assert first.world.game is second.world.game, "episodes repeat the same room"
    assert first.observe(0) == second.observe(0)
