"""Write docs/options.md: every option, menu item, recipe and part, from the option tree.

    python scripts/write_options.py

`tests/test_docs.py` compares the page with the option tree.
"""

from pathlib import Path

import mage
from mage import Item

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"
MENUS = {
    "environments": "Environments",
    "opponents": "Opponents",
    "memory": "Memories",
    "engines": "Engines",
    "advantages": "Estimators of advantages",
}
HEAD = """# Options

This page is written by `python scripts/write_options.py`. `mage show RECIPE` shows the value of
every option of a recipe, and `mage list options` shows this list in the terminal.
"""


def page() -> str:
    """The text of the page."""
    sections = [_section(item) for item in mage.list("options")]
    menus = [_menu(kind, title) for kind, title in MENUS.items()]
    files = [_files(kind) for kind in ("recipes", "parts")]
    return "\n".join([HEAD, "## Sections of a recipe\n", *sections, *menus, *files])


def _section(item: Item) -> str:
    return f"### [{item.name}]\n\n{item.description}\n\n{_options(item)}"


def _options(item: Item) -> str:
    rows = [
        f"| `{one.name}` | {_cell(one.default)} | {_text(one.description)} |"
        for one in item.options
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows, ""])


def _menu(kind: str, title: str) -> str:
    parts = [f"## {title}\n"]
    for item in mage.list(kind):
        plays = f" Plays {', '.join(item.plays)}." if item.plays else ""
        parts.append(f"### {item.name}\n\n{item.description}{plays}\n")
        if item.options:
            parts.append(_options(item))
    return "\n".join(parts)


def _files(kind: str) -> str:
    rows = [f"| `{item.name}` | {_text(item.description)} |" for item in mage.list(kind)]
    return "\n".join([f"## {kind.capitalize()}\n", "| name | content |", "|---|---|", *rows, ""])


def _cell(value: object) -> str:
    return "" if value is None or value == "" else f"`{_text(str(value))}`"


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
