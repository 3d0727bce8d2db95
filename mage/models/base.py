"""The contract of a model source, and the folder of added models.

`mage model add` writes every model as the same kind of folder (config, safetensors, tokenizer.json,
chat template). So no other code knows where a model came from. The folder is written under a
temporary name and tested with one question. Only then is it renamed, so no partial folder remains.
"""

import fcntl
import glob
import hashlib
import importlib
import math
import os
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from mage.config.errors import UserError
from mage.config.menus import PACKAGE
from mage.models.checks import read_object, read_tensors
from mage.run_folder.files import sync_files, sync_folder

Say = Callable[[str], None]
Dtype = Literal["float32", "bfloat16"]
# Models in the package: for Kuhn poker and Tic-Tac-Toe, for Sokoban and ALFWorld, for short and for
# long games of rock-paper-scissors, and for Kuhn poker against players never met.
EMBEDDED = (
    "embedded",
    "embedded-worlds",
    "embedded-rps",
    "embedded-roshambo",
    "embedded-kuhn",
)
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SHIPPED = PACKAGE / "models" / "shipped"  # models and adapters in the package
ORIGIN = "origin.json"
_PARTIAL, _REPLACED = ".mage-partial", ".mage-replaced"  # ends of names of temporary folders
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Source(ABC):
    """A place that models come from: one class in one file of `sources/`.

    `what` is the argument of `mage model add`.
    """

    title: ClassVar[str]  # shown by `mage model list`
    is_named: ClassVar[bool] = False  # True: one fixed model, added by the name of the file

    def __init__(self, what: str) -> None:
        self.what = what

    @classmethod
    @abstractmethod
    def takes(cls, what: str) -> bool:
        """Whether this source handles the argument `what`."""

    @abstractmethod
    def name(self) -> str:
        """The default name of the model."""

    @abstractmethod
    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        """Write the model into an empty folder; returns one line that says where it comes from.

        `dtype = None` and `template = None` keep those of the source.
        """


@dataclass(frozen=True, slots=True)
class Model:
    """A model folder and its size."""

    name: str
    parameters: int
    bytes: int
    dtype: str
    origin: str
    folder: Path

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}


# --- Finding --------------------------------------------------------------------------------------


def models_folder() -> Path:
    """The folder of added models: $MAGE_MODELS, or the user's cache."""
    return Path(os.environ.get("MAGE_MODELS") or "~/.cache/mage/models").expanduser()


def find_model(path: str) -> Path:
    """The folder that `model.path` means.

    Searched in this order: embedded models, folders, shipped adapters, added models.
    """
    if path in EMBEDDED:
        return SHIPPED / path
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file() or is_adapter(folder):
        return folder
    if path in shipped_adapters():
        return SHIPPED / "adapters" / path
    if not _NAME.fullmatch(path):
        raise UserError(f"{folder} has no config.json")
    restore_folder(models_folder() / path)
    if not (models_folder() / path / "config.json").is_file():
        known = ", ".join(
            [*EMBEDDED, *shipped_adapters(), *(model.name for model in list_models())]
        )
        raise UserError(
            "there is no folder with a config.json and no added model of this name. "
            f"Known are {known}; {_ways()}"
        )
    return models_folder() / path


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds LoRA adapters in PEFT's format and no whole model."""
    return (folder / ADAPTER_CONFIG).is_file()


def base_of(folder: Path) -> Path:
    """The folder of the whole model: this folder, or the base model of its adapters."""
    if not is_adapter(folder):
        return folder
    name = base_name(folder, "")
    try:
        return find_model(name)
    except ValueError:
        raise UserError(
            f"the adapters in {folder} need the model {name}: get it with mage model add {name}"
        ) from None


def base_name(folder: Path, path: str) -> str:
    """The `model.path` of the whole model: `path`, or the base model of the adapters."""
    if not is_adapter(folder):
        return path
    name = read_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise UserError(f"{folder / ADAPTER_CONFIG} has no base_model_name_or_path")
    return name


def shipped_adapters() -> list[str]:
    """The names of the adapters that ship with MAGE."""
    return sorted(path.parent.name for path in (SHIPPED / "adapters").glob(f"*/{ADAPTER_CONFIG}"))


def _ways() -> str:
    choices = " | ".join([*named_sources(), "FILE.gguf", "FOLDER", "ORG/NAME"])
    return f"get one with mage model add {choices}"


def list_models() -> list[Model]:
    """All added models, sorted by name."""
    folder = models_folder()
    names = (
        sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
        if folder.is_dir()
        else []
    )
    return [
        _read_or_report(folder / name)
        for name in names
        if (folder / name / "config.json").is_file()
    ]


