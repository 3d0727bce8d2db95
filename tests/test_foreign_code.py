"""A run folder may come from a stranger: opening it never runs code that it names."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.config.menus import find_item
from mage.run_folder import RunFolder
from mage.run_folder.files import file_digest, read_json, write_sealed
from mage.run_folder.turn_files import write_credits
from tests.toys import meta

OWN = """
from pathlib import Path
from typing import ClassVar
Path("ran").write_text("yes")
from mage.environments.kuhn_poker import KuhnPoker


class Own(KuhnPoker):
    name: ClassVar[str] = "own"
"""


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    """Each test has its own folder and path of modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def stranger(tmp_path):
    """A run of one update, with code in the run folder and code beside the runs."""
    run = RunFolder.create(tmp_path / "runs" / "stranger", load_recipe("kuhn_poker"))
    run.append_metrics({"update": 1, "score": 0.25})
    run.write_episodes(1, [meta((1.0, -1.0), group=3)])
    write_credits(run.path, 1, [])
    (tmp_path / "lab_beside.py").write_text(OWN)
    (run.path / "helper.py").write_text(OWN)
    return run.path


def name_item(run: Path, item: str) -> None:
    """Name an item in the recipe, and forget its checksum, as a stranger can."""
    recipe = run / "recipe.toml"
    text = recipe.read_text().replace('name = "kuhn_poker"', f'name = "{item}"', 1)
    assert item in text
    recipe.write_text(text)
    data = read_json(run / "versions.json")
    data.pop("sha256", None)
    data["recipe_sha256"] = file_digest(run / "recipe.toml")
    write_sealed(run / "versions.json", data)


@pytest.mark.parametrize("item", ["lab_beside", "runs.stranger.helper"])
@pytest.mark.parametrize(
    "words",
    [
        ("check", "runs/stranger"),
        ("report", "runs/stranger"),
        ("export", "runs/stranger", "--out", "turns.jsonl"),
        ("view", "runs", "--export", "page"),
    ],
    ids=lambda words: words[0],
)
def test_readers_run_no_foreign_code(stranger, tmp_path, no_pictures, words, item):
    name_item(stranger, f"{item}.Own")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "ran").exists()


def test_playing_refuses_code_of_a_run_folder(stranger, tmp_path):
    name_item(stranger, "runs.stranger.helper.Own")
    recipe = RunFolder.open(stranger).recipe
    with pytest.raises(ConfigError, match="is code in the run folder"):
        recipe.environment()
    with pytest.raises(ConfigError, match="is code in the run folder"):
        recipe.changed(play={"episodes": 2})
    assert not (tmp_path / "ran").exists()


def test_opening_a_run_imports_no_reward_functions(stranger, tmp_path):
    recipe = stranger / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("[play]", '[play]\nrewards = ["lab_beside.x"]', 1))
    name_item(stranger, "kuhn_poker")
    assert RunFolder.open(stranger).recipe.play.rewards
    assert not (tmp_path / "ran").exists()


def test_own_code_beside_the_runs_still_plays(tmp_path):
    (tmp_path / "lab_of_test.py").write_text(OWN)
    recipe = load_recipe("kuhn_poker", ["--environments.name=lab_of_test.Own"])
    folder = RunFolder.create(tmp_path / "run", recipe)
    assert RunFolder.open(folder.path).recipe == recipe
    assert RunFolder.open(folder.path).recipe.environment().name == "own"
    assert folder.forfeit_score() == recipe.environment().forfeit_score


def test_the_forfeit_score_may_be_a_number_of_numpy(tmp_path):
    more = "    @property\n    def forfeit_score(self):\n        return numpy.float32(-0.5)\n"
    (tmp_path / "lab_numpy.py").write_text(f"import numpy\n{OWN}{more}")
    recipe = load_recipe("kuhn_poker", ["--environments.name=lab_numpy.Own"])
    assert RunFolder.create(tmp_path / "run", recipe).forfeit_score() == -0.5


def test_a_link_into_a_run_folder_is_refused(tmp_path):
    run = RunFolder.create(tmp_path / "run", load_recipe("kuhn_poker"))
    (run.path / "trick.py").write_text(OWN)
    (tmp_path / "linked.py").symlink_to(run.path / "trick.py")
    with pytest.raises(ConfigError, match="is code in the run folder"):
        find_item("environments", "linked.Own")


@pytest.fixture
def two_labs(tmp_path, monkeypatch):
    """The current folder and an installed one hold a package of the same name."""
    for place in ("installed", "here"):
        package = tmp_path / place / "lab_twice"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "own.py").write_text(OWN.replace('"own"', f'"{place}"'))
    monkeypatch.chdir(tmp_path / "here")
    sys.path.append(str(tmp_path / "installed"))
    yield
    for name in ("lab_twice", "lab_twice.own"):
        sys.modules.pop(name, None)


def test_a_package_of_the_current_folder_comes_before_an_installed_one(two_labs, tmp_path):
    before = [*sys.path]
    assert find_item("environments", "lab_twice.own").name == "here"
    assert sys.path == [*before[:-1], str(tmp_path / "here"), before[-1]]
    assert find_item("environments", "lab_twice.own.Own").name == "here"
    assert len(sys.path) == len(before) + 1


def test_files_of_the_current_folder_never_come_before_installed_packages(two_labs, monkeypatch):
    """A copy on PYTHONPATH comes first in `sys.path`, so the message names both."""
    monkeypatch.setattr(sys, "path", [sys.path[-1], *sys.path[:-1]])
    with pytest.raises(ConfigError, match=r"lab_twice is in two places: .*installed.*here"):
        find_item("environments", "lab_twice.own")
    assert sys.path[-1] == str(Path.cwd())


def test_a_file_that_another_package_hides_is_named(two_labs, tmp_path):
    """Python prefers a package with an `__init__.py`, whatever comes first."""
    (tmp_path / "here" / "lab_twice" / "__init__.py").unlink()
    with pytest.raises(ConfigError, match=r"lab_twice.own is in two places: .*installed.*here"):
        find_item("environments", "lab_twice.own")


@pytest.mark.parametrize(
    ("folder", "base", "missing"),
    [
        ("environments", "mage.environments.base.Environment", r"rules\(\) and start"),
        ("opponents", "mage.opponents.base.Opponent", "policy"),
        ("memory", "mage.memory.base.Memory", r"open\(\) and reflects"),
    ],
)
def test_a_class_without_a_method_is_one_message(folder, base, missing):
    module, _, kind = base.rpartition(".")
    name = f"bare_{folder}"
    Path(f"{name}.py").write_text(
        f"from typing import ClassVar\nfrom {module} import {kind}\n\n\n"
        f"class Bare({kind}):\n    name: ClassVar[str] = 'bare'\n"
    )
    with pytest.raises(ConfigError, match=rf"the class Bare in {name}\.py has no .*{missing}"):
        find_item(folder, f"{name}.Bare")
