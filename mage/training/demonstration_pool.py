"""Processes that write expert demonstrations while the model learns.

The demonstrations do not depend on the number of processes: every chunk of tasks has its own seed,
and chunks come back in their order.
"""

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

from mage.agent.chat import Chat
from mage.config.recipe import Recipe
from mage.engines.base import ScriptedEngine
from mage.learn.imitate.batches import Chunk
from mage.learn.imitate.demonstrations import Demonstration
from mage.learn.imitate.scripted import Script, write_demonstrations
from mage.models.base import base_folder
from mage.play import PlaySetup
from mage.ranks import processes as child_processes
from mage.ranks.processes import SIGNALS, blocked_signals, end_with_parent
from mage.training.build import Components

_AHEAD = 4  # chunks per process that are written before they are needed


class DemonstrationPool:
    """`warmup.processes` processes; they start with the first chunk and end with the block."""

    def __init__(self, recipe: Recipe, script: Script) -> None:
        self._recipe, self._script = recipe, script
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> "DemonstrationPool":
        return self

    def __exit__(self, *error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def write(self, chunks: Iterable[Chunk]) -> Iterator[list[Demonstration]]:
        """The demonstrations of every chunk, in order."""
        processes = self._recipe.warmup.processes
        self._executor = ProcessPoolExecutor(
            processes,
            get_context(child_processes.START_METHOD),
            _start,
            (self._recipe, self._script),
        )
        waiting: deque[Future[list[Demonstration]]] = deque()
        for chunk in chunks:
            with blocked_signals():  # the first call starts the processes
                waiting.append(self._executor.submit(_write, chunk))
            if len(waiting) >= _AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_setting: PlaySetup
_script: Script


def _start(recipe: Recipe, script: Script) -> None:
    """Build what scripted play needs, in a new process: no model and no engine."""
    global _setting, _script
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    end_with_parent()
    chat = Chat.load(base_folder(recipe), recipe.agent.thinking)
    engine = ScriptedEngine(lambda request: "", chat.encode)  # replaced by the scripted player
    _setting, _script = Components(recipe, None, chat, engine).begin_play(), script


def _write(chunk: Chunk) -> list[Demonstration]:
    tasks, seed = chunk
    return write_demonstrations(_setting, tasks, seed, _script)
