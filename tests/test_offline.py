"""Packing for a machine without a network: a small project with hand-made wheels and real pip, and
this checkout with the packages of this Python as those of the host.
"""

import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.marks import end_to_end

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
COMPILED = f"cp{sys.version_info[0]}{sys.version_info[1]}"
MACHINE = platform.machine()
TAG = f"manylinux_2_28_{MACHINE}"
PART = 1_000_000

sys.path.insert(0, str(SCRIPTS))
import offline  # noqa: E402


def make_wheel(
    folder: Path, name: str, version: str, tag: str, requires: tuple[str, ...] = ()
) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = "".join(
        [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            *(f"Requires-Dist: {text}\n" for text in requires),
        ]
    )
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
@end_to_end
def world(tmp_path_factory):
    """A project that needs `plain`; that needs `deep` (compiled) and `heavy` (not in the index)."""
    tmp_path = tmp_path_factory.mktemp("world")
    (wheels := tmp_path / "index").mkdir()
    make_wheel(
        wheels,
        "plain",
        "1.0",
        "py3-none-any",
        ("deep>=1", "heavy", 'nowhere; python_version < "3"', 'nothing; extra == "more"'),
    )
    make_wheel(wheels, "plain", "2.0", "py3-none-any", ("deep>=1",))
    make_wheel(wheels, "deep", "1.5", f"{COMPILED}-{COMPILED}-manylinux_2_17_{MACHINE}")
    make_wheel(wheels, "newer", "1.0", f"{COMPILED}-{COMPILED}-manylinux_2_34_{MACHINE}")
    (package := tmp_path / "project" / "mage").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text(
        '[project]\nname = "mage"\ndependencies = ["plain>=1"]\n'
    )
    (tmp_path / "project" / "constraints.txt").write_text("# pins\nPlain==1.0\n")
    (tmp_path / "project" / "results").mkdir()
    (tmp_path / "project" / "results" / "figures.txt").write_text("large")
    (tmp_path / "project" / "link.txt").symlink_to("results/figures.txt")
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys, plain, deep\nprint('mage', plain.version, deep.version, *sys.argv[1:])\n"
    )
    (model := tmp_path / "models" / "tiny").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes(range(256)) * 12_000)
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (variables | {"GIT_CEILING_DIRECTORIES": str(tmp_path)}).items():
            patch.setenv(name, value)
        for words in (["init", "-q"], ["add", "-A"]):
            subprocess.run(["git", *words], cwd=tmp_path / "project", check=True)
        (tmp_path / "project" / "untracked").write_text("not packed")
        yield tmp_path


def pack(world: Path, out: Path, *words: str, without: str = "heavy") -> int:
    fixed = ["--python", PYTHON, "--platform", TAG, "--project", str(world / "project")]
    return offline.main(["pack", *fixed, "--out", str(out), "--without", without, *words])


@pytest.fixture(scope="module")
def packed(world):
    """One pack for all tests, in parts of 1 MB."""
    model = world / "models" / "tiny"
    (data := world / "data" / "games").mkdir(parents=True)
    (data / "one.txt").write_text("game")
    also = ["--also", str(data), "--also", str(world / "project" / "constraints.txt")]
    words = ["--model", str(model), "--part-mb", "1", *also]
    assert pack(world, world / "pack", *words) == 0
    return world / "pack"


@pytest.fixture
def folder(packed, tmp_path):
    """A copy of the pack, which a test may break."""
    return Path(shutil.copytree(packed, tmp_path / "pack"))


def unpack(*words: str | Path, task: str = "unpack") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPTS / "offline.py", task, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=3600,
    )


