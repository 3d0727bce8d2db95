"""Run the command line in a forked process, which can be killed at a chosen moment.

A fork costs milliseconds, while a new interpreter needs seconds to import torch. The parent must
not have used torch before: the child would inherit its thread pools without their threads.
"""

import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pictures import skip_pictures

_WRITES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code (negative: the signal) and its output."""

    code: int
    output: str

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Kill:
    """When a process gets SIGKILL: after some seconds, or before a file operation below a folder.

    File operations are counted from 1 (see `count_operations`), so such a kill meets the middle of
    a save.
    """

    seconds: float | None = None
    operation: int | None = None
    folder: Path | None = None


def call(
    function: Callable[[], Any], output: Path, kill: Kill | None = None, limit: float = 3_000
) -> Ended:
    """Call a function in a child process. `limit` only ends a child that hangs."""
    gc.freeze()  # the child then copies fewer pages
    pid = os.fork()
    if pid == 0:
        _become_child(output)
        if kill is not None and kill.operation is not None:
            assert kill.folder is not None, "operations are counted below a folder"
            count_operations(kill.folder, kill_at(kill.operation))
        os._exit(_code_of(function))
    seconds = limit if kill is None or kill.seconds is None else kill.seconds
    code = _wait(pid, seconds)
    text = output.read_text(errors="replace") if output.is_file() else ""
    if code is None and seconds == limit:
        return Ended(1, f"{text}\nthe process did not end within {limit:g} s")
    return Ended(-signal.SIGKILL if code is None else code, text)


def call_here(words: Sequence[str]) -> Ended:
    """Call the command line in this process: for commands that do not compute with torch."""
    from typer.testing import CliRunner

    from mage.cli.main import app

    done = CliRunner().invoke(app, list(words))
    text = done.output
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        text += "".join(traceback.format_exception(done.exception))
    return Ended(done.exit_code, text)


def preload(function: Callable[[], Any], output: Path) -> Ended:
    """Call a function in a child and import its modules here, so that later children have them."""
    listed = output.with_suffix(".modules")

    def run() -> None:
        try:
            function()
        finally:
            listed.write_text("\n".join(sys.modules))

    ended = call(run, output)
    for name in listed.read_text().splitlines():
        if name not in sys.modules and not name.startswith("__"):
            try:
                importlib.import_module(name)
            except Exception:  # some modules can only be imported by their own package
                continue
    return ended


def command(words: Sequence[str]) -> Callable[[], None]:
    """A call of the command line; its report has empty pictures."""

    def run() -> None:
        from mage.cli.main import app

        skip_pictures()
        sys.argv = ["mage", *words]
        app(list(words), prog_name="mage")

    return run


def count_operations(folder: Path, on_operation: Callable[[int, str], None]) -> None:
    """Call a function before every file operation below a folder, with its number and its name.

    Opening a file for writing counts twice: after the second call the file is there and empty.
    """
    place, done, is_opening = str(folder), 0, False

    def report(name: str) -> None:
        nonlocal done
        done += 1
        on_operation(done, name)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_opening
        opens = event == "open" and _opens_to_write(arguments)
        if is_opening or not (event in _WRITES or opens):
            return
        paths = [path for path in _paths(arguments) if path.startswith(place)]
        if not paths:
            return
        report(f"{event} {paths[0].removeprefix(place)}")
        if opens and not arguments[2] & os.O_EXCL:
            is_opening = True
            with suppress(OSError):
                os.close(os.open(paths[0], arguments[2], 0o666))
            is_opening = False
            report(f"write {paths[0].removeprefix(place)}")

    sys.addaudithook(hook)


def _opens_to_write(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 else 0
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _paths(arguments: tuple[Any, ...]) -> list[str]:
    """The paths of an operation. `shutil.rmtree` gives names in folders that it holds open."""
    names = [os.fspath(one) for one in arguments if isinstance(one, str | Path)]
    held = [one for one in arguments[-2:] if isinstance(one, int) and one > 2]
    folders = [os.readlink(link) for one in held if os.path.lexists(link := f"/proc/self/fd/{one}")]
    below = [os.path.join(folder, name) for folder in folders for name in names]
    return [*names, *below]


def kill_at(operation: int) -> Callable[[int, str], None]:
    def check(number: int, name: str) -> None:
        if number == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    return check


def _become_child(output: Path) -> None:
    os.setsid()
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(handle, number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115


def _code_of(function: Callable[[], Any]) -> int:
    try:
        function()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _wait(pid: int, seconds: float) -> int | None:
    """The exit code; None if the process had to be killed after some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return None if code == -signal.SIGKILL else code
