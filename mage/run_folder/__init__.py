"""The files of a run: where they are, how they are written and read."""

from mage.run_folder.files import DamagedError, Json, RunError, read_json, write_atomic, write_json
from mage.run_folder.folder import LAUNCH, RunFolder, choose_path, list_stages, newest_stage, run_of
from mage.run_folder.lock import RunLocked, lock_run
from mage.run_folder.versions import versions

__all__ = [
    "LAUNCH",
    "DamagedError",
    "Json",
    "RunError",
    "RunFolder",
    "RunLocked",
    "choose_path",
    "list_stages",
    "lock_run",
    "newest_stage",
    "read_json",
    "run_of",
    "versions",
    "write_atomic",
    "write_json",
]
