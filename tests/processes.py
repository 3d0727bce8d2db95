"""Processes that tests start, kill and wait for. Their reports have empty pictures.

They are forked from the server of conftest.py. The ranks of a run are forked from them. Tests of
the start itself use `subprocess`, and a run can ask for spawned ranks, as users have them.
"""

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import synchronize
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mage.cli.main import main
from mage.ranks import processes as child_processes
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.training.trainer import Trainer
from tests.pictures import skip_pictures

_CONTEXT = multiprocessing.get_context("forkserver")


def start(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that calls the function."""
    process = _CONTEXT.Process(target=_begin, args=(function, *arguments))
    process.start()
    return process


def start_training(path: Path) -> BaseProcess:
    """Start a process that trains the run in a folder to its end."""
    return start(_train, path)


def start_mage(
    words: Sequence[str],
    folder: Path,
    log: Path,
    environment: Mapping[str, str] | None = None,
    ranks: str = "fork",
    prepare: Callable[[], None] | None = None,
) -> BaseProcess:
    """Start `mage WORDS` in a folder and in a session of its own; its output goes to `log`.

    `ranks` is how the process starts other ranks. It calls `prepare` first.
    """
    return start(_run_mage, list(words), folder, log, dict(environment or {}), ranks, prepare)


def start_torchrun(
    words: Sequence[str],
    folder: Path,
    log: Path,
    restarts: int = 0,
    prepare: Callable[[], None] | None = None,
) -> BaseProcess:
    """Start `mage WORDS` as two ranks below torchrun's agent; each calls `prepare` first.

    Each writes a file `rank-N-PID`, with its exit code at the end.
    """
    return start(_run_torchrun, list(words), folder, log, restarts, prepare)


def signal_in_update(update: int, rank: int, number: int, group: bool = False) -> None:
    """In a process that trains: its rank gets a signal when an update begins.

    So the moment does not depend on the speed of a process that watches it. `group`: all processes
    of its group get it, as after Ctrl-C. Each rank first writes a file `pid-RANK`.
    """
    whole = Trainer._update

    def begin(trainer: Trainer) -> None:
        note = Path(f".pid-{trainer.ranks.rank}")
        note.write_text(str(os.getpid()))
        note.replace(f"pid-{trainer.ranks.rank}")  # whole, also if this process is killed
        if (trainer.done + 1, trainer.ranks.rank) == (update, rank):
            (os.killpg if group else os.kill)(os.getpgid(0) if group else os.getpid(), number)
        whole(trainer)

    Trainer._update = begin  # type: ignore[method-assign]


class Forked:
    """Stands in for `subprocess` in executors.py: forks `python -m MODULE ...` and loads nothing.

    torchrun forks its ranks there.
    """

    DEVNULL = None

    @staticmethod
    def Popen(command: Sequence[str], env: Mapping[str, str], stdout: Any, **_: Any) -> Any:
        return _ForkedModule(command, env, stdout.name)


class _ForkedModule:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
        context: Any = multiprocessing.get_context(child_processes.START_METHOD)
        arguments = (_run_module, command[2:], dict(environment), log)
        self.process = context.Process(target=_begin, args=arguments)
        self.process.start()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self.process.exitcode

    def terminate(self) -> None:
        self.process.terminate()

    def wait(self) -> int:
        return wait(self.process)


def start_python(program: str, folder: Path, log: Path) -> BaseProcess:
    """Start a Python program in a folder; its output goes to `log`."""
    return start(_run_python, program, folder, log)


def wait(process: BaseProcess) -> int:
    """The exit code of a process after its end; minus the number of the signal that ended it."""
    process.join()
    assert process.exitcode is not None, "it has ended"
    return process.exitcode


def _begin(function: Callable[..., None], *arguments: Any) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, child_processes.SIGNALS)  # the server may block them
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, also for the tests
    child_processes.START_METHOD = "fork"  # nothing has used autograd here
    function(*arguments)


def _train(path: Path) -> None:
    train(path, Callback(), lambda: False)


def _run_mage(
    words: list[str],
    folder: Path,
    log: Path,
    environment: dict[str, str],
    ranks: str,
    prepare: Callable[[], None] | None,
) -> None:
    os.setsid()
    os.environ.update(environment)
    child_processes.START_METHOD = ranks
    _redirect(folder, log)
    sys.argv = ["mage", *words]
    skip_pictures()
    if prepare is not None:
        prepare()
    main()


def _run_torchrun(
    words: list[str],
    folder: Path,
    log: Path,
    restarts: int,
    prepare: Callable[[], None] | None,
) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.setsid()
    _redirect(folder, log)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        start_method="fork",
    )
    elastic_launch(config, _run_torchrun_rank)(words, prepare)


def _run_torchrun_rank(words: list[str], prepare: Callable[[], None] | None) -> None:
    note = Path(f"rank-{os.environ['RANK']}-{os.getpid()}")
    note.touch()
    sys.argv = ["mage", *words]
    skip_pictures()
    if prepare is not None:
        prepare()
    try:
        main()
    except SystemExit as end:
        note.write_text(str(end.code))
        raise
    finally:  # torch's forked ranks wait for their agent; those of the command torchrun end here
        synchronize.Event.wait = lambda event, timeout=None: True  # type: ignore[method-assign]


def _run_module(words: list[str], environment: dict[str, str], log: str) -> None:
    import torch.distributed.run

    os.setsid()
    os.environ.update(environment)
    _write_to(os.open(log, os.O_WRONLY | os.O_APPEND))
    skip_pictures()
    torch.distributed.run.elastic_launch = _fork_ranks
    _run_as_main(words)


def _fork_ranks(config: Any, entrypoint: str) -> Callable[..., Any]:
    """What torchrun calls to start `python -u -m MODULE ...` once for each rank."""
    from torch.distributed.launcher.api import elastic_launch

    config.start_method = "fork"
    return lambda *words: elastic_launch(config, _run_as_main)(words[words.index("-m") + 1 :])


def _run_as_main(words: Sequence[str]) -> None:
    sys.argv = list(words)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _run_python(program: str, folder: Path, log: Path) -> None:
    _redirect(folder, log)
    sys.path.insert(0, str(folder))
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


def _redirect(folder: Path, log: Path) -> None:
    os.chdir(folder)
    _write_to(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))


def _write_to(file: int) -> None:
    for stream in (1, 2):
        os.dup2(file, stream)
