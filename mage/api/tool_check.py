"""The contract of tools: a schema, and results that depend on the task and the arguments only.

The same calls are made twice, in two orders and in two processes. A tool that remembers earlier
calls, reads the clock or draws random numbers of its own then answers differently.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mage.agent.tool_process import ToolAnswer, answer_call, end_tools
from mage.agent.tools import Tool, ToolLimits, read_tools
from mage.config.errors import UserError
from mage.environments.base import Environment, State
from mage.seeds import derive

_GAMES = 5  # games in which the calls are made
_Situation = tuple[int, tuple[str, ...], str]  # seed of a game, moves so far, call


def check_tools(environment: Environment, seed: int = 0) -> list[str]:
    """Make the calls that states name, and others; returns the violations."""
    faults: list[str] = []
    for world in environment.inside().values():
        try:
            tools = read_tools(world.tools())
            faults += _check(world, tools, seed) if tools else _check_callless(world)
        except UserError as error:
            faults.append(str(error))
    return list(dict.fromkeys(faults))[:20]


def _check_callless(world: Environment) -> list[str]:
    return ["calls() names calls, but tools() is empty"] if world.start(0).calls() else []


def _check(world: Environment, tools: Sequence[Tool], seed: int) -> list[str]:
    named = list(_named_calls(world, seed))
    drawn = list(_drawn_calls(world, tools, seed))
    first = [_answer(world, tools, one) for one in (*named, *drawn)]
    end_tools()
    again = [_answer(world, tools, one) for one in reversed((*named, *drawn))][::-1]
    wrong = [
        f"calls() names {content}, which gives: {answer.text}"
        for (_, _, content), answer in zip(named, first, strict=False)
        if answer.failed
    ]
    return wrong + [
        f"the call {content} gives {one.text[:80]!r} and, when it is made again, "
        f"{other.text[:80]!r}: a result may depend on the task and the arguments only"
        for (_, _, content), one, other in zip((*named, *drawn), first, again, strict=True)
        if one != other
    ]


def _answer(world: Environment, tools: Sequence[Tool], situation: _Situation) -> ToolAnswer:
    game, moves, content = situation
    state = world.start(game)
    for move in moves:
        state.apply(move)
    return answer_call(tools, ToolLimits(), state, content, game)


def _named_calls(world: Environment, seed: int) -> Iterator[_Situation]:
    """The calls that the states of random games name."""
    for game in range(_GAMES):
        start, moves = derive(seed, "tools", game), list[str]()
        rng, state = random.Random(start), world.start(start)
        while state.turn() is not None and len(moves) < world.max_turns:
            for name, arguments in state.calls():
                yield start, tuple(moves), _content(name, arguments)
            moves.append(rng.choice(state.legal()))
            state.apply(moves[-1])


def _drawn_calls(world: Environment, tools: Sequence[Tool], seed: int) -> Iterator[_Situation]:
    """Calls of all tools with arguments of the right types, in the first states of games."""
    for game in range(_GAMES):
        start = derive(seed, "tools", game)
        rng, state = random.Random(start), world.start(start)
        for tool in tools:
            found = tool.schema()["function"]["parameters"].get("properties", {})
            drawn = {name: _draw(one, state, rng) for name, one in found.items()}
            yield start, (), _content(tool.name, drawn)


def _draw(schema: Mapping[str, Any], state: State, rng: random.Random) -> Any:
    """A value of this type; texts are words of the observation."""
    if schema.get("anyOf"):
        return _draw(schema["anyOf"][0], state, rng)
    words = state.observe(state.turn() or 0).split()
    values = {
        "string": rng.choice(words),
        "integer": rng.randint(-3, 9),
        "number": rng.uniform(-3, 9),
        "boolean": rng.random() < 0.5,
        "array": [],
        "object": {},
    }
    return rng.choice(schema["enum"]) if schema.get("enum") else values.get(schema.get("type", ""))


def _content(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": dict(arguments)})
