"""The versions of the software that a run uses, so that others can repeat the run."""

import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import mage
from mage.config.menus import foreign_packages
from mage.run_folder.files import file_digest

_NAMES = "torch transformers tokenizers safetensors numpy pydantic open_spiel"
_PACKAGES = tuple(_NAMES.split())
RUN_FORMAT = 2  # since 2 the files of a run carry checksums
OWN_CODE = "code_sha256"  # in versions.json: the checksums of the user's own code


def versions() -> dict[str, Any]:
    """Versions of MAGE, Python, the platform and the main packages."""
    return {
        "run_format": RUN_FORMAT,
        "mage": mage.__version__,
        "commit": _commit(Path(mage.__file__).parent.parent / ".git"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def changed_software(stored: Mapping[str, Any]) -> list[str]:
    """One line if a run began with other versions than those that are here; else none."""
    now, packages = versions(), stored.get("packages")
    if not isinstance(packages, dict):
        return []
    pairs = {name: (packages.get(name), now["packages"][name]) for name in _PACKAGES}
    pairs["mage"] = (stored.get("mage"), now["mage"])
    changed = [f"{name} {old} (now {new})" for name, (old, new) in pairs.items() if old != new]
    if not changed:
        return []
    return [
        f"this run began with {', '.join(changed)}: its further figures may differ by rounding "
        "from those of a run without a break"
    ]


def own_code(recipe: str) -> dict[str, str]:
    """The SHA-256 of the user's code that a recipe names, by module: files of loaded modules."""
    packages = foreign_packages & {*re.findall(r"[^\W\d]\w*(?=\.)", recipe)}
    files = {
        name: Path(getattr(module, "__file__", None) or "")
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] in packages
    }
    return {name: file_digest(path) for name, path in files.items() if path.is_file()}


def changed_code(stored: Mapping[str, Any], recipe: str) -> list[str]:
    """One line if the user's code is not that with which the run began; else none.

    Runs of old versions do not know their code.
    """
    before, now = stored.get(OWN_CODE), own_code(recipe)
    if not isinstance(before, dict):
        return []
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    if not changed:
        return []
    shown = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
    return [
        f"the code of {shown} has changed since this run began: updates before and after the "
        "change may not be comparable. Start a new run if the change affects the results"
    ]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit(git: Path) -> str | None:
    """The commit that is checked out, read from git's own files; None outside of a clone."""
    if not (git / "HEAD").is_file():
        return None
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    loose, packed = git / head[5:], git / "packed-refs"
    if loose.is_file():
        return loose.read_text().strip()
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {head[5:]}")), None)
