"""A table for the terminal. This file imports nothing heavy, so `mage list` starts fast."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

GAP = 2  # blanks between columns


def plain_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, group: int = 0
) -> RenderableType:
    """Text is aligned left, figures right; a rule follows if the first `group` cells change."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False)
    for number, name in enumerate(header):
        figures = all(row[number][:1] in "+-0123456789" for row in rows)
        made.add_column(name, justify="right" if figures and rows else "left", overflow="fold")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        cells = map(Text, row)  # plain text: brackets must not be read as markup
        made.add_row(*cells, end_section=following is not None and row[:group] != following[:group])
    return Group(Text(title, style="bold"), made) if title else made
