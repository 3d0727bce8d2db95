"""The three single-agent worlds with hostile replies, bounded observations and damaged data."""

import random
from pathlib import Path

import pytest
from toys import scripted_agent

from mage.environments.alfworld import Alfworld
from mage.environments.base import Environment
from mage.environments.sokoban import Sokoban
from mage.environments.webshop import WebShop
from mage.memory.notes import Notes
from mage.opponents.base import Population
from mage.play import PlaySetup, play_groups
from mage.seeds import derive
from mage.types import Task
from tests.toys import summarise

WORLDS: tuple[Environment, ...] = (
    Sokoban(),
    Alfworld(),
    WebShop(products=200, test_goals=50, dev_goals=50),
)
HOSTILE = (
    "",
    "\x00\x07\x1b[2J",
    "<action></action>",
    f"<action>{'x' * 20_000}</action>",
    f"<action>search[{'x' * 20_000}]</action>",
    "<action>search[\x00\x1b[2J]</action>",
    "<action>click[\ufffd]</action>",
    f"<action>{'up ' * 5_000}</action>",
    "<action>go to \u202eecaf</action>",
    "<action>" * 500,
    "<action>[/bold]{0}%s</action>",
)
MOST = 8_000  # characters that a model may be shown at once

each_world = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


@each_world
@pytest.mark.parametrize("reply", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_reply_is_recorded_as_an_illegal_move(world, reply):
    task = Task(world.name, 3, 0, "", "test")
    (played,) = play_groups(
        PlaySetup(world, scripted_agent(lambda prompt: reply), Notes(keep="both"), episodes=2),
        [[task]],
        seed=1,
    )
    for episode in played.episodes:
        assert (episode.ending, episode.score, episode.outcome) == ("illegal", 0.0, "lost")
        assert not any(turn.legal for turn in episode.turns)
        assert all(len(turn.observation) < MOST for turn in episode.turns)
        assert len(episode.recap) < MOST
    assert (
        summarise([played], world.for_split("test"), Population(), "test")
        .overall.episodes[0]
        .illegal
        == 1.0
    )


@each_world
@pytest.mark.parametrize("split", ["train", "test", "ood"])
def test_observations_and_recaps_have_bounded_length(world, split):
    found, longest = world.for_split(split), 0
    for number in range(12):
        rng, state = random.Random(number), found.start(derive(number, "bounds"))
        for _ in range(world.max_turns):
            if state.turn() is None:
                break
            longest = max(longest, len(state.observe(0)), len(state.anchor(0)))
            state.apply(rng.choice(state.legal()))
        longest = max(longest, len(state.recap(0)))
    assert 0 < longest < MOST


def _damage(folder: Path, content: bytes) -> tuple[Environment, ...]:
    """Every world on data files with this content."""
    game, levels = (
        folder / "train" / "pick_and_place_simple-x" / "trial" / "game.tw-pddl",
        folder / "levels.txt",
    )
    game.parent.mkdir(parents=True)
    for path in (game, levels, folder / "items_shuffle.json", folder / "items_ins_v2.json"):
        path.write_bytes(content)
    return Sokoban(levels=str(levels)), Alfworld(data=str(folder)), WebShop(data=str(folder))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe\x00\x01", b"{", b"[]", b"{}", b"null", b'[{"asin": 3}]', b"[" * 100_000],
    ids=range(8),
)
def test_damaged_data_gives_one_message_that_names_the_file(tmp_path, monkeypatch, content):
    monkeypatch.setenv("MAGE_CACHE", str(tmp_path / "cache"))
    for world in _damage(tmp_path, content):
        with pytest.raises(ValueError, match=tmp_path.name):
            world.start(0)


def test_tasks_have_a_kind_for_tables():
    """Kinds by hand: boxes and solution length from the seed, task types in turn."""
    assert Sokoban().task_kind(0) == "2 boxes, 1 to 5 moves"  # shortest = 5, plus 0
    assert Sokoban().task_kind(6) == "2 boxes, 11 to 15 moves"  # 11 moves
    assert Sokoban().for_split("ood").task_kind(17) == "3 boxes, 1 to 5 moves"
    assert [Alfworld().task_kind(seed) for seed in range(3)] == ["place", "light", "clean"]
    shop = WORLDS[2]
    counts = {shop.task_kind(seed).split()[0] for seed in range(40)}
    assert counts <= {"0", "1", "2"}
    assert len(counts) > 1
