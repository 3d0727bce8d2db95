"""Packing for a machine without a network: a small project with hand-made wheels and real pip."""

import io
import json
import platform
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
COMPILED = f"cp{sys.version_info[0]}{sys.version_info[1]}"
MACHINE = platform.machine()
TAG = f"manylinux_2_28_{MACHINE}"

sys.path.insert(0, str(SCRIPTS))
import pack_offline  # noqa: E402
import unpack_offline  # noqa: E402


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


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that needs `plain`; that needs `deep` (compiled) and `heavy` (not in the index)."""
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
    (tmp_path / "project" / ".venv").mkdir()
    (tmp_path / "project" / ".venv" / "big").write_text("not packed")
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys, plain, deep\nprint('mage', plain.version, deep.version, *sys.argv[1:])\n"
    )
    (model := tmp_path / "models" / "tiny").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    for name, value in (
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(wheels)),
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("GIT_CEILING_DIRECTORIES", str(tmp_path)),
    ):
        monkeypatch.setenv(name, value)
    return tmp_path


def pack(world: Path, *words: str, without: str = "heavy", out: str = "pack") -> Path:
    fixed = [
        "--python",
        PYTHON,
        "--platform",
        TAG,
        "--project",
        str(world / "project"),
        "--out",
        str(world / out),
        "--without",
        without,
    ]
    pack_offline.main([*fixed, *words])
    return world / out


def unpack(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPTS / "unpack_offline.py", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.e2e
def test_a_pack_in_parts_is_unpacked_installed_and_tested(world: Path) -> None:
    folder = pack(world, "--model", str(world / "models" / "tiny"), "--part-size", "4kB")
    manifest = json.loads((folder / "manifest.json").read_text())
    sizes = [part["bytes"] for part in manifest["parts"]]
    assert len(sizes) > 2
    assert set(sizes[:-1]) == {4000}
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["manifest.json", "unpack_offline.py", *(part["name"] for part in manifest["parts"])]
    )
    assert [name.split("-")[:2] for name in manifest["wheels"]] == [
        ["deep", "1.5"],
        ["plain", "1.0"],
    ], "the pinned version, and what it needs"
    assert manifest["left_to_the_host"] == ["heavy"]
    done = unpack(folder, "--to", world / "host")
    assert done.returncode == 0, done.stderr
    assert "mage 1.0 1.5 --version" in done.stdout
    assert "mage 1.0 1.5 check kuhn_poker" in done.stdout
    assert (world / "host/models/tiny/model.safetensors").read_bytes() == bytes(range(256)) * 40
    assert not (world / "host/project/.venv").exists()
    shell = subprocess.run(
        ["sh", "-c", f". {world}/host/env.sh; mage; echo $MAGE_MODELS"],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert shell.stdout.splitlines() == ["mage 1.0 1.5", f"{world}/host/models"]
    assert "is not empty" in unpack(folder, "--to", world / "host").stderr


@pytest.mark.e2e
def test_parts_are_collected_one_at_a_time_and_broken_ones_are_not_kept(world: Path) -> None:
    folder = pack(world, "--part-size", "6kB")
    names = [part["name"] for part in json.loads((folder / "manifest.json").read_text())["parts"]]
    (delivery := world / "stick").mkdir()
    (folder / "manifest.json").rename(delivery / "manifest.json")
    (folder / names[1]).rename(delivery / names[1])
    first = unpack(delivery, "--collect", world / "store")
    assert first.returncode == 1
    assert f"kept {names[1]}" in first.stdout
    assert f"missing {len(names) - 1} of {len(names)}: {names[0]}" in first.stdout
    whole = (folder / names[0]).read_bytes()
    (delivery / names[0]).write_bytes(b"x" + whole[1:])
    assert (
        f"{names[0]} is broken: its SHA-256"
        in unpack(delivery, "--collect", world / "store").stdout
    )
    assert not (world / "store" / names[0]).exists()
    last = unpack(folder, "--collect", world / "store")
    assert last.returncode == 0
    assert f"all {len(names)} parts are in" in last.stdout
    assert unpack(world / "store", "--check").returncode == 0


@pytest.mark.e2e
def test_missing_and_broken_parts_are_listed_before_unpacking(world: Path) -> None:
    folder = pack(world, "--part-size", "4kB")
    (folder / "offline.tar.000").unlink()
    (folder / "offline.tar.001").write_bytes(b"short")
    done = unpack(folder, "--to", world / "host")
    assert done.returncode == 2
    assert "offline.tar.000 is missing" in done.stderr
    assert "offline.tar.001 is broken: 5 bytes instead of 4,000" in done.stderr
    assert not (world / "host").exists()


@pytest.mark.e2e
def test_a_wheel_missing_for_the_platform_gives_one_clear_message(world: Path) -> None:
    (world / "project" / "pyproject.toml").write_text(
        '[project]\nname = "mage"\ndependencies = ["newer"]\n'
    )
    with pytest.raises(
        pack_offline.UsageError,
        match=rf"no wheel of newer for Python {PYTHON} on {TAG}.*--without newer",
    ):
        pack(world)
    assert not (world / "pack").exists()
    assert not list(world.glob(".pack*")), "nothing is left behind"


@pytest.mark.e2e
def test_a_pack_for_another_python_is_refused(world: Path) -> None:
    folder = pack(world)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"python": "3.99"}))
    done = unpack(folder, "--to", world / "host")
    assert (done.returncode, "the wheels are for Python 3.99" in done.stderr) == (2, True)


@pytest.mark.e2e
def test_missing_packages_of_the_host_are_reported(world: Path) -> None:
    folder = pack(world, without="heavy,deep")
    done = unpack(folder, "--to", world / "host")
    assert done.returncode == 2
    assert "No module named 'deep'" in done.stderr
    assert "The host must have these packages: deep, heavy" in done.stderr


def test_a_newer_glibc_accepts_wheels_of_older_ones() -> None:
    """PEP 600: manylinux2014 is glibc 2.17, manylinux2010 2.12, manylinux1 2.5."""
    tags = pack_offline.platforms_below(["manylinux_2_18_x86_64"])
    assert tags[:4] == [
        "manylinux_2_18_x86_64",
        "manylinux_2_17_x86_64",
        "manylinux2014_x86_64",
        "manylinux_2_16_x86_64",
    ]
    assert {"manylinux2010_x86_64", "manylinux1_x86_64"} < set(tags)
    assert "manylinux_2_17_aarch64" in pack_offline.platforms_below(["manylinux2014_aarch64"])
    assert pack_offline.platforms_below(["macosx_11_0_arm64"]) == ["macosx_11_0_arm64"]


@pytest.mark.parametrize(
    ("text", "size"), [("60MB", 60_000_000), ("1.5 kB", 1500), ("64MiB", 64 * 2**20), ("12", 12)]
)
def test_sizes_with_units_are_read(text: str, size: int) -> None:
    assert pack_offline.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "60 parsecs", "0MB", "-1MB"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(pack_offline.UsageError, match="--part-size"):
        pack_offline.parse_size(text)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside.txt", tarfile.REGTYPE),
        ("/outside.txt", tarfile.REGTYPE),
        ("inside/../../outside.txt", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("link", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
    ],
)
def test_an_archive_writes_regular_files_below_its_target_only(
    tmp_path: Path, name: str, kind: bytes
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.linkname = kind, 4, "../../outside.txt"
    with tarfile.open(tmp_path / "part", "w") as archive:
        archive.addfile(entry, io.BytesIO(b"evil"))
    (target := tmp_path / "a" / "target").mkdir(parents=True)
    with pytest.raises(unpack_offline.UsageError, match="not a regular file below the target"):
        unpack_offline.unpack(tmp_path, {"parts": [{"name": "part"}]}, target)
    assert {path.name for path in tmp_path.rglob("*")} == {"part", "a", "target"}
