"""Count what is played: a status line, or without a terminal one line every 30 seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from mage.cli.terminal import console

_EVERY = 30.0


@contextmanager
def counted(title: str, total: int, unit: str, start: int = 0) -> Iterator[Callable[[int], None]]:
    """A function that is told how many are done. `start` were done before."""
    out = console(stderr=True)
    began = printed = time.monotonic()

    def show(done: int) -> None:
        nonlocal printed
        now = time.monotonic()
        left = timedelta(seconds=round((now - began) / max(1, done - start) * (total - done)))
        line = f"{title}: {unit} {done:,} of {total:,}, about {left} left"
        if out.is_terminal:
            status.update(line)
        elif now - printed > _EVERY:
            printed = now
            out.print(line, markup=False, soft_wrap=True)

    with out.status(f"{title}: playing {total:,} {unit}s") as status:
        yield show
