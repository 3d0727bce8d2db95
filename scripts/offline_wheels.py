"""The wheels that a host without a network needs, downloaded for its Python and platform."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

# PEP 600: old tags by the minor version of glibc 2
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class UsageError(Exception):
    """A user error or a missing wheel; the message says what to do."""


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
