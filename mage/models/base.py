"""The folders of models: where they are found, and how one is added.

`mage model add` writes every model as the same kind of folder (config, safetensors, tokenizer.json,
chat template). So no other code knows where a model came from. The folder is written under a
temporary name and tested with one question. Only then is it renamed, so no partial folder remains.
"""

import fcntl
import glob
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mage.config.errors import NOWHERE, ConfigError, UserError
from mage.config.menus import PACKAGE
from mage.config.recipe import Recipe
from mage.models.checks import read_object, read_tensors
from mage.models.sources.base import Source
from mage.models.sources.hub import HubId, fetch_snapshot, find_snapshot, origin_of, read_hub_id
from mage.run_folder.files import sync_files, sync_folder

# Models in the package: for Kuhn poker and Tic-Tac-Toe, for Sokoban and ALFWorld, for short and for
# long games of rock-paper-scissors, for Kuhn poker against players never met, for doors and
# for bandits.
EMBEDDED = (
    *("embedded", "embedded-worlds", "embedded-rps", "embedded-roshambo", "embedded-kuhn"),
    *("embedded-doors", "embedded-bandit"),
)
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SHIPPED = PACKAGE / "models" / "shipped"  # models and adapters in the package
ORIGIN = "origin.json"
_PARTIAL, _REPLACED = ".mage-partial", ".mage-replaced"  # ends of names of temporary folders
What = TypeVar("What", str, Path)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


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


def find_model(path: str, *, download: bool = True) -> Path:
    """The folder that `model.path` means.

    Searched in this order: embedded models, folders, shipped adapters, the model hub, added models.
    A model of the hub is downloaded if it is not here, unless `download` is false.
    """
    if path in EMBEDDED:
        return SHIPPED / path
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file() or is_adapter(folder):
        return folder
    if path in shipped_adapters():
        return SHIPPED / "adapters" / path
    if (hub := read_hub_id(path)) and not Path(path).exists():
        return _find_of_hub(hub, download)
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


def _find_of_hub(model: HubId, download: bool) -> Path:
    """A model that was added from the hub, else the hub's own cache, else a download."""
    if added := _added_from_hub(model):
        return added
    found = fetch_snapshot(model) if download else find_snapshot(model)
    if found is None:
        raise UserError(f"{model} is not on this machine")
    return found


def _added_from_hub(model: HubId) -> Path | None:
    """The added model that comes from this model and revision of the hub."""
    for note in sorted(models_folder().glob(f"[!.]*/{ORIGIN}")):
        origin = str(read_object(note).get("origin", ""))
        if origin == origin_of(model) or (
            model.revision is None and origin.startswith(f"{model.name}@")
        ):
            return note.parent
    return None


def pin_model(recipe: Recipe) -> Recipe:
    """The recipe with the commit of its model on the hub in model.path.

    So a resumed run uses the same weights after the hub has got newer ones.
    """
    path = recipe.model.path
    if (hub := read_hub_id(path)) is None or hub.is_pinned or Path(path).exists():
        return recipe
    folder = model_folder(recipe)
    note = folder / ORIGIN
    if not note.is_file():
        return recipe.changed(model={"path": str(HubId(hub.name, folder.name))})
    origin = str(read_object(note).get("origin", "")).split(" ")[0]
    return recipe.changed(model={"path": origin or path})


def model_folder(recipe: Recipe, *, download: bool = True) -> Path:
    """The folder of a recipe's starting weights: a whole model or adapters."""
    return _folder_of(recipe, partial(find_model, download=download), recipe.model.path)


def base_folder(recipe: Recipe, *, download: bool = True) -> Path:
    """The folder of a recipe's whole model, with the tokenizer."""
    folder = model_folder(recipe, download=download)
    return _folder_of(recipe, partial(base_of, download=download), folder)


def _folder_of(recipe: Recipe, find: Callable[[What], Path], what: What) -> Path:
    try:
        return find(what)
    except UserError as error:
        raise ConfigError(NOWHERE.mistake("model.path", recipe.model.path, str(error))) from None


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds LoRA adapters in PEFT's format and no whole model."""
    return (folder / ADAPTER_CONFIG).is_file()


def adapter_folder(recipe: Recipe) -> Path | None:
    """The folder of a recipe's starting weights, if they are adapters."""
    folder = model_folder(recipe)
    return folder if is_adapter(folder) else None


def base_of(folder: Path, *, download: bool = True) -> Path:
    """The folder of the whole model: this folder, or the base model of its adapters."""
    if not is_adapter(folder):
        return folder
    name = base_name(folder, "")
    try:
        return find_model(name, download=download)
    except ValueError as error:
        reason = f" ({error})" if read_hub_id(name) else ""
        raise UserError(
            f"the adapters in {folder} need the model {name}: get it with mage model add "
            f"{name}{reason}"
        ) from None


def base_name(folder: Path, path: str) -> str:
    """The `model.path` of the whole model: `path`, or the base model of the adapters."""
    if not is_adapter(folder):
        return path
    config = read_object(folder / ADAPTER_CONFIG)
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(name, str) or not name:
        raise UserError(f"{folder / ADAPTER_CONFIG} has no base_model_name_or_path")
    hub = read_hub_id(name)
    return str(HubId(name, revision)) if hub and isinstance(revision, str) else name


def shipped_adapters() -> list[str]:
    """The names of the adapters that ship with MAGE."""
    return sorted(path.parent.name for path in (SHIPPED / "adapters").glob(f"*/{ADAPTER_CONFIG}"))


def _ways() -> str:
    choices = " | ".join([*named_sources(), "FILE.gguf", "FOLDER", "ORG/NAME"])
    return f"get one with mage model add {choices}"


def list_models() -> list[Model]:
    """All added models, sorted by name."""
    folder = models_folder()
    names = []
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return [
        _read_or_report(folder / name)
        for name in names
        if (folder / name / "config.json").is_file()
    ]


def count_parameters(number: int) -> str:
    """
    >>> count_parameters(213_000), count_parameters(4_022_000_000)
    ('0.2 M parameters', '4.0 B parameters')
    """
    return (
        f"{number / 1e9:.1f} B parameters" if number >= 1e9 else f"{number / 1e6:.1f} M parameters"
    )


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
    """All sources by name; named models first, because a name takes precedence over a path.

    They are imported here, because some load torch.
    """
    from mage.models.sources.folder import Folder
    from mage.models.sources.gguf import Gguf
    from mage.models.sources.hub import Hub
    from mage.models.sources.qwen import Qwen
    from mage.models.sources.smollm2 import Smollm2

    named = {"smollm2": Smollm2, "qwen2.5-1.5b": Qwen}
    return {**named, "folder": Folder, "gguf": Gguf, "hub": Hub}


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
