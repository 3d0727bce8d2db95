"""A table for the terminal. Apart from the results it may hold, so that showing a menu loads nothing heavy."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

GAP = 2  # blanks between columns


def plain_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, group: int = 0
) -> RenderableType:
    """Words to the left, figures to the right; a line wherever one of the first `group` columns changes."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False)
    for number, name in enumerate(header):
        figures = all(row[number][:1] in "+-0123456789" for row in rows)
        made.add_column(name, justify="right" if figures and rows else "left", overflow="fold")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        cells = map(Text, row)  # as it stands: brackets are no markup
        made.add_row(*cells, end_section=following is not None and row[:group] != following[:group])
    return Group(Text(title, style="bold"), made) if title else made
