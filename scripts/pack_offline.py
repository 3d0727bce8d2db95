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
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

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
# PEP 600: old tags by the minor version of glibc 2
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class UsageError(Exception):
    """A user error or a missing wheel; the message says what to do."""


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


def platforms_below(given: Iterable[str]) -> list[str]:
    """All tags that a host with these tags accepts: every older glibc works too."""
    found: dict[str, None] = {}
    for tag in given:
        found[tag] = None
        old = next((k for k, name in _OLD_NAMES.items() if tag.startswith(f"{name}_")), None)
        new = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", tag)
        newest, machine = (int(new[1]), new[2]) if new else (old, tag.partition("_")[2])
        for k in range(newest or 0, 4, -1):
            found[f"manylinux_2_{k}_{machine}"] = None
            if k in _OLD_NAMES:
                found[f"{_OLD_NAMES[k]}_{machine}"] = None
    return list(found)


def markers_of(python: str, platform: str) -> dict[str, str]:
    """The environment markers of the host (PEP 508)."""
    system = (
        "Windows"
        if platform.startswith("win")
        else "Darwin"
        if platform.startswith("macosx")
        else "Linux"
    )
    machine = next(
        (
            name
            for name in ("x86_64", "aarch64", "arm64", "amd64", "ppc64le", "s390x")
            if platform.endswith(name)
        ),
        "",
    )
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "platform_python_implementation": "CPython",
        "platform_system": system,
        "platform_machine": "AMD64" if machine == "amd64" else machine,
        "sys_platform": {"Windows": "win32", "Darwin": "darwin", "Linux": "linux"}[system],
        "os_name": "nt" if system == "Windows" else "posix",
        "platform_release": "",
        "platform_version": "",
    }


def read_pins(path: Path) -> dict[str, str]:
    """Exact versions by canonical name."""
    lines = path.read_text().splitlines() if path.is_file() else []
    pairs = [line.split("#")[0].strip().partition("==") for line in lines]
    return {canonicalize_name(name): version for name, equals, version in pairs if equals}


# --- Wheels ---------------------------------------------------------------------------------


class Wheels:
    """The wheels of one host, downloaded level by level into a folder."""

    def __init__(
        self,
        folder: Path,
        python: str,
        platforms: list[str],
        pins: dict[str, str],
        without: Iterable[str],
    ) -> None:
        self.folder, self.python, self.platforms, self.pins = folder, python, platforms, pins
        self.without = {canonicalize_name(name) for name in without}
        self.markers = markers_of(python, platforms[0])
        self.left_out: set[str] = set()

    def gather(self, requirements: Iterable[str]) -> list[Path]:
        """All wheels for these requirements, without packages that the host has."""
        asked: set[tuple[str, str]] = set()  # name and extra; each is resolved once
        wanted = self._fitting(requirements, "")
        while wanted:
            new = [one for one in wanted if self._keys(one) - asked]
            asked |= {key for one in new for key in self._keys(one)}
            self._download(sorted({self._pinned(one) for one in new}))
            wanted = [needed for one in new for needed in self._needs(one)]
        return sorted(self.folder.glob("*.whl"))

    def _keys(self, requirement: Requirement) -> set[tuple[str, str]]:
        return {(canonicalize_name(requirement.name), extra) for extra in ("", *requirement.extras)}

    def _fitting(self, texts: Iterable[str], extra: str) -> list[Requirement]:
        found = []
        for text in texts:
            one = Requirement(text)
            if one.marker is not None and not one.marker.evaluate({**self.markers, "extra": extra}):
                continue
            if canonicalize_name(one.name) in self.without:
                self.left_out.add(canonicalize_name(one.name))
            else:
                found.append(one)
        return found

    def _pinned(self, requirement: Requirement) -> str:
        name = canonicalize_name(requirement.name)
        return (
            f"{name}=={self.pins[name]}" if name in self.pins else f"{name}{requirement.specifier}"
        )

    def _needs(self, requirement: Requirement) -> list[Requirement]:
        wheel = next(
            path
            for path in self.folder.glob("*.whl")
            if parse_wheel_filename(path.name)[0] == canonicalize_name(requirement.name)
        )
        with zipfile.ZipFile(wheel) as archive:
            inside = next(
                name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
            )
            texts = Parser().parsestr(archive.read(inside).decode()).get_all("Requires-Dist") or []
        return [
            needed for extra in ("", *requirement.extras) for needed in self._fitting(texts, extra)
        ]

    def _download(self, requirements: list[str]) -> None:
        if not requirements:
            return
        print(f"wheels: {', '.join(requirements)}", flush=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
        ]
        command += [
            "--implementation",
            "cp",
            "--python-version",
            self.python,
            "--dest",
            str(self.folder),
        ]
        command += [word for tag in self.platforms for word in ("--platform", tag)]
        done = subprocess.run([*command, *requirements], capture_output=True, text=True)
        if done.returncode:
            raise UsageError(self._explain(done.stderr))

    def _explain(self, error: str) -> str:
        found = re.search(r"No matching distribution found for (\S+)", error)
        if found is None:
            return f"pip could not download the wheels:\n{error.strip()}"
        name = re.split(r"[=<>!~\[]", found[1])[0]
        versions = re.search(r"from versions: ([^)]*)\)", error)
        there = (
            f" (available versions: {versions[1]})"
            if versions and versions[1].strip() != "none"
            else ""
        )
        return (
            f"there is no wheel of {found[1]} for Python {self.python} on "
            f"{self.platforms[0]}{there}. Add a newer --platform (for example "
            "manylinux_2_28_x86_64), change its version in constraints.txt, or leave it out with "
            f"--without {name} if the host has it."
        )


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
) -> dict[str, object]:
    """Write the pack into `out` and return its manifest."""
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    extras = described.get("optional-dependencies", {})
    found = wheels.gather([*described.get("dependencies", []), *extras.get("gguf", [])])
    parts = Parts(out, size)
    write_archive(entries(project, found, model), parts)
    manifest: dict[str, object] = {
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
    total = sum(part["bytes"] for part in manifest["parts"])  # type: ignore[attr-defined]
    counts = f"{len(manifest['wheels'])} wheels, {len(manifest['parts'])} parts"  # type: ignore[arg-type]
    print(f"{counts}, {total / 1e6:,.1f} MB, {time.monotonic() - began:.0f} s: {args.out}")
    if unused := sorted(wheels.without - wheels.left_out):
        print(f"note: --without {','.join(unused)} had no effect: nothing needs it")
    print(f"on the host: python{args.python} {UNPACK.name} FOLDER --to TARGET")


if __name__ == "__main__":
    try:
        main()
    except UsageError as mistake:
        print(f"pack_offline: {mistake}", file=sys.stderr)
        sys.exit(2)
