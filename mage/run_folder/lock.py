"""One process at a time writes into a run folder.

The lock is a POSIX file lock (flock) on `.lock`. The operating system releases it when the process
ends, also after a crash, so a stale lock cannot block a run. The file also holds who has the lock,
for the message that another process gets.
"""

import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from mage.run_folder.files import RunError, cannot
from mage.run_folder.links import refuse_links

_NAME = ".lock"


class RunLocked(RunError):
    """Another process is using the run folder."""


@contextmanager
def lock_run(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a run folder; with `wait`, first wait for the process that has it.

    A folder with symbolic links is refused.
    """
    refuse_links(path)
    try:
        # Closed below; "a+" keeps the old content. Without a buffer nothing is written at the end.
        file = open(path / _NAME, "ab+", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise cannot("lock", path, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise RunLocked(_in_use(path, file)) from None
        if not _is_still_there(path, file):
            raise RunError(f"{path} was deleted by the process that used it before")
        with suppress(OSError):  # the name is for messages only; the disk may be full
            _write_owner(file)
        try:
            yield
        finally:
            file.truncate(0)


def _is_still_there(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(os.stat(path / _NAME), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _write_owner(file: FileIO) -> None:
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }
    file.truncate(0)
    file.write(json.dumps(owner).encode())


def _in_use(path: Path, file: FileIO) -> str:
    file.seek(0)
    try:
        owner = json.loads(file.read())
        who = f"process {owner['pid']} on {owner['host']} ({owner['command']})"
        since = f" since {owner['since']}"
    except (ValueError, KeyError, TypeError):  # the owner has not written its name yet
        who, since = "another process", ""
    return (
        f"{path} is in use by {who}{since}. Only one process at a time may write into a run "
        "folder. Wait until it ends, or stop it, then try again"
    )
