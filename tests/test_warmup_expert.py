"""Expert demonstrations: taught moves are the expert's, random moves are played but not taught."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest
from toys import byte_chat, scripted_agent

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.config.warmup_options import WarmupOptions
from mage.engines.base import ScriptedEngine
from mage.environments.alfworld import Alfworld
from mage.environments.base import Environment
from mage.environments.sokoban import Sokoban
from mage.environments.tic_tac_toe import TicTacToe
from mage.environments.webshop import WebShop
from mage.learn.imitate.batches import expert_batches, held_out, own_batches, write_chunks
from mage.learn.imitate.demonstrations import Demonstration
from mage.learn.imitate.labelled import label_play
from mage.learn.imitate.scripted import Script, write_demonstrations
from mage.memory.notes import Notes
from mage.models.base import base_folder
from mage.play import PlaySetup
from mage.training.build import Components
from mage.training.demonstration_pool import DemonstrationPool
from mage.training.tasks import draw_tasks
from mage.types import Task

WORLDS = (
    Sokoban(),
    Alfworld(receptacles=4, objects=4),
    WebShop(products=200, test_goals=50, dev_goals=50, page_limit=400),
)
BYTES = byte_chat()


def model_setup(
    world: Environment, write: Callable[[str], str], episodes: int = 2, tokens: int = 60
) -> PlaySetup:
    """Play of a model that writes `write(prompt)`."""
    agent = scripted_agent(write)
    agent = Agent(agent.engine, agent.chat, SamplingOptions(max_tokens=tokens))
    return PlaySetup(world.for_split("train"), agent, Notes(keep="history"), episodes=episodes)


def play_setup(world: Environment) -> PlaySetup:
    return model_setup(
        world, lambda prompt: pytest.fail("the model is not asked in scripted play"), tokens=600
    )


def tasks(world: Environment) -> Iterator[Task]:
    return (Task(world.name, seed, 0, "", "train") for seed in count())


def demonstrate(world: Environment, noise: float, games: int = 6) -> list[Demonstration]:
    some = [task for task, _ in zip(tasks(world), range(games), strict=False)]
    return write_demonstrations(play_setup(world), some, 0, Script(expert=True, noise=noise))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_without_noise_every_taught_move_is_the_experts(world):
    found = demonstrate(world, noise=0.0)
    for number in range(6):
        state = world.for_split("train").start(world.episode_seed(number, 0))
        for demonstration in found:
            where = demonstration.where
            if (where.group, where.episode) == (number, 0):
                assert demonstration.turn.action == state.expert()
                state.apply(str(demonstration.turn.action))
        assert state.turn() is None
        assert state.scores() == (1.0,)


def test_random_moves_are_played_and_not_taught():
    """Half of the turns are random: the taught ones agree with the expert, and rooms get lost."""
    found = demonstrate(Sokoban(), noise=0.5, games=20)
    lost = 0
    for demonstration in found:
        assert demonstration.turn.action in demonstration.legal
        lost += "You lost." in BYTES.decode(demonstration.turn.prompt_ids)
    full = demonstrate(Sokoban(), noise=0.0, games=20)
    assert len(found) < len(full)
    assert lost > 0
    assert not any("You lost." in BYTES.decode(one.turn.prompt_ids) for one in full)


def test_the_models_own_play_is_labelled_with_the_experts_moves():
    """The model always writes `up`: its situations are taught with the expert's move instead."""
    world = Sokoban()
    own = model_setup(world, lambda prompt: "<action>up</action>")
    found = label_play(own, [Task(world.name, 3, 0, "", "train")], 0)
    state = world.for_split("train").start(world.episode_seed(3, 0))
    first = [one for one in found if one.where.episode == 0]
    assert len(first) > 1
    for demonstration in first:
        assert BYTES.decode(demonstration.reply_ids) == f"<action>{state.expert()}</action>"
        assert demonstration.turn.action == "up"
        state.apply("up")
    later = next(one for one in found if one.where.episode == 1)
    assert "Your moves: up" in BYTES.decode(later.turn.prompt_ids)


