"""Pack the project for a machine without a network; check and unpack the pack there.

    python scripts/offline.py pack --python 3.12 --platform manylinux_2_28_x86_64 --out pack
    python3.12 offline.py check FOLDER                # are all parts there and whole?
    python3.12 offline.py unpack FOLDER --to TARGET   # check, unpack, install the wheels, try it

A pack is a folder: `manifest.json`, a copy of this script, and one tar file in parts. It holds the
project, its wheels, a model, and with --also any files and folders. Wheels are downloaded level by
level from the requirements in their metadata: pip alone would apply the conditions of THIS machine
(`platform_machine`, `python_version`), and could not leave out what the host has. On the host the
script needs nothing but Python and pip.
"""

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve()
FORMAT = 2
LARGE = {"results": "results/", "adapters": "mage/models/shipped/adapters/"}
OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # glibc 2.17 and so on
Manifest = dict[str, Any]


class UsageError(ValueError):
    """A user error or a missing file; the message says what to do."""


# --- Wheels for the host


@dataclass(frozen=True)
class Host:
    """The machine that a pack is for. `left_out` collects the packages that it must have."""

    python: str
    platforms: list[str]
    without: frozenset[str]
    pins: dict[str, str]
    left_out: set[str] = field(default_factory=set)

    def markers(self) -> dict[str, str]:
        """Its environment markers (PEP 508)."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "platform_system": "Linux",
            "sys_platform": "linux",
            "platform_machine": _split_tag(self.platforms[0])[1],
            "os_name": "posix",
        }


def platforms_below(tag: str) -> list[str]:
    """All tags that a host with this tag accepts: wheels for an older glibc work too."""
    newest, machine = _split_tag(tag)
    minors = range(newest, 4, -1)
    tags = [[f"manylinux_2_{minor}", OLD_NAMES.get(minor)] for minor in minors]
    return [f"{name}_{machine}" for names in tags for name in names if name]


def _split_tag(tag: str) -> tuple[int, str]:
    """The minor version of glibc 2, and the machine."""
    found = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", tag)
    if found is None:
        raise UsageError(
            f"--platform {tag} is not valid. Write manylinux_2_N_MACHINE for a host with glibc 2.N "
            "or newer, as in manylinux_2_28_x86_64 or manylinux_2_28_aarch64."
        )
    return int(found[1]), found[2]


def read_pins(path: Path) -> dict[str, str]:
    """Exact versions by canonical name."""
    pairs = [line.split("#")[0].strip().partition("==") for line in path.read_text().splitlines()]
    return {_canonical(name): version for name, equals, version in pairs if equals}


def download_wheels(requirements: Iterable[str], folder: Path, host: Host) -> list[str]:
    """Download what these requirements need on the host; the names of the wheels."""
    done: set[tuple[str, str]] = set()  # package and extra
    waiting = {(text, "") for text in requirements}
    while waiting:
        new: dict[str, tuple[str, set[str]]] = {}
        for text, extra in sorted(waiting):
            name, pinned, extras = _read_requirement(text, extra, host)
            if fresh := {one for one in extras if (name, one) not in done}:
                new[name] = (pinned, fresh | new.get(name, ("", set()))[1])
                done |= {(name, one) for one in fresh}
        _run_pip(sorted(pinned for pinned, _ in new.values()), folder, host)
        waiting = {
            (text, extra)
            for name, (_, extras) in new.items()
            for text in _requirements_of(folder, name)
            for extra in extras
        }
    return sorted(path.name for path in folder.glob("*.whl"))


def _read_requirement(text: str, extra: str, host: Host) -> tuple[str, str, set[str]]:
    """Name, what pip is asked for, and extras; no extras, not even "", if it is not needed."""
    from packaging.requirements import Requirement

    one = Requirement(text)
    name = _canonical(one.name)
    if one.marker is not None and not one.marker.evaluate({**host.markers(), "extra": extra}):
        return name, "", set()
    if name in host.without:
        host.left_out.add(name)
        return name, "", set()
    version = f"=={host.pins[name]}" if name in host.pins else str(one.specifier)
    return name, name + version, {"", *one.extras}


def _requirements_of(folder: Path, name: str) -> list[str]:
    wheels = (path for path in folder.glob("*.whl") if _canonical(path.name.split("-")[0]) == name)
    with zipfile.ZipFile(next(wheels)) as wheel:
        inside = next(one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
        return Parser().parsestr(wheel.read(inside).decode()).get_all("Requires-Dist") or []


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _run_pip(requirements: list[str], folder: Path, host: Host) -> None:
    if not requirements:
        return
    print(f"wheels: {', '.join(requirements)}", flush=True)
    words = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    words += ["--implementation", "cp", "--python-version", host.python]
    words += [word for tag in host.platforms for word in ("--platform", tag)]
    done = _pip(*words, *requirements)
    missing = re.search(r"No matching distribution found for (\S+)", done.stderr)
    if done.returncode and missing:
        raise UsageError(
            f"there is no wheel of {missing[1]} for Python {host.python} on {host.platforms[0]}. "
            "Name a newer --platform, change its version in constraints.txt, or leave it out with "
            f"--without {re.split('[=<>!~]', missing[1])[0]} if the host has it."
        )
    if done.returncode:
        raise UsageError(f"pip could not download the wheels:\n{done.stderr.strip()}")


def _pip(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", words[0], "-q", "--disable-pip-version-check"]
    return subprocess.run([*command, *words[1:]], capture_output=True, text=True)


# --- Pack


def pack(given: argparse.Namespace) -> None:
    """Write a pack into a new folder."""
    if given.out.exists():
        raise UsageError(f"--out {given.out} exists already. Choose a new folder or remove it.")
    project = tomllib.loads((given.project / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project.get("optional-dependencies", {}).get("gguf", [])]
    without = frozenset(_canonical(name) for name in given.without.split(",") if name)
    pins = read_pins(given.project / "constraints.txt")
    host = Host(given.python, platforms_below(given.platform), without, pins)
    model = None
    if given.model:
        from mage.models.base import find_model

        model = Path(find_model(given.model)).resolve()
    files = [
        *_project_files(given.project, given.include.split(",")),
        *(one for path in given.also for one in _files_of(path)),
    ]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.out.parent, prefix=f".{given.out.name}.") as beside:
        (made := Path(beside, "pack")).mkdir()
        (downloads := Path(beside, "wheels")).mkdir()
        wheels = download_wheels(needed, downloads, host)
        files += _files_below(downloads, "wheels")
        files += _files_below(model, f"models/{model.name}") if model else []
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "python": host.python,
            "platforms": host.platforms,
            "model": model.name if model else None,
            "left_to_the_host": sorted(host.left_out),
            "wheels": wheels,
            "parts": write_parts(files, made, given.part_mb * 10**6),
        }
        (made / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        shutil.copyfile(SCRIPT, made / SCRIPT.name)
        made.rename(given.out)
    total = sum(part["bytes"] for part in manifest["parts"]) / 1e6
    print(f"{len(wheels)} wheels, {len(manifest['parts'])} parts, {total:,.1f} MB: {given.out}")
    print(f"on the host: python{given.python} {SCRIPT.name} unpack FOLDER --to TARGET")


def _project_files(project: Path, included: list[str]) -> Iterator[tuple[str, Path]]:
    """The files that git tracks, but large ones only if they are asked for."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=project, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"{project} is not a git checkout: git lists the files of the pack.")
    left = tuple(start for name, start in LARGE.items() if name not in included)
    for name in done.stdout.split("\0"):
        if name and not name.startswith(left) and (project / name).is_file():
            yield f"project/{name}", project / name


