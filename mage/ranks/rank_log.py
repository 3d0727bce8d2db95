"""The log of a rank: what it does and what it prints, in `logs/rank_N.log` of the run folder."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("mage.rank")


def last_lines(log: Path, count: int = 8) -> list[str]:
    """The last lines of a log file; none if it cannot be read."""
    try:
        return log.read_text("utf-8", errors="replace").strip().splitlines()[-count:]
    except OSError:
        return []


def log_path(folder: Path, rank: int) -> Path:
    return folder / "logs" / f"rank_{rank}.log"


@contextmanager
def write_rank_log(path: Path, *, redirect: bool) -> Iterator[None]:
    """Write the log of this rank; with `redirect`, stderr goes there too.

    Ranks above 0 redirect, so that one error is one message in the terminal.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    saved = os.dup(2) if redirect else None
    if redirect:
        sys.stderr.flush()
        os.dup2(handler.stream.fileno(), 2)  # type: ignore[union-attr]
    try:
        yield
    finally:
        log.removeHandler(handler)
        if saved is not None:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
        handler.close()
