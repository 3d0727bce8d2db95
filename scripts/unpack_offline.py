"""Unpack a pack of pack_offline.py on a machine without a network, and test it.

    python3 unpack_offline.py FOLDER --collect STORE   check the parts in FOLDER, copy them to STORE
    python3 unpack_offline.py FOLDER --check           check the parts
    python3 unpack_offline.py FOLDER --to TARGET       check, unpack, install the wheels, test

Standard library only, Python 3.10 or newer. Parts are read in order and never joined on disk.
"""

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

FORMAT = 1
PARTS_MISSING = 1


class UsageError(Exception):
    """A user error; the message says what to do."""


def read_manifest(folder: Path) -> dict:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except OSError:
        raise UsageError(
            f"{folder} has no manifest.json: copy it from the pack together with the parts"
        ) from None
    except ValueError:
        raise UsageError(
            f"{folder}/manifest.json is damaged: copy it again from the pack"
        ) from None
    if manifest.get("format") != FORMAT:
        raise UsageError(
            f"the pack has format {manifest.get('format')}, but this script reads format {FORMAT}. "
            "Use the script in the pack."
        )
    return manifest


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def fault_of(folder: Path, part: dict) -> str | None:
    """The fault of a part, or None."""
    path = folder / part["name"]
    if not path.is_file():
        return "missing"
    if path.stat().st_size != part["bytes"]:
        return f"broken: {path.stat().st_size:,} bytes instead of {part['bytes']:,}"
    return None if digest(path) == part["sha256"] else "broken: its SHA-256 is not that of the pack"


def check_parts(folder: Path, manifest: dict) -> None:
    faults = [
        f"{part['name']} is {fault}"
        for part in manifest["parts"]
        if (fault := fault_of(folder, part))
    ]
    if faults:
        raise UsageError("\n".join([*faults, f"Copy these again into {folder}."]))


# --- Collecting -----------------------------------------------------------------------------


def collect(folder: Path, store: Path) -> int:
    """Copy the whole parts to the store; 0 if all parts are there, else 1."""
    store.mkdir(parents=True, exist_ok=True)
    has_manifest = (folder / "manifest.json").is_file()
    if (
        has_manifest
        and (store / "manifest.json").is_file()
        and read_manifest(folder) != read_manifest(store)
    ):
        raise UsageError(
            f"{store} holds parts of another pack. Choose another folder with --collect."
        )
    for name in ("manifest.json", Path(__file__).name):
        if (folder / name).is_file() and not (store / name).is_file():
            copy_whole(folder / name, store / name)
    manifest = read_manifest(store)
    for part in manifest["parts"]:
        if fault_of(store, part) is None:
            continue
        fault = fault_of(folder, part)
        if fault is None:
            copy_whole(folder / part["name"], store / part["name"])
            fault = fault_of(store, part)
            print(
                f"kept {part['name']}"
                if fault is None
                else f"{part['name']} was not copied completely. Check the free space of {store}."
            )
        elif fault != "missing":
            print(f"{part['name']} is {fault}; it was not kept")
    missing = [part["name"] for part in manifest["parts"] if fault_of(store, part)]
    print(
        f"missing {len(missing)} of {len(manifest['parts'])}: {', '.join(missing)}"
        if missing
        else f"all {len(manifest['parts'])} parts are in {store}"
    )
    return PARTS_MISSING if missing else 0


def copy_whole(source: Path, target: Path) -> None:
    """Copy to a temporary name first, so that an interrupted copy is never used."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.copyfile(source, partial)
    partial.replace(target)


# --- Unpacking ------------------------------------------------------------------------------


class Joined(io.RawIOBase):
    """The parts as one readable file."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = iter(paths)
        self.file: io.BufferedReader | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        pieces = []
        while size:
            if self.file is None:
                path = next(self.paths, None)
                if path is None:
                    break
                self.file = path.open("rb")
            piece = self.file.read(size)
            if not piece:
                self.file.close()
                self.file = None
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def unpack(folder: Path, manifest: dict, target: Path) -> None:
    """Write only regular files below the target."""
    with tarfile.open(
        fileobj=Joined([folder / part["name"] for part in manifest["parts"]]), mode="r|"
    ) as archive:
        for entry in archive:
            place = Path(entry.name)
            if not entry.isfile() or place.is_absolute() or ".." in place.parts:
                raise UsageError(
                    f"the archive contains {entry.name!r}, which is not a regular file below the "
                    "target. The archive was not made by pack_offline.py."
                )
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(entry)
            assert source is not None, "a regular file has content"
            with (target / place).open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            (target / place).chmod(entry.mode & 0o777)


