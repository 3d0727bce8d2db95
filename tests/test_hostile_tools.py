"""Tools that fail, hang, flood or crash: the agent reads one line, and play goes on."""

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from mage.agent.tool_process import ToolAnswer, answer_call, end_tools
from mage.agent.tools import ToolLimits, read_tools, write_call
from mage.config.errors import UserError
from tests.processes import start
from tests.test_tools import Box, BoxState, play
from tests.toys import scripted_agent

LIMITS = ToolLimits(calls=4, seconds=60.0, characters=100)
SHORT = ToolLimits(calls=4, seconds=0.2, characters=100)  # of calls that never end
MOST = 60.0  # seconds of a stopped call on a busy machine


def fails(state: BoxState) -> str:
    """Raise an error of many lines."""
    raise RuntimeError("no\nsuch thing" + "!" * 10_000_000)


def loops() -> str:
    """Never end, and catch everything."""
    while True:
        with suppress(BaseException):
            time.sleep(0)


def computes() -> int:
    """Compute inside of Python without end."""
    return len(str(9**9**9**9))


def blocks() -> str:
    """Wait for ever."""
    threading.Lock().acquire() and threading.Event().wait()
    return ""


def floods() -> str:
    """Print and return 10 MB."""
    for stream in (sys.stdout, sys.stderr):
        stream.write("x" * 10_000_000)
    return "y" * 10_000_000


def returns_an_object() -> Any:
    """Return something that is not text."""
    return {threading.Lock()}


def returns_data() -> Any:
    """Return plain data."""
    return {"price": [1, 2.5, None]}


def exits() -> str:
    """End the process."""
    sys.exit(3)


def dies() -> str:
    """End the process at once."""
    os._exit(3)


def halves() -> str:
    """Return half of a surrogate pair."""
    return "\ud800"


def starts_a_process() -> str:
    """Start a process that never ends."""
    if os.fork() == 0:
        time.sleep(10_000)
    time.sleep(10_000)
    return ""


def changes(state: BoxState) -> str:
    """Change the world."""
    state.secret = 99
    return "done"


HOSTILE = {
    fails: f"Error: fails failed: RuntimeError: no such thing{'!' * 1000}"[:100],
    loops: "Error: loops took longer than 0.2 s and was stopped",
    computes: "Error: computes took longer than 0.2 s and was stopped",
    blocks: "Error: blocks took longer than 0.2 s and was stopped",
    floods: "y" * 100 + " (cut)",
    returns_an_object: "Error: returns_an_object failed: TypeError: Object of type set is not",
    returns_data: '{"price": [1, 2.5, null]}',
    exits: "Error: exits failed: SystemExit: 3",
    dies: "Error: dies ended its process",
    halves: "?",
    starts_a_process: "Error: starts_a_process took longer than 0.2 s and was stopped",
}


class Hostile(Box):
    name = "hostile"

    def tools(self) -> tuple[Any, ...]:
        return (*HOSTILE, changes)


def ask(name: str, limits: ToolLimits = LIMITS) -> ToolAnswer:
    content = write_call(name, {}).removeprefix("<tool_call>").removesuffix("</tool_call>")
    return answer_call(read_tools(Hostile().tools()), limits, BoxState(1), content, 7)


@pytest.mark.parametrize("function", HOSTILE, ids=lambda function: function.__name__)
def test_a_hostile_tool_gives_one_text_in_time(function):
    begin = time.monotonic()
    answer = ask(function.__name__, SHORT if "longer" in HOSTILE[function] else LIMITS)
    assert time.monotonic() - begin < MOST
    assert answer.text.startswith(HOSTILE[function])
    assert answer.failed is HOSTILE[function].startswith("Error")
    assert ask("returns_data").text == HOSTILE[returns_data]  # the next call works


def leaves_a_thread() -> str:
    """Answer, then block the process by a thread that computes without end."""
    threading.Timer(0.1, computes).start()
    return ""


def test_a_process_that_takes_no_call_is_stopped(monkeypatch):
    monkeypatch.setattr("mage.agent.tool_process._TAKE", 0.5)
    tools = read_tools([leaves_a_thread, returns_data])

    def call(name: str) -> ToolAnswer:
        return answer_call(tools, SHORT, BoxState(1), f'{{"name": "{name}", "arguments": {{}}}}', 1)

    assert not call("leaves_a_thread").failed
    while not (answer := call("returns_data")).failed:
        time.sleep(0.05)
    assert answer.text.endswith("was stopped")
    monkeypatch.undo()
    assert not call("returns_data").failed


def test_play_goes_on_after_hostile_tools_and_they_change_nothing():
    names = iter(["loops", "dies", "floods", "changes"])

    def reply(prompt: str) -> str:
        name = next(names, None)
        return write_call(name, {}) if name else "<action>3</action>"

    agent = scripted_agent(reply)
    object.__setattr__(agent, "limits", replace(LIMITS, seconds=3.0))  # one never ends
    episode = play(agent, Hostile()).episodes[0]
    assert [call.failed for call in episode.turns[0].calls] == [True, True, False, False]
    assert (episode.ending, episode.score) == ("finished", 0.0)


def _idle_process(path: str) -> None:
    """A process of tools that waits for calls, then this one is killed."""
    ask("returns_data")
    from mage.agent.tool_process import _process

    with open(path, "w") as file:
        file.write(str(_process().pid))
    time.sleep(10_000)


def test_the_process_of_tools_ends_with_its_parent(tmp_path):
    path = tmp_path / "pid"
    parent = start(_idle_process, str(path))
    while not path.exists() or not path.read_text():
        time.sleep(0.05)
    pid = int(path.read_text())
    parent.kill()
    parent.join()
    end = time.monotonic() + MOST
    while _is_alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_state_that_cannot_be_sent_is_one_message():
    state = BoxState(1)
    state.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="the tool changes cannot be sent to the process of tools"):
        answer_call(read_tools([changes]), LIMITS, state, '{"name": "changes", "arguments": {}}', 1)
    end_tools()
