"""A table for the terminal. This file imports nothing heavy, so `mage list` starts fast."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = 2  # blanks between columns


def plain_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    group: int = 0,
    head: int = 1,
) -> RenderableType:
    """Text is aligned left, figures right; a rule follows if the first `group` cells change.

    In a window that is too narrow for the words of all columns every row is a paragraph, and its
    first `head` cells are the title.
    """
    made = _Plain(header, rows, group, max(group, head))
    return Group(Text(title, style="bold"), made) if title else made


class _Plain:
    """A table that chooses its form by the width of the window. It breaks no word."""

    def __init__(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], group: int, head: int
    ) -> None:
        self.header, self.rows, self.group, self.head = header, rows, group, head

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if not console.is_terminal or not self.rows:  # in a file no line is wrapped
            yield self._table(self.header)
            return
        columns = list(zip(*self.rows, strict=True))
        named = list(zip(self.header, columns, strict=True))
        widths = _fit(
            [max(map(cell_len, (name, *cells))) for name, cells in named],
            [max(map(_longest_word, (_can_break(name), *cells))) for name, cells in named],
            options.max_width - GAP * len(columns),
        )
        if widths is None:
            yield from self._paragraphs(options.max_width)
            return
        pairs = zip(self.header, widths, strict=True)
        names = [name if cell_len(name) <= width else _can_break(name) for name, width in pairs]
        yield self._table(names, widths)

    def _table(self, header: Sequence[str], widths: Sequence[int] | None = None) -> Table:
        made = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False)
        for number, name in enumerate(header):
            figures = all(row[number][:1] in "+-0123456789" for row in self.rows)
            made.add_column(
                Text(name),
                justify="right" if figures and self.rows else "left",
                overflow="fold",
                width=None if widths is None else widths[number],
            )
        for number, row in enumerate(self.rows):
            cells = map(Text, row)  # plain text: brackets must not be read as markup
            following = self.rows[number + 1 : number + 2]
            ends = any(row[: self.group] != one[: self.group] for one in following)
            made.add_row(*cells, end_section=ends)
        return made

    def _paragraphs(self, width: int) -> Iterator[RenderableType]:
        """Every row: its first cells as a title, then `name value` in lines that fit."""
        yield Text("")
        for row in self.rows:
            cells = list(zip(self.header, row, strict=True))
            title = (
                f"{name} {cell}" if cell.isdigit() else cell for name, cell in cells[: self.head]
            )
            yield Text("  ".join(filter(None, title)), style="bold")
            items = [f"{name} {cell}".strip() for name, cell in cells[self.head :] if cell]
            for line in _pack(items, width - GAP):
                yield Padding(Text(line, overflow="fold"), (0, 0, 0, GAP), expand=False)
        yield Text("")


def _can_break(name: str) -> str:
    """A title that can continue in the next line after `_`."""
    return name.replace("_", "_ ")


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def _fit(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Widths of columns of which none is below `least`; None if they need more than `room`.

    >>> _fit([4, 20, 9], [4, 6, 9], 25), _fit([4, 20], [4, 8], 10)
    ([4, 12, 9], None)
    """
    widths = list(wanted)
    while sum(widths) > room:
        can_shrink = [at for at, width in enumerate(widths) if width > least[at]]
        if not can_shrink:
            return None
        widths[max(can_shrink, key=lambda at: widths[at])] -= 1
    return widths


def _pack(items: Sequence[str], width: int) -> Iterator[str]:
    """Lines of items with a semicolon between them; an item is not divided if it fits.

    >>> list(_pack(["score 1", "draws 2", "regret 3"], 16))
    ['score 1; draws 2', 'regret 3']
    """
    line = ""
    for item in items:
        longer = f"{line}; {item}" if line else item
        if line and cell_len(longer) > width:
            yield line
            line = item
        else:
            line = longer
    if line:
        yield line