def test_after_a_won_episode_its_moves_are_taught():
    """The expert with random moves wins some rooms in a roundabout way: episode 2 repeats it."""
    world = Sokoban()
    some = [task for task, _ in zip(tasks(world), range(40), strict=False)]
    script = Script(expert=True, noise=0.3, repeat_wins=True)
    found = write_demonstrations(play_setup(world), some, 0, script)
    opening = {
        one.where.group: one for one in found if (one.where.episode, one.where.index) == (1, 0)
    }
    roundabout = 0
    for demonstration in opening.values():
        prompt = BYTES.decode(demonstration.turn.prompt_ids)
        if "You solved the room" in prompt:
            line = prompt.split("Your moves: ")[-1].split(".")[0]
            moves = line.replace(" (blocked)", "").split(", ")
            taught = str(demonstration.turn.action).split()
            assert moves[: len(taught)] == taught
            state = world.for_split("train").start(world.episode_seed(demonstration.where.group, 0))
            roundabout += state.expert() != demonstration.turn.action
    assert roundabout > 0


def test_a_win_is_repeated_to_its_end():
    """A random move in the middle would teach copying for a few turns only."""
    world = Sokoban()
    some = [task for task, _ in zip(tasks(world), range(40), strict=False)]
    script = Script(expert=True, noise=0.5, repeat_wins=True)
    found = write_demonstrations(play_setup(world), some, 0, script)
    later: dict[int, list[str]] = {}
    for one in found:
        if one.where.episode == 1 and "You solved" in BYTES.decode(one.turn.prompt_ids):
            later.setdefault(one.where.group, []).append(str(one.turn.action))
    assert len(later) > 3
    for group, moves in later.items():
        state = world.for_split("train").start(world.episode_seed(group, 0))
        for move in moves:
            state.apply(move)
        assert state.solved


def test_a_share_of_the_copies_of_wins_is_taught_and_all_other_play():
    world, count = Sokoban(), 60
    some = [task for task, _ in zip(tasks(world), range(count), strict=False)]

    def taught(**options):
        script = Script(expert=True, noise=0.3, **options)
        found = write_demonstrations(play_setup(world), some, 0, script)
        copies = {one.turn.prompt_ids for one in found if is_copy(one)}
        return copies, {one.turn.prompt_ids for one in found} - copies

    def is_copy(one):
        return one.where.episode > 0 and "You solved the room" in BYTES.decode(one.turn.prompt_ids)

    copies, rest = taught(repeat_wins=True)
    assert taught(repeat_wins=True, copies=0.0) == (set(), rest)
    some_copies, same_rest = taught(repeat_wins=True, copies=0.4)
    assert some_copies < copies
    assert same_rest == rest
    assert 0.2 < len(some_copies) / len(copies) < 0.6
    assert taught(copies=0.0) == taught(), "without repeat_wins there are no copies"
    with pytest.raises(ConfigError, match=r"warmup\.copies"):
        load_recipe("sokoban", ["--warmup.play=expert", "--warmup.copies=0.5"])


def test_a_won_episode_of_the_models_own_play_labels_the_next_one():
    """The model solves a room with a detour, and then writes `up`.

    The label of its second episode is its own first move.
    A model that leaves the path of the won episode is labelled by the expert again.
    """
    world = Sokoban().for_split("train")
    state, moves = world.start(world.episode_seed(6, 0)), ["left", "right"]
    for move in moves:
        state.apply(move)
    while state.turn() is not None:
        moves.append(str(state.expert()))
        state.apply(moves[-1])
    assert len(moves) <= world.max_turns
    replies = iter([*moves, *["up"] * 7])
    own = model_setup(world, lambda prompt: f"<action>{next(replies)}</action>")
    found = label_play(own, [Task(world.name, 6, 0, "", "train")], 0, repeat_wins=True)
    second = [BYTES.decode(one.reply_ids) for one in found if one.where.episode == 1]
    fresh = world.start(world.episode_seed(6, 0))
    assert second[0] == f"<action>{moves[0]}</action>" != f"<action>{fresh.expert()}</action>"
    fresh.apply("up")
    assert second[1] == f"<action>{fresh.expert()}</action>"


def test_batches_of_own_play_play_again_when_they_are_used_up():
    world = Sokoban()
    own = model_setup(world, lambda prompt: "<action>up</action>", episodes=1)
    batches = own_batches(own, tasks(world), WarmupOptions(batch=20), 0)
    some = [next(batches) for _ in range(6)]
    assert {len(batch) for batch in some} == {20}
    assert own.agent.engine.policy_version >= 2, "the engine is refreshed before each round"
    large = next(own_batches(own, tasks(world), WarmupOptions(batch=200), 0))
    assert len(large) == 200, "several rounds of play fill one batch"


