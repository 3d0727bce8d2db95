"""Errors in the user's own items: one line with the file, the line, the error and the state."""

import traceback
from pathlib import Path

from mage.config.menus import foreign_packages
from mage.environments.base import State

_LONGEST = 200  # characters of a state


def describe_user_code(error: BaseException) -> str | None:
    """What failed where in a module of the user; None if no such module took part."""
    walked = list(traceback.walk_tb(error.__traceback__))
    foreign = [
        (frame.f_code, line)
        for frame, line in walked
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in foreign_packages
    ]
    if not foreign:
        return None
    code, line = foreign[-1]
    where = f"{_short(code.co_filename)}, line {line}, in {code.co_name}"
    told = f"{where}: {type(error).__name__}: {error}"
    values = (one for frame, _ in walked for one in frame.f_locals.values())
    states = [one for one in values if isinstance(one, State)]
    seen = _look(states[-1]) if states else ""
    return f"{told}{f', in the state {seen!r}' if seen else ''} (--traceback shows all frames)"


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
