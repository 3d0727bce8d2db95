"""Errors in the user's own items: one line with the file, the line, the error and the state."""

import traceback
from pathlib import Path
from types import TracebackType

from mage.config.menus import foreign_packages
from mage.environments.base import State

_LONGEST = 200  # characters of a state


def describe_user_code(error: BaseException) -> str | None:
    """What failed where in a module of the user; None if no such module took part."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in frames]
    places = [place for place, name in enumerate(names) if name in foreign_packages]
    if not places:
        return None
    trace = _nth(error.__traceback__, places[-1])
    code = trace.tb_frame.f_code
    where = f"{_short(code.co_filename)}, line {trace.tb_lineno}, in {code.co_name}"
    told = f"{where}: {type(error).__name__}: {error}"
    states = [one for frame in frames for one in frame.f_locals.values() if isinstance(one, State)]
    seen = _look(states[-1]) if states else ""
    return f"{told}{f', in the state {seen!r}' if seen else ''} (--traceback shows all frames)"


def _nth(trace: TracebackType | None, count: int) -> TracebackType:
    for _ in range(count):
        assert trace is not None, "there is a frame for each place"
        trace = trace.tb_next
    assert trace is not None, "there is a frame for each place"
    return trace


def _short(file: str) -> str:
    here = Path.cwd()
    return str(Path(file).relative_to(here)) if Path(file).is_relative_to(here) else file


def _look(state: State) -> str:
    """What the player to move sees, in one line; empty if that fails too."""
    try:
        text = " ".join(state.observe(state.turn() or 0).split())
    except Exception:
        return ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