@pytest.mark.e2e
def test_only_what_follows_a_lost_first_episode_is_taught():
    """The model plays the solution of one room, in another room too."""
    world = Sokoban().for_split("train")
    state, moves = world.start(world.episode_seed(6, 0)), list[str]()
    while state.turn() is not None:
        moves.append(str(state.expert()))
        state.apply(moves[-1])

    # The prompt shows one example of an answer, and then the answers of this episode.
    def write(prompt: str) -> str:
        return f"<action>{moves[(prompt.count('<action>') - 1) % len(moves)]}</action>"

    own = model_setup(world, write, episodes=3)
    games = [Task(world.name, seed, 0, "", "train") for seed in (6, 7)]
    found = [label_play(own, [task], 0, after_loss=True) for task in games]
    assert not found[0], "its first episode was won"
    assert {one.where.episode for one in found[1]} == {1, 2}
    options = WarmupOptions(batch=4, own_labels="after_loss")
    with pytest.raises(ValueError, match="nothing to teach"):
        next(own_batches(own, iter([games[0]] * 1000), options, 0))
    # A round is eight tasks. Every second round has nothing to teach, but never twenty in a row.
    rounds = [games[1], *[games[0]] * 15] * 12
    many = WarmupOptions(batch=12 * len(found[1]), own_labels="after_loss")
    assert len(next(own_batches(own, iter(rounds), many, 0))) == many.batch


def test_turns_of_an_expert_episode_stay_together():
    world = Sokoban()
    script = Script(expert=True)
    batches = expert_batches(
        lambda chunks: write_chunks(play_setup(world), script, chunks), tasks(world), 30, 0
    )
    for batch in itertools.islice(batches, 20):
        assert len(batch) == 30
        changes = [
            (one.where, other.where)
            for one, other in itertools.pairwise(batch)
            if one.where.index + 1 != other.where.index
        ]
        assert len(changes) < 15, "most turns follow the turn before"
        assert all(after.index == 0 for _, after in changes)


@pytest.mark.e2e
def test_processes_write_the_same_demonstrations():
    changes = ["--warmup.play=expert", "--warmup.noise=0.2", "--warmup.processes=2"]
    recipe = load_recipe("sokoban", changes)
    script = Script(expert=True, noise=0.2)
    chat = Chat.load(base_folder(recipe))
    own = Components(
        recipe, None, chat, ScriptedEngine(lambda request: "", chat.encode)
    ).begin_play()
    chunks = [([next(iter(row)) for row in draw_tasks(recipe, -k)][:3], k) for k in range(1, 11)]
    with DemonstrationPool(recipe, script) as pool:
        found = list(pool.write(chunks))
    assert found == list(write_chunks(own, script, chunks))
    assert sum(map(len, found)) > 30


def test_an_expert_that_wins_every_first_episode_is_measured_without_notes():
    """With play.stop_on_success a won first episode is the last one, so there is no reflection."""
    memory = Notes(keep="reflections")
    setup = replace(play_setup(Sokoban()), memory=memory, stop_on_success=True)
    moves, notes = held_out(setup, tasks(setup.environment), 4, 0, Script(expert=True))
    assert (len(moves), notes) == (4, [])


def test_an_environment_without_an_expert_gives_a_clear_message():
    world = TicTacToe()
    some = (Task(world.name, seed, 0, "random", "train") for seed in count())
    with pytest.raises(ValueError, match="tic_tac_toe has no expert; set"):
        held_out(play_setup(world), some, 4, 0, Script(expert=True))


def test_noise_without_expert_play_is_an_error():
    assert WarmupOptions().play == "random"
    with pytest.raises(ConfigError, match=r"warmup\.noise"):
        load_recipe("sokoban", ["--warmup.noise=0.2"])
    expert = load_recipe("sokoban", ["--warmup.play=expert", "--warmup.noise=0.2"])
    assert expert.warmup.noise == 0.2
    for option in ("own_steps=3", "repeat_wins=true"):
        with pytest.raises(ConfigError, match=rf"warmup\.{option.split('=')[0]}"):
            load_recipe("sokoban", [f"--warmup.{option}"])
    fresh = ["--warmup.play=expert", "--warmup.repeat_wins=true", "--environments.restart=fresh"]
    with pytest.raises(ConfigError, match="restart"):
        load_recipe("sokoban", fresh)
