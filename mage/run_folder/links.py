"""Files in a run folder that are no plain files: symbolic links, pipes and devices.

A run folder from a stranger may hold a link in the place of a file. A command that appends to the
file would change the file of the user that the link names, and a command that copies it (`mage
export`, `mage view --export`) would give that file away. So all commands refuse such a folder. A
link to the whole run folder is allowed. A pipe or a device has no end and is refused as well.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mage.run_folder.files import DamagedError, RunError

# Folders of other tools (wandb, mlruns) have links of their own, and we do not use them.
_NAMES = "checkpoints episodes evaluations league logs report start tensorboard warm"
_FOLDERS = tuple(_NAMES.split())
_STAGES = "stages"


def refuse_links(run: Path) -> None:
    """Raise a RunError that names the first link among the files of a run."""
    for entry in _entries(run):
        if entry.is_symlink():
            raise RunError(
                f"{entry.path} is a symbolic link. Links in a run folder are refused, because a "
                "command would change or copy files outside of it. Replace the link with the file "
                "or folder itself; to keep a run on another disk, link its whole folder"
            )


def refuse_devices(run: Path) -> None:
    """Raise a DamagedError that names the first pipe, socket or device, also behind a link."""
    for entry in _entries(run):
        if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
            continue
        try:
            mode = os.stat(entry.path).st_mode
        except OSError:  # a link to nothing; the reader of the file reports it
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise DamagedError(
                f"{entry.path} is damaged: it is a pipe or a device, not a file. Delete it or "
                "restore the file"
            )


def _entries(run: Path) -> Iterator[os.DirEntry[str]]:
    """The files and folders of a run; what is below a link is not visited."""
    try:
        with os.scandir(run) as found:
            top = sorted(found, key=lambda entry: entry.name)
    except OSError:  # the reader of the folder reports it
        return
    yield from top
    for entry in top:
        if entry.name in (*_FOLDERS, _STAGES) and entry.is_dir(follow_symlinks=False):
            # The files of a stage are visited when the stage is opened.
            yield from _below(entry.path, deep=entry.name != _STAGES)


def _below(folder: str, *, deep: bool = True) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:  # the process that trains has just deleted it
        return
    for entry in entries:
        yield entry
        if deep and entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)