def test_a_pack_in_parts_is_unpacked_installed_and_tested(folder, tmp_path):
    manifest = json.loads((folder / "manifest.json").read_text())
    sizes = [part["bytes"] for part in manifest["parts"]]
    assert len(sizes) > 2
    assert set(sizes[:-1]) == {PART}
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["manifest.json", "offline.py", *(part["name"] for part in manifest["parts"])]
    )
    assert [name.split("-")[:2] for name in manifest["wheels"]] == [
        ["deep", "1.5"],
        ["plain", "1.0"],
    ], "the pinned version, and what it needs"
    assert manifest["left_to_the_host"] == ["heavy"]
    done = unpack(folder, "--to", tmp_path / "host")
    assert done.returncode == 0, done.stderr
    assert "mage 1.0 1.5 --version" in done.stdout
    assert "mage 1.0 1.5 check kuhn_poker" in done.stdout
    assert (tmp_path / "host/models/tiny/model.safetensors").read_bytes() == bytes(
        range(256)
    ) * 12_000
    assert (tmp_path / "host/also/games/one.txt").read_text() == "game"
    assert (tmp_path / "host/also/constraints.txt").read_text().startswith("# pins")
    assert not (tmp_path / "host/project/untracked").exists()
    assert not (tmp_path / "host/project/results").exists(), "left out unless it is asked for"
    assert (tmp_path / "host/project/link.txt").read_text() == "large", "the file that a link names"
    shell = subprocess.run(
        ["sh", "-c", f". {tmp_path}/host/env.sh; mage; echo $MAGE_MODELS"],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert shell.stdout.splitlines() == ["mage 1.0 1.5", f"{tmp_path}/host/models"]
    assert "is not empty" in unpack(folder, "--to", tmp_path / "host").stderr


def test_missing_and_broken_parts_are_listed_before_unpacking(folder, tmp_path):
    (folder / "offline.tar.000").unlink()
    (folder / "offline.tar.001").write_bytes(b"short")
    third = bytearray((folder / "offline.tar.002").read_bytes())
    third[7] ^= 1
    (folder / "offline.tar.002").write_bytes(third)
    for done in (unpack(folder, "--to", tmp_path / "host"), unpack(folder, task="check")):
        assert done.returncode == 2
        assert "offline.tar.000 is missing" in done.stderr
        assert f"offline.tar.001 is broken: 5 bytes instead of {PART:,}" in done.stderr
        assert "offline.tar.002 is broken: its SHA-256 is not that of the pack" in done.stderr
        assert f"Copy these from the pack into {folder}" in done.stderr
    assert not (tmp_path / "host").exists()


def test_a_wheel_missing_for_the_platform_gives_one_clear_message(world, tmp_path, capsys):
    shutil.copytree(world / "project", tmp_path / "project")
    (tmp_path / "project" / "pyproject.toml").write_text(
        '[project]\nname = "mage"\ndependencies = ["newer"]\n'
    )
    assert pack(tmp_path, tmp_path / "pack") == 2
    told = capsys.readouterr().err
    assert f"no wheel of newer for Python {PYTHON} on {TAG}" in told
    assert "--without newer" in told
    assert [one.name for one in tmp_path.iterdir()] == ["project"], "nothing is left behind"


def test_a_file_that_is_not_there_is_refused(world, tmp_path, capsys):
    assert pack(world, tmp_path / "pack", "--also", str(tmp_path / "none")) == 2
    assert "none: there is no such file or folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_pack_for_another_python_is_refused(folder, tmp_path):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"python": "3.99"}))
    done = unpack(folder, "--to", tmp_path / "host")
    assert (done.returncode, "the wheels are for Python 3.99" in done.stderr) == (2, True)


def test_missing_packages_of_the_host_are_reported(world, tmp_path):
    assert pack(world, tmp_path / "pack", without="heavy,deep") == 0
    done = unpack(tmp_path / "pack", "--to", tmp_path / "host")
    assert done.returncode == 2
    assert "No module named 'deep'" in done.stderr
    assert "The host must have these packages: deep, heavy" in done.stderr


def test_a_newer_glibc_accepts_wheels_of_older_ones():
    """PEP 600: manylinux2014 is glibc 2.17, manylinux2010 2.12, manylinux1 2.5."""
    tags = offline.platforms_below("manylinux_2_18_x86_64")
    assert tags[:4] == [
        "manylinux_2_18_x86_64",
        "manylinux_2_17_x86_64",
        "manylinux2014_x86_64",
        "manylinux_2_16_x86_64",
    ]
    assert {"manylinux2010_x86_64", "manylinux1_x86_64"} < set(tags)
    with pytest.raises(offline.UsageError, match="--platform win_amd64 is not valid"):
        offline.platforms_below("win_amd64")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside.txt", tarfile.REGTYPE),
        ("inside/../../outside.txt", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("link", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
    ],
)
def test_an_archive_writes_nothing_outside_its_target(tmp_path, name, kind):
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.linkname = kind, 4, "../../outside.txt"
    with tarfile.open(tmp_path / "part", "w") as archive:
        archive.addfile(entry, io.BytesIO(b"evil"))
    with pytest.raises(offline.UsageError, match="was not made by this script"):
        offline.extract([tmp_path / "part"], tmp_path / "a" / "target")
    assert {path.name for path in tmp_path.rglob("*")} == {"part", "a", "target"}


def test_wheels_are_chosen_by_the_conditions_of_the_host_not_of_this_machine():
    host = offline.Host("3.12", ["manylinux_2_28_x86_64"], frozenset(), {"numpy": "2.0"})

    def is_needed(condition: str) -> bool:
        return offline._read_requirement(f"numpy; {condition}", "", host)[1:] == (
            "numpy==2.0",
            {""},
        )

    assert is_needed('platform_machine == "x86_64" and sys_platform == "linux"')
    assert is_needed('python_version >= "3.12" and os_name == "posix"')
    assert not is_needed('platform_machine == "aarch64"')
    assert not is_needed('python_version < "3.12"')


@pytest.mark.e2e
def test_this_checkout_is_packed_and_unpacked_and_works(tmp_path):
    """The host has every package; so no network is needed, and the project is that of the pack."""
    if not (ROOT / ".git").exists():
        pytest.skip("git lists the files, and this is not a git repository")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["gguf"]]
    names = ",".join(re.split("[<>=~! ]", text)[0] for text in needed)
    pack = ["pack", "--python", PYTHON, "--platform", TAG, "--out", str(tmp_path / "pack")]
    assert offline.main([*pack, "--without", names, "--part-mb", "5"]) == 0
    done = unpack(tmp_path / "pack", "--to", tmp_path / "host")
    assert done.returncode == 0, done.stderr
    links = [path for path in (tmp_path / "host").rglob("*") if path.is_symlink()]
    large = [f"{tmp_path}/host/project/{start}" for start in offline.LARGE.values()]
    assert (links, [path for path in large if os.path.exists(path)]) == ([], [])
    assert "kuhn_poker: no faults" in done.stdout
    weights = "mage/models/shipped/embedded/model.safetensors"
    assert (tmp_path / "host/project" / weights).read_bytes() == (ROOT / weights).read_bytes()
