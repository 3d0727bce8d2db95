"""The embedded model knows words and format only: random legal moves, notes with true facts."""

import math
import re
from collections import Counter

import pytest

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.engines.local import LocalEngine
from mage.environments.base import Environment
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.tic_tac_toe import TicTacToe
from mage.memory.notes import Notes
from mage.models.base import SHIPPED
from mage.models.loading import load_model
from mage.play import PlaySetup, play_groups
from mage.types import MetaEpisode, Task

FOLDER = SHIPPED / "embedded"


@pytest.fixture(scope="module")
def agent():
    chat = Chat.load(FOLDER)
    return Agent(
        LocalEngine(load_model(FOLDER, "float32", "cpu"), chat, slots=256, context=1024),
        chat,
        SamplingOptions(max_tokens=8, reflection_tokens=48),
    )


def play(agent: Agent, environment: Environment, opponent: str, count: int) -> list[MetaEpisode]:
    tasks = [[Task(environment.name, seed, seed % 2, opponent, "train")] for seed in range(count)]
    return play_groups(PlaySetup(environment, agent, Notes(keep="both")), tasks, seed=1)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("environment", "opponent", "tasks"),
    [(KuhnPoker(), "intermediate", 90), (TicTacToe(), "random", 60)],
    ids=["kuhn", "board"],
)
def test_it_plays_uniformly_random_legal_moves(agent, environment, opponent, tasks):
    turns = [
        turn
        for meta in play(agent, environment, opponent, tasks)
        for episode in meta.episodes
        for turn in episode.turns
    ]
    assert sum(not turn.legal for turn in turns) / len(turns) < 0.01
    first = [turn.action for turn in turns if turn.anchor == turns[0].anchor and turn.legal]
    choices = len(turns[0].choices[0][1])
    entropy = -sum(n / len(first) * math.log(n / len(first)) for n in Counter(first).values())
    assert entropy > math.log(choices) - 0.1, "nearly uniform"


@pytest.mark.e2e
def test_its_notes_state_facts_of_the_last_game(agent):
    notes = [
        episode.reflection
        for meta in play(agent, KuhnPoker(), "intermediate", 100)
        for episode in meta.episodes
        if episode.reflection
    ]
    true = 0
    for note in notes:
        facts = re.findall(
            r"(Opponent's card: \w+|Moves: [^.]*|(?:won|lost) \d)", note.completion.text
        )
        true += all(fact in note.observation for fact in facts) and bool(note.completion.text)
    assert true / len(notes) > 0.9
    assert len({note.completion.text for note in notes}) > 30, "no favourite sentence"


@pytest.mark.parametrize(("name", "most"), [("embedded", 12e6), ("embedded-worlds", 4e6)])
def test_it_is_small_enough_to_ship(name, most):
    assert sum(path.stat().st_size for path in (SHIPPED / name).iterdir()) < most
