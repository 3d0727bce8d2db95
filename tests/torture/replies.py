"""Fuzzed replies in all worlds: every reply is data, and play never raises an exception.

A fuzzed reply is a legal move, a damaged one, or text that was built to disturb a parser. Long
texts are rare, because most of their cost is in the tokenizer.
"""

import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mage.agent.agent import read_action
from mage.agent.thoughts import without_thoughts
from mage.environments.alfworld import Alfworld
from mage.environments.base import Environment
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.openspiel import OpenSpiel
from mage.environments.rock_paper_scissors import RockPaperScissors
from mage.environments.sokoban import Sokoban
from mage.environments.tic_tac_toe import TicTacToe
from mage.environments.webshop import WebShop
from mage.memory.amem import AMem
from mage.memory.base import Memory
from mage.memory.memento import Memento
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import Task
from tests.torture.result import Result
from tests.toys import byte_chat, scripted_agent

_PIECES = (
    *("<action>", "</action>", "<think>", "</think>", "<|end|>", "<|user|>", "\x00", "\x1b[2J"),
    *("\u202e", "\ud7ff", "\U0001f3b2", "\n", "\r\n", "{0}", "%s", "{{ 7 * 7 }}", "search["),
    *("click[", "]", "click[buy now]", "go to ", "take ", "1", "-1", "99999999999999999999"),
    *("1e309", "nan", "up", "down", " ", "\u2028", "\u0130", "\u00df", "null", "{}", "[]", '"'),
    *("'", "\\", "../../etc/passwd"),
)


def fuzz(rng: random.Random, legal: tuple[str, ...]) -> str:
    """One reply."""
    kind = rng.random()
    move = rng.choice(legal) if legal else ""
    if kind < 0.4:
        return f"<action>{_damaged(rng, move)}</action>"
    if kind < 0.6:
        return f"{_noise(rng, 3)}<action>{_noise(rng, 4)}</action>{_noise(rng, 2)}"
    if kind < 0.8:
        return _noise(rng, 12)
    if kind < 0.9:
        return f"<think>{_noise(rng, 4)}</think><action>{move}</action>"
    if kind < 0.999:
        return f"<action>{move}</action>"
    return rng.choice(_PIECES) * rng.choice((100, 1_000))


def _noise(rng: random.Random, most: int) -> str:
    return "".join(rng.choice(_PIECES) for _ in range(rng.randrange(most + 1)))


def _damaged(rng: random.Random, move: str) -> str:
    place = rng.randrange(len(move) + 1)
    match rng.randrange(5):
        case 0:
            return move[:place]
        case 1:
            return move[:place] + rng.choice(_PIECES) + move[place:]
        case 2:
            return move.upper()
        case 3:
            return move * rng.randrange(4)
        case _:
            return move[:place] + move[place + 1 :]


@dataclass(frozen=True, slots=True)
class World:
    """A world with the opponent and the memory that it is played with; `share` of all replies."""

    environment: Environment
    opponent: str
    memory: Memory
    share: float


def worlds() -> tuple[World, ...]:
    """All worlds; those whose states cost most get fewer replies."""
    return (
        World(KuhnPoker(), "aggressive", Notes(keep="both"), 0.2),
        World(TicTacToe(), "random", Notes(keep="history"), 0.2),
        World(RockPaperScissors(), "markov-0.5", Notes(keep="reflections"), 0.2),
        World(OpenSpiel(game="leduc_poker"), "random", AMem(embedding="lexical"), 0.1),
        World(Sokoban(), "", Notes(keep="both"), 0.1),
        World(Alfworld(), "", Memento(embedding="lexical"), 0.1),
        World(WebShop(products=200, test_goals=50, dev_goals=50), "", Notes(keep="both"), 0.1),
    )


def torture(attempts: int, seed: int, played: float = 0.02) -> list[Result]:
    """Fuzz parsers and states of all worlds; a part of the replies goes through whole episodes."""
    results = []
    for number, world in enumerate(worlds()):
        rng, count = random.Random(f"{seed}/{number}"), round(attempts * world.share)
        in_play = round(count * played)
        failures = [
            *_catch(lambda: _step(world, rng, count - in_play)),  # noqa: B023
            *_catch(lambda: _play(world, rng, in_play)),  # noqa: B023
        ]
        results.append(Result(f"fuzzed replies, {world.environment.name}", count, tuple(failures)))
    return results


def _catch(function: Callable[[], Iterator[str]]) -> list[str]:
    try:
        return list(function())
    except Exception:
        return [traceback.format_exc()[-1500:]]


def _step(world: World, rng: random.Random, count: int) -> Iterator[str]:
    """Give replies to states without a model: parser, move or refusal, observation."""
    environment, done = world.environment, 0
    while done < count:
        state = environment.start(rng.getrandbits(40))
        for _ in range(min(environment.max_turns * environment.seats, count - done)):
            seat = state.turn()
            if seat is None:
                break
            reply, done = fuzz(rng, state.legal()), done + 1
            without_thoughts(reply)
            written = read_action(reply)
            action = None if written is None else state.read(written)
            if action is None:
                state.refuse(written)
            else:
                state.apply(action)
            if rng.random() < 0.05 and len(state.observe(seat)) > 50_000:
                yield f"after {reply!r} the observation has {len(state.observe(seat))} characters"


def _play(world: World, rng: random.Random, count: int) -> Iterator[str]:
    """Play whole meta-episodes with fuzzed replies and reflections."""
    chat, done = byte_chat(), 0
    vocabulary = tuple(dict.fromkeys(_moves(world.environment, rng)))

    def reply(prompt: str) -> str:
        nonlocal done
        done += 1
        return fuzz(rng, vocabulary)

    agent = scripted_agent(reply, chat)
    while done < count:
        task = Task(world.environment.name, rng.getrandbits(30), 0, world.opponent, "test")
        before = done
        (meta,) = play_groups(
            PlaySetup(world.environment, agent, world.memory, episodes=2), [[task]], seed=before
        )
        for episode in meta.episodes:
            if episode.ending == "error" or len(episode.recap) > 50_000:
                yield f"task {task.seed}: {episode.ending}, recap {len(episode.recap)}"


def _moves(environment: Environment, rng: random.Random) -> Iterator[str]:
    state = environment.start(0)
    for _ in range(6):
        if state.turn() is None:
            return
        yield from state.legal()
        state.apply(rng.choice(state.legal()))
