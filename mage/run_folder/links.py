"""Symbolic links in a run folder, which can lead a command that writes out of the folder.

A run folder from a stranger may hold a link in the place of a file: a command that appends to the
file, or empties it, would change the file of the user that the link names. So commands that write
refuse such a folder. A link to the whole run folder is allowed.
"""

from collections.abc import Iterator
from pathlib import Path

from mage.run_folder.files import RunError

# Folders of other tools (wandb, mlruns) have links of their own, and we do not write there.
_FOLDERS = ("checkpoints", "episodes", "evaluations", "logs", "report", "tensorboard", "warm")


def refuse_links(run: Path) -> None:
    """Raise a RunError that names the first link among the files of a run."""
    for path in _files(run):
        if path.is_symlink():
            raise RunError(
                f"{path} is a symbolic link. Commands that write into a run refuse links, because "
                "they would change files outside of its folder. Replace the link with the file or "
                "folder itself; to keep a run on another disk, link its whole folder"
            )


def _files(run: Path) -> Iterator[Path]:
    """The files and folders of a run; what is below a link is not visited."""
    yield from sorted(run.iterdir())
    for name in _FOLDERS:
        if (run / name).is_dir():
            yield from sorted((run / name).rglob("*"))
