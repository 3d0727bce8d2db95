"""Watch the other ranks: a rank that ends without a message is reported, with its last log lines.

Every rank has a thread that looks at the processes on its own host and, through the store, at the
heartbeats of the other hosts. When a rank is lost, the main thread gets a signal and raises
`RankLost`; if it does not react, the process ends.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from mage.ranks.rank_log import last_lines, log_path
from mage.ranks.ranks import RankLost, Ranks
from mage.run_folder.files import is_alive

REPORTS = "reports"  # key of the store: rank 0 reports an error and ends
_LOOK = 0.5  # seconds between two looks
_SILENCE = 40.0  # seconds without a heartbeat after which another host's rank is lost
_GRACE = 15.0  # seconds for the main thread to notice the loss, or to end
_SAVING = 600.0  # seconds to end after it has noticed: it may save a large model


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank as the others see it."""

    rank: int
    host: str
    pid: int


class Watch:
    """Use it as a context in the main thread. `store` may be None if all ranks share a host."""

    def __init__(self, ranks: Ranks, peers: Sequence[Peer], store: Any = None) -> None:
        self.ranks, self.store = ranks, store
        self.own = peers[ranks.rank]
        self.others = [peer for peer in peers if peer.rank != ranks.rank]
        self.lost: Peer | None = None
        self._noticed = False  # by the main thread
        self._heard = {peer.rank: (b"", time.monotonic()) for peer in self.others}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._in_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Watch":
        if self._in_main:
            self._before = signal.signal(signal.SIGUSR1, self._on_signal)
        self.ranks.check = self.check
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.ranks.check = lambda: None
        if self._in_main:
            signal.signal(signal.SIGUSR1, self._before)

    def check(self) -> None:
        """Raise `RankLost` if a rank is lost."""
        if self.lost is not None:
            self._noticed = True
            raise RankLost(describe_loss(self.lost, self.ranks.logs))

    def is_reporter(self) -> bool:
        """Whether this rank reports the loss: rank 0, or rank 1 if rank 0 is silent."""
        if self.lost is None:
            return False
        if self.lost.rank:
            return self.own.rank == 0
        return self.own.rank == 1 and not has_reported(self.store)

    def look(self, now: Callable[[], float] = time.monotonic) -> Peer | None:
        """The first rank that is lost, None if all are there."""
        for peer in self.others:
            if peer.host == self.own.host:
                if not is_alive(peer.pid):
                    return peer
            elif self._is_silent(peer, now()):
                return peer
        return None

    def _is_silent(self, peer: Peer, now: float) -> bool:
        key = f"beat/{peer.rank}"
        beat = self.store.get(key) if self.store.check([key]) else b""
        before, since = self._heard[peer.rank]
        if beat != before:
            self._heard[peer.rank] = (beat, now)
            return False
        return now - since > _SILENCE

    def beat(self, number: int) -> None:
        self.store.set(f"beat/{self.own.rank}", str(number))

    def _run(self) -> None:
        remote = any(peer.host != self.own.host for peer in self.others)
        for number in range(sys.maxsize):
            if self._ended.wait(_LOOK) or self.ranks.failed:  # after an error all ranks end
                return
            try:
                if remote:
                    self.beat(number)
                self.lost = self.look()
            except RuntimeError:  # the store ends with the process that holds it
                self.lost = self.others[0]
            if self.lost is not None and not (self._ended.is_set() or self.ranks.failed):
                self._interrupt_main()
                return

    def _interrupt_main(self) -> None:
        if self._in_main:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        if not (self._ended.wait(_GRACE) or (self._noticed and self._ended.wait(_SAVING))):
            if self.is_reporter():
                assert self.lost is not None
                sys.stderr.write(f"mage: {describe_loss(self.lost, self.ranks.logs)}\n")
                sys.stderr.flush()
            os._exit(2)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.check()


def has_reported(store: Any) -> bool:
    """Whether rank 0 reports an error; false too if the store has ended with it."""
    with suppress(RuntimeError):
        return store is not None and bool(store.check([REPORTS]))
    return False


def find_loss(error: BaseException | None) -> RankLost | None:
    """The lost rank that caused an error.

    The watch interrupts the main thread anywhere. An import that it interrupts may raise an
    ImportError of its own.
    """
    while error is not None and not isinstance(error, RankLost):
        error = error.__cause__ or error.__context__
    return error


def describe_loss(peer: Peer, folder: Path | None) -> str:
    """The message about a lost rank; `folder` is that of the run, where its log is."""
    lines = last_lines(log_path(folder, peer.rank)) if folder else []
    told = "\n  ".join(["Last lines of its log:", *lines]) if lines else "It has written no log."
    return (
        f"rank {peer.rank} on {peer.host} (process {peer.pid}) ended unexpectedly; all ranks stop. "
        f"{told}\nAll updates up to the last checkpoint are saved"
    )
