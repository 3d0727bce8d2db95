"""Count what is done: a status line, or without a terminal one line every 30 seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from mage.cli.terminal import console

_EVERY = 30.0


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A function that is called after each of at most `total` items."""
    out = console(stderr=True)
    began = printed = time.monotonic()
    done = 0

    def one_more() -> None:
        nonlocal done, printed
        done, now = done + 1, time.monotonic()
        left = timedelta(seconds=round((now - began) / done * max(0, total - done)))
        line = f"{what} {done:,} of {total:,}, about {left} left"
        if out.is_terminal:
            status.update(line)
        elif now - printed > _EVERY:
            printed = now
            out.print(line, markup=False, soft_wrap=True)

    with out.status(f"{what} 0 of {total:,}") as status:
        yield one_more
