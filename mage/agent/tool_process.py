"""Tools run in a process of their own: a call that loops, blocks or crashes ends with it.

Threads cannot be stopped, and a long computation inside Python (`9 ** 9 ** 9`) blocks all of them.
So the first call forks one process, which makes all calls, and is replaced when a call exceeds its
time. It has a copy of everything that was loaded: it needs no start-up, and tools may be defined
anywhere. What a tool changes is lost: tools read the world, and actions change it. The global
random numbers of a call depend on its seed only.
"""

import gc
import json
import os
import pickle
import random
import resource
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np

from mage.agent.tools import CallError, Function, Tool, ToolLimits, parse_call
from mage.config.errors import UserError
from mage.environments.base import State
from mage.seeds import derive

_TAKE = 60.0  # seconds to take a call: a thread that an earlier call has left may block the process
_AFTER = 5.0  # seconds after its limit at which a process without a parent ends itself
_LONGEST_REASON = 300  # characters of an error message


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What the agent is shown after a call. `failed`: it is the text of an error."""

    text: str
    failed: bool = False


def answer_call(
    tools: Sequence[Tool], limits: ToolLimits, state: State, content: str, seed: int
) -> ToolAnswer:
    """Make a call and return its result, cut to the limit. All errors are texts."""
    try:
        name, given = parse_call(content)
        tool = next((tool for tool in tools if tool.name == name), None)
        if tool is None:
            known = ", ".join(tool.name for tool in tools)
            raise CallError(f"there is no tool {name[:60]!r}. Tools: {known}")
        arguments = tool.read_arguments(given)
    except CallError as error:
        return ToolAnswer(_clean(f"Error: {error}", limits.characters), failed=True)
    own = (state,) if tool.needs_state else ()
    process = _process()
    process.prepare(type(state), *(tool.function for tool in tools))
    found = process.call(tool.function, own, arguments, limits, derive(seed, content))
    return ToolAnswer(_clean(found.text, limits.characters), found.failed)


def _clean(text: str, most: int) -> str:
    """A text of limited length without halves of surrogate pairs, which no tokenizer reads."""
    return text[:most].encode("utf-8", "replace").decode() + (" (cut)" if len(text) > most else "")


class ToolProcess:
    """The process that makes the calls. It is forked when it is needed, and again after a kill."""

    def __init__(self) -> None:
        self.pid, self.owner = 0, 0
        self.link: Connection | None = None
        self.known: set[Any] = set()  # what was defined when the process was forked

    def prepare(self, *definitions: Any) -> None:
        """Have a process that knows these functions and classes."""
        needs = {getattr(one, "__func__", one) for one in definitions}
        if self.owner != os.getpid():  # there is none yet, or it belongs to a parent
            self.pid, self.link = 0, None
        if self.link is None or not needs <= self.known:
            self.known |= needs
            self.end()
            self.link = self._fork()

    def call(
        self,
        function: Function,
        own: tuple[State, ...],
        arguments: dict[str, Any],
        limits: ToolLimits,
        seed: int,
    ) -> ToolAnswer:
        """The result of a function. Its time begins when the process has the call."""
        name = getattr(function, "__name__", "tool")
        try:
            asked = pickle.dumps((function, own, arguments, limits, seed))
        except Exception as error:  # pickling runs code of the state
            raise UserError(
                f"the tool {name} cannot be sent to the process of tools: {error}. Use a function "
                "of a module, and a state of plain Python objects"
            ) from None
        assert self.link is not None, "`prepare` comes before every call"
        try:
            self.link.send_bytes(asked)
            if not self.link.poll(_TAKE):
                self.end()
                return _error(f"{name} could not begin within {_TAKE:g} s and was stopped")
            self.link.recv_bytes()  # it has the call
            if not self.link.poll(limits.seconds):
                self.end()
                return _error(f"{name} took longer than {limits.seconds:g} s and was stopped")
            text, failed = json.loads(self.link.recv_bytes())
            return ToolAnswer(text, failed)
        except (OSError, EOFError):
            self.end()
            return _error(f"{name} ended its process")

    def _fork(self) -> Connection:
        self.owner = os.getpid()
        here, there = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: only tools run there
            self.pid = os.fork()
        if self.pid == 0:
            _serve(there)
        there.close()
        return here

    def end(self) -> None:
        """End the process and everything that tools have started in it."""
        if self.link is not None:
            self.link.close()
            self.link = None
        if self.pid:
            for kill in (os.killpg, os.kill):  # the group exists when the process has made it
                with suppress(ProcessLookupError):
                    kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


@cache
def _process() -> ToolProcess:
    """One process for all tools: its cached data, such as a search index, are computed once."""
    return ToolProcess()


def end_tools() -> None:
    """End the process of tools, with everything that they have stored in it."""
    _process().end()


def _error(reason: str) -> ToolAnswer:
    return ToolAnswer(f"Error: {reason}", failed=True)


# --- In the process of tools ----------------------------------------------------------------------


def _serve(link: Connection) -> NoReturn:
    """Make calls until the other process has ended."""
    try:
        _detach(link.fileno())
        while True:
            try:
                asked = link.recv_bytes()
            except EOFError:
                break
            link.send_bytes(b"")
            link.send_bytes(json.dumps(_make(asked)).encode())
    finally:
        os._exit(0)


def _detach(kept: int) -> None:
    """Keep nothing of the parent open: others wait for the end of its files and connections."""
    gc.freeze()  # the parent's garbage has finalizers that are the parent's to run
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, kept)
    os.closerange(kept + 1, most if 0 < most < 1 << 20 else 1 << 20)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")


def _make(asked: bytes) -> tuple[str, bool]:
    """The result of one call as text."""
    name, most = "the tool", _LONGEST_REASON
    try:
        function, own, arguments, limits, seed = pickle.loads(asked)
        name, most = function.__name__, limits.characters + 1
        random.seed(seed)
        np.random.seed(seed % 2**32)
        signal.setitimer(signal.ITIMER_REAL, limits.seconds + _AFTER)
        found = function(*own, **arguments)
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        return text[:most], False
    except BaseException as error:  # also SystemExit and KeyboardInterrupt of a tool
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"Error: {name} failed: {reason[:_LONGEST_REASON]}", True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
