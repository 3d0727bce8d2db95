"""The contract of a source of models, and the folder of models that were added: found by name, written whole or not at all.

`mage model add` makes every model the same kind of folder (config, safetensors, tokenizer.json, chat template), so nothing
else in MAGE knows where a model came from. The folder is written beside its place, made to say a line, and only then renamed.
"""

import hashlib
import importlib
import json
import os
import re
import shutil
import struct
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from mage.config.menus import PACKAGE

Say = Callable[[str], None]
Dtype = Literal["float32", "bfloat16"]
EMBEDDED = (
    "embedded",
    "embedded-worlds",
)  # models that ship with MAGE, folders of the package: for the two games, for Sokoban and ALFWorld
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SHIPPED = PACKAGE / "models" / "shipped"  # models and adapters that come with the package
ORIGIN = "origin.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Source(ABC):
    """Where a model can be had. One file of this folder, one class; `what` is the word after `mage model add`."""

    title: ClassVar[str]  # how `mage model list` announces it
    is_named: ClassVar[bool] = (
        False  # one model that is had by the file's name, or many by a path or an address
    )

    def __init__(self, what: str) -> None:
        self.what = what

    @classmethod
    @abstractmethod
    def takes(cls, what: str) -> bool:
        """Whether this word is for this source."""

    @abstractmethod
    def name(self) -> str:
        """What the model is called if nobody says otherwise."""

    @abstractmethod
    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        """Fill this empty folder and tell in a line where the model is from. None: numbers and chat template as the source has them."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is there."""

    name: str
    parameters: int
    bytes: int
    dtype: str
    origin: str
    folder: Path

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}


# ------------------------------------------------------------------------------------------------------------- finding


def models_folder() -> Path:
    """Where models that were added are kept: $MAGE_MODELS, else the user's cache."""
    return Path(os.environ.get("MAGE_MODELS") or "~/.cache/mage/models").expanduser()


def find_model(path: str) -> Path:
    """The folder meant by `model.path`: a model that ships with MAGE, a folder, the name of adapters that ship with MAGE, or of a model that was added."""
    if path in EMBEDDED:
        return SHIPPED / path
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file() or is_adapter(folder):
        return folder
    if path in shipped_adapters():
        return SHIPPED / "adapters" / path
    if not _NAME.fullmatch(path):
        raise ValueError(f"{folder} has no config.json")
    if not (models_folder() / path / "config.json").is_file():
        known = ", ".join(
            [*EMBEDDED, *shipped_adapters(), *(model.name for model in list_models())]
        )
        raise ValueError(
            f"no folder with a config.json and no model that was added. There are {known}; {_ways()}"
        )
    return models_folder() / path


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds adapters of another model, as PEFT writes them, and no model of its own."""
    return (folder / ADAPTER_CONFIG).is_file()


def base_of(folder: Path) -> Path:
    """The folder of the whole model: this one, or that which its adapters belong to."""
    if not is_adapter(folder):
        return folder
    name = base_name(folder, "")
    try:
        return find_model(name)
    except ValueError:
        raise ValueError(
            f"the adapters of {folder} need the model {name}: get it with mage model add {name}"
        ) from None


def base_name(folder: Path, path: str) -> str:
    """What `model.path` calls the whole model: `path`, or what the adapters in this folder belong to."""
    return (
        str(json.loads((folder / ADAPTER_CONFIG).read_text())["base_model_name_or_path"])
        if is_adapter(folder)
        else path
    )


def shipped_adapters() -> list[str]:
    """The names of the adapters that ship with MAGE."""
    return sorted(path.parent.name for path in (SHIPPED / "adapters").glob(f"*/{ADAPTER_CONFIG}"))


def _ways() -> str:
    return f"get one with mage model add {' | '.join([*named_sources(), 'FILE.gguf', 'FOLDER', 'ORG/NAME'])}"


def list_models() -> list[Model]:
    """The models that were added, by name."""
    folder = models_folder()
    names = (
        sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
        if folder.is_dir()
        else []
    )
    return [
        read_model(folder / name) for name in names if (folder / name / "config.json").is_file()
    ]


def read_model(folder: Path) -> Model:
    """A model's figures, from the heads of its files."""
    tensors = [
        entry for path in sorted(folder.glob("*.safetensors")) for entry in _safetensors_head(path)
    ]
    parameters = sum(_product(entry["shape"]) for entry in tensors)
    dtypes = {str(entry["dtype"]) for entry in tensors}
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    note = folder / ORIGIN
    origin = str(json.loads(note.read_text()).get("origin", "")) if note.is_file() else ""
    return Model(folder.name, parameters, size, "+".join(sorted(dtypes)), origin, folder)


def _safetensors_head(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(length))
    return [entry for name, entry in head.items() if name != "__metadata__"]


def _product(shape: list[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


# ------------------------------------------------------------------------------------------------------------- sources


def sources() -> dict[str, type[Source]]:
    """Every source of this folder by its file's name; those of one model first, since their names are theirs."""
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
    """Models that can be added by a name alone, and what they are."""
    return {name: source.title for name, source in sources().items() if source.is_named}


def find_source(what: str) -> Source:
    """The source that this word means."""
    for source in sources().values():
        if source.takes(what):
            return source(what)
    raise ValueError(
        f"{what} is no folder here, no .gguf file and no name of a model; {_ways()} (of the model hub)"
    )


# ------------------------------------------------------------------------------------------------------------- writing


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name in EMBEDDED:
        raise ValueError(
            f"a model cannot be called {name!r}: take letters, digits, _ . - and another name than {' or '.join(EMBEDDED)}, with --name"
        )
    return name


def copy_permissions(weights: Path, like: Path) -> None:
    """Let those read a file of safetensors who may read the file beside it: it is made for its owner alone."""
    shutil.copymode(like, weights)


@contextmanager
def atomic_folder(place: Path) -> Iterator[Path]:
    """A folder beside `place` that takes its name if all went well, and is gone otherwise."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as beside:
        folder = Path(beside) / "new"
        folder.mkdir()
        yield folder
        if place.exists():
            place.rename(Path(beside) / "old")
        folder.rename(place)


def check_sha256(path: Path, expected: str) -> None:
    """Refuse a file that is not the one this was tested with."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} is not the file it should be: its sha256 is {found}, expected {expected}; remove it and get it again"
        )
