"""Worked examples in the prompt: real situations, legal random moves, the same in every run."""

import itertools
import math
import re
from collections import Counter

import pytest
from corridor import Corridor
from toys import scripted_agent

from mage.agent.agent import Agent, read_action, worked_examples
from mage.config.errors import ConfigError
from mage.config.recipe import build_recipe
from mage.environments.base import Environment
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.openspiel import OpenSpiel
from mage.environments.tic_tac_toe import TicTacToe
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import Task


def pairs(environment: Environment, count: int) -> list[str]:
    """The examples as in the prompt, one text each."""
    return [
        f"{example.situation}\n<action>{example.action}</action>"
        for example in worked_examples(environment, count)
    ]


def with_examples(environment: Environment, count: int) -> Agent:
    agent = scripted_agent(
        lambda prompt: (
            "A note."
            if "Write a short note" in prompt
            else f"<action>{environment.example_action()}</action>"
        )
    )
    return Agent(agent.engine, agent.chat, agent.sampling, worked_examples(environment, count))


@pytest.mark.parametrize(
    "environment",
    [TicTacToe(), KuhnPoker(), OpenSpiel(game="connect_four"), Corridor()],
    ids=lambda world: world.name,
)
def test_the_requested_number_of_examples_is_made_in_the_exact_format(
    environment: Environment,
) -> None:
    assert worked_examples(environment, 0) == ()
    shown = pairs(environment, 5)
    assert len(shown) == 5
    for text in shown:
        assert re.fullmatch(r".+\n<action>[^<]+</action>", text, re.DOTALL)
        assert read_action(text) == text.rsplit("<action>")[1].removesuffix("</action>")


def test_moves_of_examples_are_legal_in_their_situation() -> None:
    for text in pairs(TicTacToe(), 16):
        assert read_action(text) in re.findall(r"Free: ([\d ]+)\.", text)[0].split()


def test_moves_of_examples_are_uniform_and_so_show_no_skill() -> None:
    """Every card bets about as often as it passes; no cell of an empty board is preferred.

    The second part is a chi-square test at the level 1 in 1,000.
    """
    moves = [
        (re.findall(r"card: (\w)", text)[0], read_action(text)) for text in pairs(KuhnPoker(), 400)
    ]
    for card in "JQK":
        count = Counter(move for own, move in moves if own == card)
        assert abs(count["bet"] - count["pass"]) < 3.3 * math.sqrt(count.total())
    opening = Counter(
        read_action(text) for text in pairs(TicTacToe(), 900) if "Free: 1 2 3 4 5 6 7 8 9." in text
    )
    expected = opening.total() / 9
    assert (
        sum((opening[str(cell)] - expected) ** 2 / expected for cell in range(1, 10)) < 26.1
    )  # 8 degrees of freedom


def test_all_tasks_and_runs_see_the_same_examples() -> None:
    play_setup = PlaySetup(TicTacToe(), with_examples(TicTacToe(), 3), Notes(keep="both"))
    tasks = [[Task("tic_tac_toe", seed, seed % 2, "random", "train")] for seed in range(6)]
    metas = play_groups(play_setup, tasks, seed=1)
    texts = [
        play_setup.agent.chat.decode(turn.prompt_ids)
        for meta in metas
        for episode in meta.episodes
        for turn in episode.turns
    ]
    heads = {"<|user|>".join(text.split("<|user|>")[:4]) for text in texts}
    assert len(heads) == 1
    assert heads.pop().count("<action>") == 1 + 3, "the answer format and three examples"
    assert worked_examples(TicTacToe(), 3) == worked_examples(TicTacToe(restart="same"), 3)


def test_prompts_stay_append_only_with_examples() -> None:
    play_setup = PlaySetup(TicTacToe(), with_examples(TicTacToe(), 2), Notes(keep="none"))
    (meta,) = play_groups(play_setup, [[Task("tic_tac_toe", 1, 0, "random", "train")]], seed=1)
    for before, after in itertools.pairwise(meta.episodes[0].turns):
        assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids


@pytest.mark.parametrize("count", [-1, 17, 2.0])
def test_a_number_out_of_range_is_an_error_that_names_the_option(kuhn_tables, count) -> None:
    with pytest.raises(ConfigError, match=r"agent\.examples"):
        build_recipe(kuhn_tables | {"agent": {"examples": count}})


def test_the_number_of_examples_is_stored_in_the_recipe(kuhn_tables) -> None:
    assert build_recipe(kuhn_tables | {"agent": {"examples": 3}}).tables()["agent"]["examples"] == 3
