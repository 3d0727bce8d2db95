"""`mage new`: write a new environment, opponent, memory or estimator with its test and recipe."""

import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from mage.cli.terminal import UsageError, console

verbs = typer.Typer()
Kind = Literal["environment", "single_agent", "opponent", "memory", "estimator"]
TEMPLATES = Path(__file__).parents[1] / "templates"
# What comes next, in the words of the command line. {0} is the dotted path, {1} the recipe.
NEXT = {
    "environment": ("mage check {0}", "mage play {0} --against random", "mage train {1}"),
    "single_agent": ("mage check {0}", "mage play {0}", "mage train {1}"),
    "opponent": (
        "mage check {0} --environment tic_tac_toe",
        "mage play tic_tac_toe --against {0}",
        "mage train start --opponents.train={0}",
    ),
    "memory": ("mage train start --memory.name={0}",),
    "estimator": ("mage train start --advantages.name={0}",),
}


@verbs.command(epilog="Example: mage new single_agent maze")
def new(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="What to write. An environment has two players, single_agent is one without "
            "opponents.",
            show_choices=True,
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: letters, digits, _.")],
    package: Annotated[
        str, typer.Option(metavar="FOLDER", help="Package in the current folder.")
    ] = "my_lab",
) -> None:
    """Write a working item, its test and its recipe into a package of the current folder.

    The item can be used at once by its dotted path. Nothing has to be registered. The commands
    that come next are printed.
    """
    for word, given in (("NAME", name), ("--package", package)):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", given):
            raise UsageError(
                f"{word} {given} is not valid. Use lower-case letters, digits and underscores, "
                "as in nim or tit_for_tat."
            )
        if keyword.iskeyword(given):
            raise UsageError(
                f"{word} {given} is a word of Python itself, so {given}.py could not be imported. "
                "Choose another name."
            )
    folder = Path(package)
    texts = {
        folder / f"{name}.py": _fill(f"{kind}.py.txt", name, package),
        folder / f"test_{name}.py": _fill(f"{kind}_test.py.txt", name, package),
    }
    recipe = folder / f"{name}.toml"
    if (TEMPLATES / f"{kind}.toml.txt").is_file():
        texts[recipe] = _fill(f"{kind}.toml.txt", name, package)
    present = [str(path) for path in texts if path.exists()]
    if present:
        raise UsageError(f"{', '.join(present)} exists already. Choose another NAME.")
    folder.mkdir(exist_ok=True)
    if not (folder / "__init__.py").exists():
        texts = {folder / "__init__.py": f'"""Items of {package} for MAGE."""\n'} | texts
    for path, text in texts.items():
        path.write_text(text)
        console().print(f"wrote {path}", markup=False, soft_wrap=True)
    test = f"python -m pytest {folder / f'test_{name}.py'}"
    then = [line.format(f"{package}.{name}", recipe) for line in NEXT[kind]]
    console().print("The item works as it is. Next, in this folder:")
    for line in (test, *then):
        console().print(f"  {line}", markup=False, soft_wrap=True)


def _fill(template: str, name: str, package: str) -> str:
    words = {"name": name, "package": package, "Class": name.title().replace("_", "")}
    return Template((TEMPLATES / template).read_text()).substitute(words)
