"""What a person sees and types: tables, the live display of a run, games at the keyboard."""

from rich.console import Console

WIDE = 200  # where nobody looks on (a file, a pipe) nothing is wrapped


class UsageError(ValueError):
    """Arguments that do not go together."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Standard output, or standard error for all that is no result."""
    made = Console(stderr=stderr, quiet=quiet, highlight=False)
    if not made.is_terminal:
        made.width = WIDE
    return made
