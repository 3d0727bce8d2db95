"""Terminal input and output: tables, the live display of a run, games at the keyboard."""

from rich.console import Console

from mage.config.errors import UserError

WIDE = 200  # columns in a file or a pipe, where no line should be wrapped
PIPE = 120  # columns of the widest table in a file or a pipe


class UsageError(UserError):
    """The arguments of a command are wrong or contradict each other."""


def say(line: str) -> None:
    """Print one line of information to standard error."""
    console(stderr=True).print(f"note: {line}", markup=False, soft_wrap=True, style="dim")


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Standard output for results; standard error for everything else."""
    made = Console(stderr=stderr, quiet=quiet, highlight=False)
    if not made.is_terminal:
        made.width = WIDE
    return made
