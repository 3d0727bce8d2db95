"""Write docs/options.md: every option, menu item, recipe and part, from the option tree.

    python scripts/write_options.py

`tests/test_docs.py` compares the page with the option tree.
"""

from collections.abc import Mapping
from pathlib import Path

import mage
from mage import Item
from mage.api.menus import ItemOption

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"
MENUS = {
    "environments": "Environments",
    "opponents": "Opponents",
    "memory": "Memories",
    "engines": "Engines",
    "advantages": "Estimators of advantages",
}
# The options that most people set, by section; the page begins with them.
MOST_USED = {
    "run": "name seed updates workers device evaluate_every",
    "model": "path",
    "environments": "name restart",
    "opponents": "train",
    "play": "episodes groups members",
    "agent": "max_tokens reflection_tokens temperature window",
    "memory": "name keep",
    "engines": "name context slots",
    "returns": "kind step_discount episode_discount",
    "advantages": "name anchor step_weight",
    "learn": "lr warmup decay minibatches kl entropy entropy_final lora_rank micro_tokens",
    "evaluate": "size final_size splits episodes temperature",
    "warmup": "first play steps lr",
}
HEAD = """# Options

This page is written by `python scripts/write_options.py`. `mage show RECIPE` shows the value of
every option of a recipe, and `mage list options` shows this list in the terminal. Change an option
with `--section.option=value`, for example `mage train demo --run.seed=2`.
"""


def page() -> str:
    """The text of the page."""
    listed = mage.list("options")
    sections = [_section(item) for item in listed]
    menus = [_menu(kind, title) for kind, title in MENUS.items()]
    files = [_files(kind) for kind in ("recipes", "parts")]
    return "\n".join(
        [HEAD, _most_used(listed), "## All sections of a recipe\n", *sections, *menus, *files]
    )


def _most_used(sections: list[Item]) -> str:
    """One table of the options that most people set."""
    known = {f"{item.name}.{one.name}": one for item in sections for one in item.options}
    chosen = [f"{section}.{name}" for section, names in MOST_USED.items() for name in names.split()]
    return f"## Options that most people set\n\n{_options({name: known[name] for name in chosen})}"


def _section(item: Item) -> str:
    options = _options({one.name: one for one in item.options})
    return f"### [{item.name}]\n\n{item.description}\n\n{options}"


def _options(options: Mapping[str, ItemOption]) -> str:
    rows = [
        f"| `{name}` | {_cell(one.default)} | {_text(one.description)} |"
        for name, one in options.items()
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows, ""])


def _menu(kind: str, title: str) -> str:
    parts = [f"## {title}\n"]
    for item in mage.list(kind):
        plays = f" Plays {', '.join(item.plays)}." if item.plays else ""
        parts.append(f"### {item.name}\n\n{item.description}{plays}\n")
        if item.options:
            parts.append(_options({one.name: one for one in item.options}))
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
