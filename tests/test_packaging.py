"""The distribution: a wheel and an sdist are built, and the wheel works in an empty folder."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import mage
from tests.marks import end_to_end

ROOT = Path(mage.__file__).parents[1]


def run(*words: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | environment,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_distribution_is_mage_rl_and_the_command_is_mage():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "mage-rl"
    assert project["scripts"] == {"mage": "mage.cli.main:main"}
    assert project["requires-python"] == ">=3.11"
    assert f"## {mage.__version__} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
@end_to_end
def built(tmp_path_factory):
    """A wheel and an sdist, built from a copy of the tracked files without a network."""
    pytest.importorskip("build")
    if not (ROOT / ".git").exists():
        pytest.skip("git lists the files, and this is not a git repository")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    tracked = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
    for name in tracked:
        top = name.split("/")[0]
        if (ROOT / name).is_file() and top in ("mage", "pyproject.toml", "README.md", "LICENSE"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
            if name.endswith(".safetensors"):
                os.truncate(source / name, 1_000)  # no test reads them; to pack them takes seconds
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, cwd=source)
    return out


@pytest.mark.e2e
def test_wheel_and_sdist_hold_every_file_that_is_needed(built):
    wheel = zipfile.ZipFile(next(built.glob("mage_rl-*.whl"))).namelist()
    needed = (
        "mage/py.typed",
        "mage/__init__.pyi",
        "mage/recipes/kuhn_poker.toml",
        "mage/recipes/parts/mage.toml",
        "mage/cli/templates/environment.py.txt",
        "mage/models/shipped/embedded/model.safetensors",
    )
    assert [name for name in needed if name not in wheel] == []
    tracked = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mage").rglob("*.py")}
    assert tracked <= set(wheel)
    with tarfile.open(next(built.glob("mage_rl-*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "README.md", "mage/recipes/kuhn_poker.toml"} <= set(names)


@pytest.mark.e2e
def test_the_installed_wheel_works_in_an_empty_folder(built, tmp_path):
    """The environment is empty but for the dependencies, which a path file shows to it."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
        ).strip()
    )
    wheel = next(built.glob("mage_rl-*.whl"))
    install = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(sys.executable, *install, "--no-compile", wheel, cwd=tmp_path)
    (site / "zz_dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    (tmp_path / "empty").mkdir()
    command = tmp_path / "venv" / "bin" / "mage"
    version = run(command, "--version", cwd=tmp_path / "empty")
    assert version == f"mage {mage.__version__}\n"
    place = run(python, "-c", "import mage; print(mage.__file__)", cwd=tmp_path / "empty")
    assert Path(place.strip()).is_relative_to(site)
    assert "kuhn_poker" in run(command, "list", "recipes", cwd=tmp_path / "empty")
    run(command, "check", "kuhn_poker", "--games", "3", cwd=tmp_path / "empty")
    run(command, "new", "opponent", "lefty", cwd=tmp_path / "empty")
