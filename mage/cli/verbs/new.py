"""`mage new`: write the file of a new environment, opponent, memory or estimator, and its test."""

import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from mage.cli.terminal import UsageError, console

verbs = typer.Typer()
Kind = Literal["environment", "opponent", "memory", "estimator"]
TEMPLATES = Path(__file__).parents[1] / "templates"
USE = {
    "environment": 'name = "{}" in [environments]',
    "opponent": '"{}" = 1.0 in [opponents.train]',
    "memory": 'name = "{}" in [memory]',
    "estimator": 'name = "{}" in [advantages]',
}


@verbs.command(epilog="Example: mage new environment nim")
def new(
    kind: Annotated[Kind, typer.Argument(help="What to write.", show_choices=True)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: letters, digits, _.")],
    package: Annotated[
        str, typer.Option(metavar="FOLDER", help="Package in the current folder.")
    ] = "my_lab",
) -> None:
    """Write a working item and its test into a package of the current folder.

    The item can be used at once by its dotted path. Nothing has to be registered.
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
    present = [str(path) for path in texts if path.exists()]
    if present:
        raise UsageError(f"{', '.join(present)} exists already. Choose another NAME.")
    folder.mkdir(exist_ok=True)
    if not (folder / "__init__.py").exists():
        texts = {folder / "__init__.py": f'"""Items of {package} for MAGE."""\n'} | texts
    for path, text in texts.items():
        path.write_text(text)
        console().print(f"wrote {path}", markup=False, soft_wrap=True)
    path_name = f"{package}.{name}"
    console().print(f"in a recipe: {USE[kind].format(path_name)}", markup=False, soft_wrap=True)
    console().print(f"test it: python -m pytest {folder / f'test_{name}.py'}", markup=False)


def _fill(template: str, name: str, package: str) -> str:
    words = {"name": name, "package": package, "Class": name.title().replace("_", "")}
    return Template((TEMPLATES / template).read_text()).substitute(words)