def install(target: Path) -> None:
    wheels = sorted(map(str, (target / "wheels").glob("*.whl")))
    if not wheels:
        return
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--target",
        str(target / "site"),
    ]
    done = subprocess.run([*command, *wheels], capture_output=True, text=True)
    if done.returncode and "No module named pip" in done.stderr:
        raise UsageError(
            f"this Python has no pip. Run {sys.executable} -m ensurepip, or install the pip "
            "package of your system."
        )
    if done.returncode:
        raise UsageError(f"the wheels could not be installed:\n{done.stderr.strip()}")
    shutil.rmtree(target / "wheels")


def write_settings(target: Path) -> dict[str, str]:
    """Write `env.sh` and the command `mage` beside it; return the same settings."""
    paths = f"{target / 'site'}{os.pathsep}{target / 'project'}"
    (target / "env.sh").write_text(
        "# In a shell: . env.sh, then mage ...\n"
        f'export PYTHONPATH="{paths}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f'export MAGE_MODELS="{target / "models"}"\nexport PATH="{target / "bin"}:$PATH"\n'
    )
    (target / "bin").mkdir(exist_ok=True)
    command = target / "bin" / "mage"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mage "$@"\n')
    command.chmod(0o755)
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([paths, *([before] if before else [])]),
        "MAGE_MODELS": str(target / "models"),
    }


def attempt(target: Path, manifest: dict) -> None:
    """Test the installation: print the version, play random games of an environment."""
    settings = write_settings(target)
    for words in (["--version"], ["check", "kuhn_poker"]):
        done = subprocess.run(
            [sys.executable, "-m", "mage", *words],
            env=settings,
            cwd=target / "project",
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
            host = ", ".join(manifest["left_to_the_host"])
            raise UsageError(
                f"python -m mage {' '.join(words)} failed:\n{last}"
                + (f"\nThe host must have these packages: {host}." if host else "")
            )
        print(f"python -m mage {' '.join(words)}: {(done.stdout.strip() or 'ok').splitlines()[-1]}")


def check_host(manifest: dict) -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if own != manifest["python"]:
        raise UsageError(
            f"the wheels are for Python {manifest['python']}, but this is Python {own}. "
            f"Run this script with python{manifest['python']}."
        )


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the parts")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument(
        "--to",
        type=Path,
        metavar="TARGET",
        help="unpack into this folder, which must be empty or new",
    )
    task.add_argument("--check", action="store_true", help="check the parts and do nothing else")
    task.add_argument(
        "--collect",
        type=Path,
        metavar="STORE",
        help="copy the whole parts there, and list the missing ones",
    )
    args = parser.parse_args(words)
    if args.collect:
        return collect(args.folder, args.collect)
    manifest = read_manifest(args.folder)
    if args.to:
        check_host(manifest)
        if args.to.is_dir() and any(args.to.iterdir()):
            raise UsageError(f"{args.to} is not empty. Choose a new folder.")
    check_parts(args.folder, manifest)
    print(f"all {len(manifest['parts'])} parts are whole")
    if args.to:
        target = args.to.resolve()
        unpack(args.folder, manifest, target)
        install(target)
        attempt(target, manifest)
        print(
            f"ready: . {target / 'env.sh'}; mage list"
            + (f"; --model.path={manifest['model']}" if manifest["model"] else "")
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as mistake:
        print(f"unpack_offline: {mistake}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"unpack_offline: {error}", file=sys.stderr)
        sys.exit(2)
