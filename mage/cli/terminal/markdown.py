"""A page in Markdown as plain text for the terminal: titles, lists, tables. No other marks."""

import re
from collections.abc import Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from mage.cli.terminal.tables import plain_table

_HEADING = re.compile(r"#+ ")
_PICTURE = re.compile(r"!\[[^\]]*\]\((.*)\)")
_MARKS = re.compile(r"\*\*(.+?)\*\*|(?<!`)`([^`]+)`(?!`)|(?<!!)\[([^\]]+)\]\([^)]*\)")


def show_markdown(page: str) -> Iterator[RenderableType]:
    """The parts of a page, without signs of Markdown. Code (four blanks) is not changed.

    >>> [str(one) for one in show_markdown("# Title\\n\\n- **one** and `two`\\n")]
    ['Title', '', '- one and two']
    """
    text = re.sub(r"\n\n(?=\|)", "\n", page)  # a table has empty lines of its own
    text = re.sub(r"(?<=\|)\n\n", "\n", text)
    for is_table, group in groupby(text.splitlines(), lambda line: line.startswith("|")):
        lines = list(group)
        if is_table and len(lines) > 2:
            header, _, *rows = map(_cells, lines)
            width = len(header)
            yield plain_table(header, [[*row, *[""] * width][:width] for row in rows])
        else:
            yield from map(_line, lines)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    cells = re.split(r"(?<!\\)\|", inner)  # `\|` is a bar inside of a cell
    return [_plain(cell.strip().replace("\\|", "|")) for cell in cells]


def _line(line: str) -> Text:
    if line.startswith("    "):
        return Text(line)
    if found := _HEADING.match(line):
        return Text(_plain(line[found.end() :]), style="bold")
    if found := _PICTURE.fullmatch(line):
        return Text(f"picture: {found[1]}")
    return Text(_plain(line))


def _plain(text: str) -> str:
    return _MARKS.sub(lambda found: found[1] or found[2] or found[3], text)
