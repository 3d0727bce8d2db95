"""The command line: all commands, and how their errors are shown.

A user error prints one message and exits with code 2. A bug keeps its traceback. A new file of
commands is added to the import lines and to `VERBS` below.
"""

import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import mage
from mage.cli.completion import add_completion
from mage.cli.user_code import describe_user_code
from mage.cli.verbs import (
    catalog,
    ceilings,
    cluster,
    credit,
    evaluate,
    export,
    model,
    new,
    plan,
    play,
    reproduce,
    show,
    train,
    view,
    warmup,
)
from mage.config.errors import EXIT_STOPPED, EXIT_USAGE, DeviceError, UserError

TRACEBACK = "--traceback"
VERBS = {
    "Train": (train, warmup, cluster, plan),
    "Measure": (evaluate, ceilings, reproduce, credit),
    "Look": (play, view, export),
    "Recipes, items and models": (show, catalog, new, model),
}


class Verbs(TyperGroup):
    """Prints one message for a user error and exits with code 2."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        return found and add_completion(found)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--traceback` may stand anywhere in the line."""
        ctx.obj = TRACEBACK in args
        return super().parse_args(ctx, [word for word in args if word != TRACEBACK])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            told = _describe(error) if is_user_error(error) else describe_user_code(error)
            if told is None or ctx.obj:
                raise
            _print_error("\n".join([f"mage: {told}", *getattr(error, "__notes__", ())]))
            raise typer.Exit(EXIT_USAGE) from None
        except KeyboardInterrupt:
            _print_error("\nmage: stopped")
            raise typer.Exit(EXIT_STOPPED) from None


def _print_error(text: str) -> None:
    """Write to standard error. It may be a file on a full disk; the exit code then says enough."""
    try:
        typer.echo(text, err=True)
    except OSError:  # what is left to write would fail again at the end, and change the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def is_user_error(error: BaseException) -> bool:
    """Whether the user can correct this."""
    if isinstance(error, OSError):
        return not isinstance(error, BrokenPipeError)
    if isinstance(error, ValueError):
        return isinstance(error, UserError)
    if _is_of_safetensors(error):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if isinstance(error, DeviceError) or _is_out_of_memory(error):
        return True
    cause = error.__cause__
    return isinstance(cause, OSError) or _is_of_safetensors(cause)


def _is_of_safetensors(error: BaseException | None) -> bool:
    """The error of a full disk, among others. It is found by its name, to load no library."""
    return type(error).__module__.startswith("safetensors")


def _is_out_of_memory(error: Exception) -> bool:
    """Torch's own error, found by its name: this file must not import torch."""
    return (
        type(error).__name__ == "OutOfMemoryError"
        and type(error).__module__.partition(".")[0] == "torch"
    )


def _describe(error: Exception) -> str:
    if _is_out_of_memory(error):
        return (
            f"out of GPU memory: {str(error).splitlines()[0]}\n"
            "Stop other programs on the GPU, lower engines.slots or engines.context, or use a "
            "smaller model. run.gpu_memory limits the GB that MAGE plans with."
        )
    if _is_of_safetensors(error):
        return (
            f"weights cannot be written or read: {error}\n"
            "Free some disk space, or use another folder."
        )
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


app = typer.Typer(
    name="mage",
    cls=Verbs,
    help="Train, evaluate and play against language-model agents that learn during play.",
    invoke_without_command=True,
    add_completion=True,
    rich_markup_mode="markdown",  # brackets such as [warmup] must stay in the help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _title, _files in VERBS.items():
    for _file in _files:
        for _command in (*_file.verbs.registered_commands, *_file.verbs.registered_groups):
            if not isinstance(_command.rich_help_panel, str):
                _command.rich_help_panel = _title
        app.add_typer(_file.verbs)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends a command as Ctrl-C does
    app(prog_name="mage")


@app.callback()
def show_help(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    traceback: Annotated[
        bool, typer.Option(TRACEBACK, help="Show all frames of an error, with any command.")
    ] = False,
) -> None:
    if version:
        typer.echo(f"mage {mage.__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
