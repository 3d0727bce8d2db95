"""Fuzzed calls of hostile tools in whole episodes: every result is a text, and play never raises.

Most calls are damaged JSON or wrong arguments. Tools that hang take their time limit, so they are
called seldom.
"""

import json
import random
import traceback
from dataclasses import replace

from mage.agent.tools import ToolLimits, write_call
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import Task
from tests.test_hostile_tools import HOSTILE, Hostile
from tests.torture.replies import fuzz
from tests.torture.result import Result
from tests.toys import scripted_agent

_LIMITS = ToolLimits(calls=3, seconds=0.5, characters=200)
_SLOW = ("loops", "computes", "blocks", "starts_a_process")
_SLOW_SHARE = 0.01
_NAMES = tuple(function.__name__ for function in HOSTILE)


def fuzz_call(rng: random.Random) -> str:
    """A call of a hostile tool, a damaged call, or any other reply."""
    name = rng.choice(_NAMES)
    if name in _SLOW and rng.random() > _SLOW_SHARE:
        name = "dies"
    kind = rng.random()
    if kind < 0.3:
        return write_call(name, {})
    if kind < 0.5:
        given = {"x": rng.choice([1, "\ud800", None, [[]], 1e309, "y" * 1000])}
        return f"<tool_call>{json.dumps({'name': name, 'arguments': given})}</tool_call>"
    if kind < 0.7:
        text = json.dumps({"name": name, "arguments": {}})
        place = rng.randrange(len(text))
        return f"<tool_call>{text[:place]}{fuzz(rng, ('1',))}{text[place:]}</tool_call>"
    return fuzz(rng, ("1", "2", write_call(name, {})))


def torture(attempts: int, seed: int) -> Result:
    """Play until this many replies were given."""
    rng, done, failures = random.Random(seed), 0, list[str]()

    def reply(prompt: str) -> str:
        nonlocal done
        done += 1
        return fuzz_call(rng)

    agent = replace(scripted_agent(reply), limits=_LIMITS)
    while done < attempts:
        task = Task("hostile", rng.getrandbits(30), 0, "", "test")
        setup = PlaySetup(Hostile(), agent, Notes(keep="history"), episodes=2)
        try:
            (meta,) = play_groups(setup, [[task]], seed=done)
        except Exception:
            failures.append(traceback.format_exc()[-1500:])
            continue
        calls = [call for one in meta.episodes for turn in one.turns for call in turn.calls]
        most = _LIMITS.characters + 100  # the note on the last call
        failures += [f"{len(call.result)} characters" for call in calls if len(call.result) > most]
    return Result("fuzzed calls of hostile tools", done, tuple(failures))