def _files_of(path: Path) -> list[tuple[str, Path]]:
    """A file, or all files of a folder, by their place in the folder `also`."""
    if not path.exists():
        raise UsageError(f"--also {path}: there is no such file or folder.")
    name = f"also/{path.resolve().name}"
    return _files_below(path, name) if path.is_dir() else [(name, path)]


def _files_below(folder: Path, name: str) -> list[tuple[str, Path]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(f"{name}/{path.relative_to(folder).as_posix()}", path) for path in paths]


def write_parts(files: Iterable[tuple[str, Path]], out: Path, size: int) -> list[dict[str, Any]]:
    """Write one tar file in parts of at most `size` bytes. Links become the files they name."""
    with tempfile.TemporaryFile(dir=out) as whole:
        with tarfile.open(fileobj=whole, mode="w", dereference=True) as archive:
            for name, path in files:
                archive.add(path, name, recursive=False, filter=_plain)
        parts = [out / f"offline.tar.{n:03d}" for n in range(math.ceil(whole.tell() / size))]
        whole.seek(0)
        for path in parts:
            with path.open("wb") as part:
                while (room := size - part.tell()) and (block := whole.read(min(room, 1 << 20))):
                    part.write(block)
    return [
        {"name": path.name, "bytes": path.stat().st_size, "sha256": _digest(path)} for path in parts
    ]


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same archive on every machine."""
    mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry.replace(uid=0, gid=0, uname="", gname="", mtime=0, mode=mode, deep=False)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- Unpack


def check(given: argparse.Namespace) -> Manifest:
    """Verify size and SHA-256 of every part."""
    manifest = _read_manifest(given.folder)
    faults = [
        f"{part['name']} is {fault}"
        for part in manifest["parts"]
        if (fault := _fault_of(given.folder / part["name"], part))
    ]
    if faults:
        raise UsageError("\n".join([*faults, f"Copy these from the pack into {given.folder}."]))
    print(f"all {len(manifest['parts'])} parts are whole")
    return manifest


def _read_manifest(folder: Path) -> Manifest:
    try:
        manifest: Manifest = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder}/manifest.json cannot be read ({error}): copy it again from the pack"
        ) from None
    if manifest.get("format") != FORMAT:
        raise UsageError(
            f"the pack has format {manifest.get('format')}, but this script reads format {FORMAT}. "
            "Use the script in the pack."
        )
    return manifest


def _fault_of(path: Path, part: dict[str, Any]) -> str | None:
    if not path.is_file():
        return "missing"
    if (size := path.stat().st_size) != part["bytes"]:
        return f"broken: {size:,} bytes instead of {part['bytes']:,}"
    is_same = _digest(path) == part["sha256"]
    return None if is_same else "broken: its SHA-256 is not that of the pack"


def unpack(given: argparse.Namespace) -> None:
    """Check the parts, unpack them into a new folder, install the wheels, and try the result."""
    python, target = f"{sys.version_info[0]}.{sys.version_info[1]}", given.to.resolve()
    manifest = _read_manifest(given.folder)
    if python != manifest["python"]:
        raise UsageError(
            f"the wheels are for Python {manifest['python']}, but this is Python {python}. "
            f"Run this script with python{manifest['python']}."
        )
    if target.is_dir() and any(target.iterdir()):
        raise UsageError(f"{given.to} is not empty. Choose a new folder.")
    check(given)
    extract([given.folder / part["name"] for part in manifest["parts"]], target)
    _install(target)
    _write_settings(target)
    _try(manifest, target)
    option = f" --model.path={manifest['model']}" if manifest["model"] else ""
    print(f"ready: . {target / 'env.sh'}; mage train demo{option}")


def extract(parts: Iterable[Path], target: Path) -> None:
    """Join the parts and unpack them; nothing is written outside the target."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=target) as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, 1 << 20)
        whole.seek(0)
        try:
            with tarfile.open(fileobj=whole) as archive:
                archive.extractall(target, filter="data")
        except tarfile.TarError as error:
            raise UsageError(f"the archive was not made by this script: {error}") from None


