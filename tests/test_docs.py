"""The documentation: links exist, commands are valid, code runs, the page of options is current."""

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from click import ClickException
from processes import start_python, wait

import mage
from mage.cli.arguments import split_words
from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.config.recipe import Recipe
from mage.environments.base import Environment

ROOT = Path(mage.__file__).parents[1]
LOG = ROOT / "docs" / "log"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "examples" / "my_lab" / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent != LOG),
]
NOTEBOOK = ROOT / "examples" / "train_and_plot.ipynb"
# What stands for something of the reader's own: such a recipe cannot be loaded here.
STANDS_FOR = re.compile(
    r"my_\w+[./]|my_model|my_agent|path/to|NAME|HOST|RECIPE|nim\.toml|market\.toml|smollm2|/warm"
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def commands(path: Path) -> Iterator[list[str]]:
    """The command lines of a page, comments removed and continued lines joined."""
    for block in blocks(path, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def test_the_readme_is_short_and_every_page_is_in_the_navigation_of_the_site():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in navigation] == []
    assert [path for path in (ROOT / "docs").rglob("*") if path.is_symlink()] == []


def test_tables_of_results_have_short_cells():
    pages = [*(ROOT / "docs" / "results").glob("*.md"), *(ROOT / "results").rglob("*.md")]
    for page in (ROOT / "README.md", ROOT / "docs" / "experiments.md", *pages):
        if page.parent.name not in ("report", "paper_small", "returns_small", "roshambo"):
            rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
            cells = [cell for row in rows for cell in row.strip("|").split("|")]
            assert [cell for cell in cells if len(cell.split()) > 20] == [], page


@cache
def headings(page: Path) -> set[str]:
    """The anchors of a page, as the site makes them."""
    found: list[str] = []
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for title in re.findall(r"^#+ (.*)", text, re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", title.encode("ascii", "ignore").decode()).strip().lower()
        anchor = re.sub(r"[-\s]+", "-", plain)
        count = sum(re.fullmatch(rf"{re.escape(anchor)}(_\d+)?", one) is not None for one in found)
        found.append(f"{anchor}_{count}" if count else anchor)
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_linked_files_and_headings_exist(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            linked = (page.parent / target if target else page).resolve()
            assert linked.exists(), target
            assert not anchor or anchor in headings(linked), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_valid(page):
    """`mage` commands are parsed, and their recipes are loaded; other commands must exist."""
    for words in commands(page):
        if words[0] == "mage":
            check_mage(words[1:])
        elif words[0] == "make":
            targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(words[1:]) <= set(targets), words
        elif words[0].startswith("python") and words[1].endswith(".py"):
            folder = "examples" if words[1].startswith("examples/") else "scripts"
            assert (ROOT / folder / Path(words[1]).name).is_file(), words
        elif words[0] == "pytest":
            assert all((ROOT / word).is_file() for word in words if word.endswith(".py")), words
        else:
            known = ("python", "pip", "source", ".", "export", "alfworld-download", "gdown")
            assert words[0].startswith(known) or words[0] in OTHERS, words


OTHERS = {"torchrun", "mkdir", "cd", "unzip", "sbatch", "srun", "curl", "tar", "xz"}


@cache
def group_of_commands() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("name", ["jobs_qwen", "jobs_4b", "jobs_small"])
def test_commands_of_job_lists_are_valid(name):
    """Every `mage` command of benchmarks/jobs_*.toml, with the variables of its shell."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from gpu_jobs import read_jobs

    for job in read_jobs(ROOT / "benchmarks" / f"{name}.toml").values():
        text = job.command.replace("\\\n", "").replace("{minutes}", "5").replace("$memory", "none")
        text = re.sub(r"\{work\}/(\w+)/(runs|adapters)", r"runs/\1", text)
        if found := re.search(r'E="(.*)"', text):
            text = text.replace(found[0], "").replace("$E", found[1])
        for line in re.findall(r"\bmage [^|;\n]*", text):
            check_mage(shlex.split(re.sub(r"\$\{?seed\}?", "1", line))[1:])


def check_mage(words: list[str]) -> None:
    group = group_of_commands()
    if words and words[0].startswith("-"):
        group.make_context("mage", [words[0]], resilient_parsing=True)
        return
    command = group.get_command(None, words[0])
    assert command is not None, f"there is no command mage {words[0]}"
    rest = words[1:]
    if words[0] == "model":
        command, rest = command.get_command(None, words[1]), words[2:]
        assert command is not None, words
    try:
        context = command.make_context(words[0], list(rest), resilient_parsing=False)
    except ClickException as error:
        raise AssertionError(f"mage {shlex.join(words)}: {error.format_message()}") from None
    if words[0] in ("train", "warmup", "show", "evaluate"):
        first = context.params.get("recipe") or context.params.get("what")
        check_recipe(*split_words(first, context.args))


def check_recipe(name: str | None, overrides: list[str]) -> None:
    known = {item.name for item in mage.list("recipes")}
    if name is None or STANDS_FOR.search(" ".join([name, *overrides])) or "runs/" in name:
        return
    assert name.split("+")[0] in known, f"there is no recipe {name}"
    load_recipe(name, overrides)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_recipes_in_pages_have_known_sections_and_options(page):
    known = {item.name: {one.name for one in item.options} for item in mage.list("options")}
    recipes = [tomllib.loads(block) for block in blocks(page, "toml")]
    stages = [stage for recipe in recipes for stage in recipe.pop("stages", [])]
    for tables in (*recipes, *stages):
        for section, options in tables.items():
            if section in ("base", "name", "parts", "jobs"):  # jobs: of scripts/gpu_jobs.py
                continue
            assert section in known, f"{page}: [{section}]"
            if section in ("environments", "memory", "advantages", "engines", "opponents"):
                continue  # the item decides; recipes of the package are loaded elsewhere
            assert set(options) <= known[section], f"{page}: [{section}] {options}"


def test_the_page_of_options_is_current():
    sys.path.insert(0, str(ROOT / "scripts"))
    import write_options

    assert write_options.PAGE.read_text() == write_options.page(), (
        "run python scripts/write_options.py"
    )


def run_python(program: str, folder: Path) -> None:
    """Run a program in a process; reports of its runs have empty pictures."""
    log, begin = folder / "program.log", "from tests.pictures import skip_pictures as skip; skip()"
    assert wait(start_python(f"{begin}\n{program}", folder, log)) == 0, log.read_text()


@pytest.mark.e2e
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_run(page, tmp_path):
    run_python("\n\n".join(blocks(page, "python")), tmp_path)


@pytest.mark.e2e
def test_the_notebook_runs(tmp_path):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 4
    run_python("\n\n".join(code), tmp_path)
    assert (tmp_path / "scores.png").is_file()


def test_docs_name_only_records_that_exist():
    """Words of the contract that the tutorials promise."""
    promised = {"start", "rules", "instance", "example_action", "forfeit_score"}
    assert promised <= set(Environment.__abstractmethods__)
    sections = {field.alias or name for name, field in Recipe.model_fields.items()}
    assert {"environments", "memory"} <= sections
