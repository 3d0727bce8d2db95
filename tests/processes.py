"""Processes that tests start, kill and wait for.

They are forked from a server that has loaded MAGE and torch once, so a start costs milliseconds
instead of seconds of imports. Tests of the start itself use `subprocess`.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mage.cli.main import main
from mage.training.callbacks import Callback
from mage.training.trainer import train

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["mage.training.trainer", "mage.cli.verbs.train", "mage.engines.local"]
)


def start(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that calls the function."""
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    return process


def start_training(path: Path) -> BaseProcess:
    """Start a process that trains the run in a folder to its end."""
    return start(_train, path)


def start_mage(words: Sequence[str], folder: Path, log: Path) -> BaseProcess:
    """Start `mage WORDS` in a folder and in a session of its own; its output goes to `log`."""
    return start(_run_mage, list(words), folder, log)


def start_python(program: str, folder: Path, log: Path) -> BaseProcess:
    """Start a Python program in a folder; its output goes to `log`."""
    return start(_run_python, program, folder, log)


def wait(process: BaseProcess) -> int:
    """The exit code of a process after its end; minus the number of the signal that ended it."""
    process.join()
    assert process.exitcode is not None, "it has ended"
    return process.exitcode


def _train(path: Path) -> None:
    train(path, Callback(), lambda: False)


def _run_mage(words: list[str], folder: Path, log: Path) -> None:
    os.setsid()
    _redirect(folder, log)
    sys.argv = ["mage", *words]
    main()


def _run_python(program: str, folder: Path, log: Path) -> None:
    _redirect(folder, log)
    sys.path.insert(0, str(folder))
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


def _redirect(folder: Path, log: Path) -> None:
    os.chdir(folder)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