def _install(target: Path) -> None:
    wheels = sorted(map(str, (target / "wheels").glob("*.whl")))
    if not wheels:
        return
    done = _pip("install", "--no-index", "--no-deps", "--target", str(target / "site"), *wheels)
    if done.returncode:
        raise UsageError(f"pip could not install the wheels:\n{done.stderr.strip()}")
    shutil.rmtree(target / "wheels")


def _write_settings(target: Path) -> None:
    """Write `env.sh`, and the command `mage` that it puts on the path."""
    paths = f"{target / 'site'}{os.pathsep}{target / 'project'}"
    (target / "env.sh").write_text(
        "# In a shell: . env.sh, then mage ...\n"
        f'export PYTHONPATH="{paths}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f'export MAGE_MODELS="{target / "models"}"\nexport PATH="{target / "bin"}:$PATH"\n'
    )
    (target / "bin").mkdir()
    command = target / "bin" / "mage"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mage "$@"\n')
    command.chmod(0o755)


def _try(manifest: Manifest, target: Path) -> None:
    """Print the version, and play random games of an environment."""
    for words in ("--version", "check kuhn_poker"):
        shell = ["sh", "-c", f". ./env.sh; mage {words}"]
        done = subprocess.run(shell, cwd=target, capture_output=True, text=True)
        lines = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["ok"]
        needed = ", ".join(manifest["left_to_the_host"])
        if done.returncode:
            lines += [f"The host must have these packages: {needed}."] if needed else []
            raise UsageError("\n".join([f"mage {words} failed:", *lines[-6:]]))
        print(f"mage {words}: {lines[-1]}")


# --- The command


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    tasks = parser.add_subparsers(required=True, metavar="pack|check|unpack")
    packing, checking, unpacking = (
        tasks.add_parser(task.__name__, help=task.__doc__) for task in (pack, check, unpack)
    )
    packing.set_defaults(task=pack)
    add = packing.add_argument
    add("--python", required=True, metavar="X.Y", help="the host's Python, as in 3.12")
    add("--platform", required=True, metavar="TAG", help="as in manylinux_2_28_x86_64")
    add("--out", required=True, type=Path, metavar="FOLDER", help="a folder that does not exist")
    add("--model", metavar="NAME|FOLDER", help="a model of `mage model list`, or a folder")
    add("--without", default="", metavar="NAME,...", help="packages that the host has already")
    add("--include", default="", metavar="NAME,...", help=f"also pack {' and '.join(LARGE)}")
    about = "a file or folder, unpacked into TARGET/also; may be repeated"
    add("--also", action="append", default=[], type=Path, metavar="PATH", help=about)
    add("--part-mb", type=int, default=1000, metavar="N", help="megabytes of a part")
    add("--project", type=Path, default=SCRIPT.parent.parent, help=argparse.SUPPRESS)
    for task, parsed in ((check, checking), (unpack, unpacking)):
        parsed.set_defaults(task=task)
        parsed.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the parts")
    unpacking.add_argument("--to", required=True, type=Path, metavar="TARGET", help="a new folder")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    given = read_arguments(words)
    try:
        given.task(given)
    except (ValueError, OSError) as mistake:
        print(f"offline: {mistake}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
