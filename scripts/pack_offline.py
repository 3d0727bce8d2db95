"""Pack the project, its wheels and a model for a machine without a network.

    python scripts/pack_offline.py --python 3.12 --platform manylinux_2_28_x86_64 \
        --model smollm2 --part-size 60MB --out pack

The pack is a folder: `manifest.json`, a copy of `unpack_offline.py`, and one tar file cut into
parts. Dependencies are resolved level by level from the metadata of the wheels. So packages that
the host has (`--without torch`), and what only they need, are never downloaded. Versions come from
constraints.txt, else from the requirement of the wheel.
"""

import argparse
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from offline_wheels import UsageError, Wheels, platforms_below, read_pins

ROOT = Path(__file__).resolve().parent.parent
UNPACK = Path(__file__).resolve().with_name("unpack_offline.py")
FORMAT = 1
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


# --- Arguments ------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """Bytes: `60MB` is 60 million, `64MiB` is 64 x 2^20."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if (
        found is None
        or found[2].upper() not in _UNITS
        or (size := int(float(found[1]) * _UNITS[found[2].upper()])) < 1
    ):
        raise UsageError(
            f"--part-size {text} is not valid. Write a number and B, kB, MB, GB, KiB, MiB or GiB, "
            "as in 60MB."
        )
    return size


# --- The archive ----------------------------------------------------------------------------


class Parts(io.RawIOBase):
    """A writable file that is cut into parts of at most `size` bytes, each with its SHA-256."""

    def __init__(self, folder: Path, size: int | None) -> None:
        self.folder, self.size = folder, size
        self.done: list[dict[str, object]] = []
        self._file: io.BufferedWriter | None = None

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # type: ignore[no-untyped-def, override]
        rest = memoryview(data)
        while rest:
            if self._file is None:
                self._file, self._digest, self._length = (
                    (self.folder / self._name()).open("wb"),
                    hashlib.sha256(),
                    0,
                )
            piece = rest if self.size is None else rest[: self.size - self._length]
            self._file.write(piece)
            self._digest.update(piece)
            self._length, rest = self._length + len(piece), rest[len(piece) :]
            if self._length == self.size:
                self.finish_part()
        return len(data)

    def finish_part(self) -> None:
        if self._file is not None:
            self._file.close()
            self.done.append(
                {"name": self._name(), "bytes": self._length, "sha256": self._digest.hexdigest()}
            )
            self._file = None

    def _name(self) -> str:
        return f"offline.tar.{len(self.done):03d}"


def project_files(project: Path) -> list[Path]:
    """The files that git tracks; without git, all files but hidden and built ones."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=project, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        found = [project / name for name in done.stdout.split("\0") if name]
    else:
        skipped = ("build", "dist", "runs", "__pycache__")
        inside = ((path, path.relative_to(project).parts) for path in project.rglob("*"))
        found = [
            path
            for path, parts in inside
            if not any(
                part.startswith(".") or part in skipped or part.endswith(".egg-info")
                for part in parts
            )
        ]
    return sorted(path for path in found if path.is_file())


def entries(project: Path, wheels: list[Path], model: Path | None) -> Iterator[tuple[str, Path]]:
    """Names in the archive and their files. The model is last, because it is the largest."""
    yield from (
        (f"project/{path.relative_to(project).as_posix()}", path) for path in project_files(project)
    )
    yield from ((f"wheels/{path.name}", path) for path in wheels)
    if model is not None:
        yield from (
            (f"models/{model.name}/{path.relative_to(model).as_posix()}", path)
            for path in sorted(model.rglob("*"))
            if path.is_file()
        )


def write_archive(files: Iterable[tuple[str, Path]], parts: Parts) -> None:
    with tarfile.open(fileobj=parts, mode="w|") as archive:
        for name, path in files:
            entry = archive.gettarinfo(path, name)
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if entry.mode & 0o100 else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    parts.finish_part()


def pack(
    project: Path, out: Path, wheels: Wheels, model: Path | None, size: int | None
) -> dict[str, Any]:
    """Write the pack into `out` and return its manifest."""
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    extras = described.get("optional-dependencies", {})
    found = wheels.gather([*described.get("dependencies", []), *extras.get("gguf", [])])
    parts = Parts(out, size)
    write_archive(entries(project, found, model), parts)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "project": described["name"],
        "python": wheels.python,
        "platforms": wheels.platforms,
        "model": model.name if model else None,
        "left_to_the_host": sorted(wheels.left_out),
        "wheels": [path.name for path in found],
        "parts": parts.done,
    }
    shutil.copyfile(UNPACK, out / UNPACK.name)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


# --- The command ----------------------------------------------------------------------------


def find_model_folder(name: str) -> Path:
    if (Path(name) / "config.json").is_file():
        return Path(name).resolve()
    from mage.models.base import find_model

    try:
        return find_model(name)
    except ValueError as error:
        raise UsageError(f"--model {name}: {error}") from None


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", required=True, metavar="X.Y", help="the host's Python, as in 3.12"
    )
    parser.add_argument(
        "--platform",
        required=True,
        action="append",
        metavar="TAG",
        help="a wheel tag of the host, as in manylinux_2_28_x86_64; repeatable",
    )
    parser.add_argument(
        "--model",
        metavar="NAME|FOLDER",
        help="a model of `mage model list`, or a folder; the embedded one is in the project",
    )
    parser.add_argument(
        "--without", default="", metavar="NAME,...", help="packages that the host has already"
    )
    parser.add_argument(
        "--part-size", metavar="SIZE", help="cut the archive into parts of this size, as in 60MB"
    )
    parser.add_argument(
        "--project",
        type=Path,
        default=ROOT,
        metavar="FOLDER",
        help="the project folder (default: this one)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="a folder that does not exist yet"
    )
    return parser.parse_args(words)


def _describe(manifest: dict[str, Any]) -> str:
    total = sum(part["bytes"] for part in manifest["parts"])
    wheels, parts = len(manifest["wheels"]), len(manifest["parts"])
    return f"{wheels} wheels, {parts} parts, {total / 1e6:,.1f} MB"


def main(words: list[str] | None = None) -> None:
    args, began = read_arguments(words), time.monotonic()
    if not re.fullmatch(r"3\.\d+", args.python):
        raise UsageError(f"--python {args.python} is not valid. Write a version such as 3.12.")
    if args.out.exists():
        raise UsageError(f"--out {args.out} exists already. Choose a new folder or remove it.")
    size = parse_size(args.part_size) if args.part_size else None
    model = find_model_folder(args.model) if args.model else None
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out.parent, prefix=f".{args.out.name}.") as beside:
        (made := Path(beside) / "pack").mkdir()
        (downloads := Path(beside) / "wheels").mkdir()
        without = [name for name in args.without.split(",") if name]
        wheels = Wheels(
            downloads,
            args.python,
            platforms_below(args.platform),
            read_pins(args.project / "constraints.txt"),
            without,
        )
        manifest = pack(args.project, made, wheels, model, size)
        made.rename(args.out)
    print(f"{_describe(manifest)}, {time.monotonic() - began:.0f} s: {args.out}")
    if unused := sorted(wheels.without - wheels.left_out):
        print(f"note: --without {','.join(unused)} had no effect: nothing needs it")
    print(f"on the host: python{args.python} {UNPACK.name} FOLDER --to TARGET")


if __name__ == "__main__":
    try:
        main()
    except UsageError as mistake:
        print(f"pack_offline: {mistake}", file=sys.stderr)
        sys.exit(2)
