"""ORG/NAME or ORG/NAME@REVISION on the model hub.

huggingface_hub does the transfer, with its cache, settings and login. A snapshot in its cache is
used as it is, without a second copy; the name of its folder is the commit.
"""

import re
import shutil
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from mage.config.errors import UserError
from mage.models.sources.base import Dtype, Say, Source
from mage.models.sources.folder import COPIED, copy_folder

_ID = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w-][\w./-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WANTED = (*COPIED, "*.safetensors", "LICEN*", "NOTICE*")


@dataclass(frozen=True, slots=True)
class HubId:
    """A model on the hub; without a revision its newest version is meant."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @property
    def short(self) -> str:
        """The name for a reader: a commit has eight digits."""
        return f"{self.name}@{(self.revision or '')[:8]}" if self.is_pinned else str(self)

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, whose files never change."""
        return _COMMIT.fullmatch(self.revision or "") is not None


def read_hub_id(path: str) -> HubId | None:
    """The model on the hub that `path` names; None if it cannot be one.

    >>> read_hub_id("Qwen/Qwen3-4B@main"), read_hub_id("a/b/c")
    (HubId(name='Qwen/Qwen3-4B', revision='main'), None)
    """
    found = _ID.fullmatch(path)
    return HubId(found[1], found[2]) if found else None


class Hub(Source):
    title = "ORG/NAME on the model hub, with safetensors"

    @classmethod
    def takes(cls, what: str) -> bool:
        return read_hub_id(what) is not None and not Path(what).exists()

    @property
    def id(self) -> HubId:
        found = read_hub_id(self.what)
        assert found is not None, "`takes` has looked"
        return found

    def name(self) -> str:
        return self.id.name.split("/")[1]

    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        say(f"asking the model hub for {self.what}")
        found = fetch_snapshot(self.id, say)
        copy_folder(found, folder, dtype, template, say)
        return origin_of(HubId(self.id.name, found.name))


def origin_of(model: HubId) -> str:
    """The line in the folder of an added model that says where it comes from."""
    return f"{model} on the model hub"


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@cache
def fetch_snapshot(model: HubId, say: Say = _tell) -> Path:
    """The folder of a model in the cache of huggingface_hub, downloaded if it is not there.

    The name of the folder is the commit. Without a network a cached version is used.
    """
    found = find_snapshot(model) if model.is_pinned else None
    return found or _download(model, _WANTED, say)


def find_snapshot(model: HubId) -> Path | None:
    """The folder of a model in the cache; None if it is not complete. Uses no network."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            model.name, revision=model.revision, allow_patterns=[*_WANTED], local_files_only=True
        )
    except (OSError, ValueError):
        return None
    return Path(found) if any(Path(found).glob("*.safetensors")) else None


def fetch_config(model: HubId) -> Path:
    """A folder with the config.json of a model, without its weights."""
    return find_snapshot(model) or _download(model, ("config.json",), lambda line: None)


def _download(model: HubId, patterns: tuple[str, ...], say: Say) -> Path:
    from httpx import HTTPError
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    storage = Path(constants.HF_HUB_CACHE) / f"models--{model.name.replace('/', '--')}"
    was_there = storage.exists()
    try:
        # With a time limit: snapshot_download would wait for a silent server for ever.
        info = HfApi().model_info(
            model.name,
            revision=model.revision,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
            files_metadata=True,
        )
        say(f"downloading {model} from the model hub ({_megabytes(info, patterns):,.0f} MB)")
        return Path(
            snapshot_download(model.name, revision=model.revision, allow_patterns=[*patterns])
        )
    except (HTTPError, OSError, ValueError) as error:
        if not was_there:
            _delete_empty(storage)
        if _is_unreachable(error) and (found := find_snapshot(model)):
            return found
        raise UserError(_explain(model, error)) from None


def _megabytes(info: Any, patterns: tuple[str, ...]) -> float:
    files = [
        one.size or 0
        for one in info.siblings or ()
        if any(fnmatch(one.rfilename, pattern) for pattern in patterns)
    ]
    return sum(files) / 1e6


def _is_unreachable(error: Exception) -> bool:
    """Whether the hub did not answer, or has trouble of its own."""
    response = getattr(error, "response", None)
    return response is None or response.status_code >= 500


def _explain(model: HubId, error: Exception) -> str:
    """One message: what happened and what to do next."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = model.name.split("/")[1]
    reason = str(error).strip().split("\n")[0].removeprefix("Got: ") or type(error).__name__
    if isinstance(error, GatedRepoError):
        reason = (
            "the model is gated. Accept its terms on its page on the hub and log in with "
            "`hf auth login`"
        )
    elif isinstance(error, RevisionNotFoundError):
        reason = f"the model hub has no revision {model.revision} of it"
    elif isinstance(error, RepositoryNotFoundError):
        reason = (
            "the model hub has no such model, or your login has no access to it. Check the name, "
            "or log in with `hf auth login`"
        )
    elif _is_unreachable(error):
        reason = f"the model hub cannot be reached ({reason})"
    else:
        reason = f"the model hub refuses it: {reason}"
    return (
        f"there is no folder {model} here, and {reason}. Without access to the hub, copy the "
        f"folder of the model to this machine, add it with `mage model add FOLDER --name {name}`, "
        f"and use it with --model.path={name}"
    )


def _delete_empty(storage: Path) -> None:
    """Delete the folder of a model in the cache if a refused download has left no file of it."""
    if not any(path.is_file() for path in storage.glob("blobs/*")):
        shutil.rmtree(storage, ignore_errors=True)
        shutil.rmtree(storage.parent / ".locks" / storage.name, ignore_errors=True)
