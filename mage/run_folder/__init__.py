"""The files of a run: where they are, how they are written and read."""

from mage.run_folder.files import (
    Json,
    RunError,
    read_json,
    write_atomic,
    write_json,
)
from mage.run_folder.folder import RunFolder, choose_path
from mage.run_folder.versions import versions

__all__ = [
    "Json",
    "RunError",
    "RunFolder",
    "choose_path",
    "read_json",
    "versions",
    "write_atomic",
    "write_json",
]
