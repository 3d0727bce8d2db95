"""torch.compile for the learner: compilations are counted, timed and reported.

A compiled function is compiled again for every new shape, which takes 10 to 50 s for a large model.
After 8 shapes PyTorch gives up and runs the plain function without a word; attention then holds
all scores in memory. So micro-batches have a few fixed lengths (`padded_length`), and the limit is
raised, because gradient mode and the KL reference need versions of their own.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from mage.ranks.processes import blocked_signals

_MOST_VERSIONS = 64
# Lengths of compiled micro-batches in sixteenths of `micro_tokens`. In the five recipes of the
# paper 5 to 6 % of the tokens are padding; with 4, 8 and 16 sixteenths it was 5 to 35 %.
_SIXTEENTHS = (4, 7, 9, 11, 13, 15, 16)


class CompileClock:
    """Counts the compilations of this process and adds up their seconds."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0
        self.report: Callable[[str], None] = lambda line: None
        self._began = 0.0

    def listen(self) -> None:
        """Register with the compiler, which forgets callbacks in `torch.compiler.reset`."""
        # Imported here: it takes seconds, and only a GPU needs it.
        from torch._dynamo.callback import callback_handler

        if self._start not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._start)
            callback_handler.register_end_callback(self._end)

    def _start(self, _: Any) -> None:
        self._began = time.perf_counter()
        self.count += 1
        self.report(f"compiling, step {self.count} ({self.seconds:.0f} s so far)")

    def _end(self, _: Any) -> None:
        self.seconds += time.perf_counter() - self._began

    @contextmanager
    def reporting(self, report: Callable[[str], None]) -> Iterator[None]:
        """Send a line to `report` whenever a compilation starts inside the context."""
        before, self.report = self.report, report
        try:
            yield
        finally:
            self.report = before


@cache
def _clock() -> CompileClock:
    return CompileClock()


def compile_clock() -> CompileClock:
    """The clock of this process; it counts from the first call on."""
    clock = _clock()
    clock.listen()
    return clock


@cache
def start_workers() -> None:
    """Start the processes of the compiler without the signals that stop a run.

    After a stop the run ends its update, which may compile. `timeout`, Slurm and systemd send the
    signal to all processes of a run, and PyTorch 2.11 to 2.13 waits for ever for the result of a
    process that has ended (pytorch/pytorch, pull request 189290).
    """
    from torch._inductor.async_compile import AsyncCompile  # only a GPU needs it

    with blocked_signals():
        AsyncCompile.warm_pool()


def compiled(function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
    """The compiled function; `dynamic`: one version for all shapes."""
    compile_clock()
    start_workers()
    from torch._dynamo import config as dynamo_config

    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, _MOST_VERSIONS)
    made: Callable[..., Any] = torch.compile(function, dynamic=dynamic)
    return made


def padded_length(tokens: int, micro_tokens: int, block: int) -> int:
    """The length to which a compiled micro-batch of `tokens` tokens is padded.

    One of seven parts of `micro_tokens`, from a quarter to all of it, rounded up to whole blocks.
    Only a single row can be longer; it is padded to the next double.

    >>> [padded_length(tokens, 4096, 128) for tokens in (1, 1025, 2000, 4096, 4097)]
    [1024, 1792, 2304, 4096, 8192]
    """
    for part in _SIXTEENTHS:
        length = -(-micro_tokens * part // (16 * block)) * block
        if length >= tokens:
            return length
    while length < tokens:
        length *= 2
    return length