def read_model(folder: Path) -> Model:
    """Size and number format of a model, read from the file headers only."""
    tensors = [
        tensor
        for path in sorted(folder.glob("*.safetensors"))
        for tensor in read_tensors(path).values()
    ]
    parameters = sum(math.prod(shape) for _, shape in tensors)
    dtypes = {dtype for dtype, _ in tensors}
    note = folder / ORIGIN
    origin = str(read_object(note).get("origin", "")) if note.is_file() else ""
    return Model(folder.name, parameters, _bytes(folder), "+".join(sorted(dtypes)), origin, folder)


def _read_or_report(folder: Path) -> Model:
    """A damaged model is listed with the reason."""
    try:
        return read_model(folder)
    except ValueError as error:
        return Model(folder.name, 0, _bytes(folder), "damaged", str(error), folder)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


# --- Sources --------------------------------------------------------------------------------------


def sources() -> dict[str, type[Source]]:
    """All sources by file name; named models first, because a name takes precedence over a path."""
    files = sorted(
        path.stem
        for path in (Path(__file__).parent / "sources").glob("*.py")
        if path.stem != "__init__"
    )
    modules = {file: importlib.import_module(f"mage.models.sources.{file}") for file in files}
    found = {
        file: item
        for file, module in modules.items()
        for item in vars(module).values()
        if _is_source(item, file)
    }
    return dict(sorted(found.items(), key=lambda pair: (not pair[1].is_named, pair[0])))


def _is_source(item: Any, file: str) -> bool:
    return (
        isinstance(item, type)
        and issubclass(item, Source)
        and item.__module__ == f"mage.models.sources.{file}"
    )


def named_sources() -> dict[str, str]:
    """Models that can be added by name, with their titles."""
    return {name: source.title for name, source in sources().items() if source.is_named}


def find_source(what: str) -> Source:
    """The source that handles the argument `what`."""
    for source in sources().values():
        if source.takes(what):
            return source(what)
    raise UserError(
        f"{what} is not a folder, a .gguf file or the name of a model; "
        f"{_ways()} (ORG/NAME is a name on the model hub)"
    )


# --- Writing --------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name in EMBEDDED:
        raise UserError(
            f"a model cannot be called {name!r}: choose another --name, with letters, digits, "
            f"_ . - only, and not {' or '.join(EMBEDDED)}"
        )
    return name


def copy_permissions(weights: Path, like: Path) -> None:
    """Copy the permissions of a neighbouring file; safetensors makes files for the owner only."""
    shutil.copymode(like, weights)


@contextmanager
def atomic_folder(place: Path) -> Iterator[Path]:
    """A temporary folder next to `place`; renamed to `place` on success, removed on failure.

    Its name ends with our own suffix, so that no folder of other programs is taken for it.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    restore_folder(place)
    folder = place.with_name(f".{place.name}-{secrets.token_hex(4)}{_PARTIAL}")
    folder.mkdir()
    try:
        with _locked(folder):
            yield folder
            sync_files(folder)
            _move(folder, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, place: Path) -> None:
    """Rename a folder to `place`. A folder that was there is deleted after it, never before."""
    aside = folder.with_name(folder.name.removesuffix(_PARTIAL) + _REPLACED)
    if place.exists():
        place.rename(aside)
    folder.rename(place)
    sync_folder(place.parent)
    shutil.rmtree(aside, ignore_errors=True)


def restore_folder(place: Path) -> None:
    """Clear up after a killed `atomic_folder`: a replaced folder is put back if none is there."""
    beside = f".{glob.escape(place.name)}-*"
    for aside in place.parent.glob(beside + _REPLACED):
        partial = aside.with_name(aside.name.removesuffix(_REPLACED) + _PARTIAL)
        if not place.exists() and not _is_used(partial):
            aside.rename(place)
    for left in (*place.parent.glob(beside + _PARTIAL), *place.parent.glob(beside + _REPLACED)):
        _delete_unused(left)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder while it is in use; False if another process uses it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except BlockingIOError:
            is_free = False
        yield is_free
    finally:
        os.close(handle)


def _is_used(folder: Path) -> bool:
    """Whether a running process holds the lock of a temporary folder."""
    if not folder.is_dir():
        return False
    with _locked(folder) as is_free:
        return not is_free


def _delete_unused(left: Path) -> None:
    """Delete the temporary folder of a killed process: its lock has ended with the process."""
    if left.is_dir() and not left.is_symlink() and not _is_used(left):
        shutil.rmtree(left, ignore_errors=True)


def check_sha256(path: Path, expected: str) -> None:
    """Raise ValueError unless the file has this checksum."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise UserError(
            f"{path} has the wrong content: its sha256 is {found}, expected {expected}. "
            "Remove the file and get it again"
        )
