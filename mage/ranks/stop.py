"""Stop a run: Ctrl-C (SIGINT), SIGTERM, a closed terminal (SIGHUP), or any other reason.

The first signal asks the run to stop. In an interruptible section (loading, play, evaluation) the
work is abandoned at once: nothing of it belongs to a checkpoint yet. Elsewhere (learning, saving)
the work is finished first. A second Ctrl-C ends the process at once.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

from mage.ranks.processes import SIGNALS
from mage.ranks.ranks import Ranks
from mage.ranks.watch import find_loss


class Stopped(Exception):
    """The run was asked to stop and has saved its state; the argument is its folder."""


class _Interrupted(KeyboardInterrupt):
    """Raised by the signal handler inside an interruptible section."""


class StopRequest:
    """Whether a run should stop. It is asked after every update and around every section."""

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked, self.signalled = asked, False
        self.forward: Callable[[], None] = lambda: None

    def pass_on_with(self, forward: Callable[[], None]) -> None:
        """`forward` passes a stop on to the other ranks."""
        self.forward = forward

    def __call__(self) -> bool:
        return self._asked()

    @contextmanager
    def section(self, ranks: Ranks) -> Iterator[None]:
        """An interruptible section. If one rank stops in it, `RanksStopped` is raised on all."""
        yield
        ranks.barrier()


class StopSignals(StopRequest):
    """A stop request by SIGINT, SIGTERM or SIGHUP. Use it as a context in the main thread.

    `say` gets one line for the user, `also` is another reason to stop. Ranks that rank 0 has
    started handle SIGTERM only: Ctrl-C reaches all of them, and rank 0 passes it on.
    """

    def __init__(
        self,
        say: Callable[[str], None] = lambda line: None,
        also: Callable[[], bool] = lambda: False,
        signals: Sequence[signal.Signals] = SIGNALS,
    ) -> None:
        super().__init__(also)
        self.say, self.signals = say, signals
        self._ranks: Ranks | None = None  # of the section that is running
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.signalled or super().__call__()

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, self._on_signal)
            for number in self.signals
            if not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN)  # nohup
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # All ranks now end together. torchrun signals them one after another: a stop that rank 0
        # has passed on may be over before the signal of this rank arrives.
        is_ending = isinstance(error, Stopped) or find_loss(error) is not None
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler)

    @contextmanager
    def section(self, ranks: Ranks) -> Iterator[None]:
        try:
            self._ranks, ranks.after_gather = ranks, self._interrupt
            self._interrupt()
            yield
        except _Interrupted:
            self._ranks = None
            ranks.send_stop()
        finally:
            self._ranks, ranks.after_gather = None, lambda: None
        if self.signalled:
            ranks.send_stop()
        ranks.barrier()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signalled:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.signalled = True
        self.forward()
        with suppress(OSError):  # the terminal may be gone
            self.say("Stopping: the run is saved first. Ctrl-C again stops at once.")
        if self._ranks is not None and not self._ranks.waiting:
            self._interrupt()

    def _interrupt(self) -> None:
        """Leave the section that is running, unless all ranks must finish its work first."""
        if self.signalled and self._ranks is not None and not self._ranks.whole:
            raise _Interrupted
