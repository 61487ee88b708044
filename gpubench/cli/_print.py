"""Print text and tables on a terminal, as single lines without markup and control characters."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gpubench.base.clean import one_line

_WIDE = 1000  # characters of a line where standard output is no terminal


def out() -> Console:
    """Return the console of standard output, of 1000 columns if it is no terminal, so that a log is not folded."""
    size = shutil.get_terminal_size()  # rich would assume 80 columns for a dumb terminal
    width = size.columns if sys.stdout.isatty() else _WIDE
    return Console(width=width, height=size.lines, highlight=False, emoji=False)


def err() -> Console:
    """Return the console of standard error."""
    return Console(stderr=True, highlight=False, emoji=False)


def say(message: object, style: str = "") -> None:
    """Print one line on standard error."""
    err().print(plain(message, style), soft_wrap=True)


def warn(message: object) -> None:
    """Print one yellow line on standard error."""
    say(message, "yellow")


def echo(message: object) -> None:
    """Print one line on standard output."""
    out().print(plain(message), soft_wrap=True)


def document(value: object) -> None:
    """Print exactly one JSON document in ASCII, so that control characters in texts reach no terminal."""
    import json

    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def plain(value: object, style: str = "") -> Text:
    """Return a value as one line of limited length, without markup and control characters."""
    return Text(one_line(str(value)), style=style)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", right: Sequence[str] = ()
) -> Table:
    """Return a table of plain cells, aligned to the right below headings in `right`; a `Text` keeps its style."""
    printed = _FastTable(
        title=plain(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        heading = Text("\n").join(map(plain, column.split("\n")))
        printed.add_column(heading, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        printed.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return printed


class _FastTable(Table):
    """A table that prints as rich does, in a tenth of the time if it has no title and every cell fits in one style."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [str(column.header) for column in self.columns]
        most = max((name.count("\n") for name in names), default=0)  # headings stand on the last line of the head
        heads = [Text("\n" * (most - name.count("\n")) + name, "bold") for name in names]
        columns = [[head, *column.cells] for head, column in zip(heads, self.columns, strict=True)]
        widths = [max(cell_len(line) for cell in column for line in str(cell).split("\n")) for column in columns]
        is_limited = self.title or any(column.min_width or column.max_width for column in self.columns)
        if is_limited or sum(widths) + 2 * (len(widths) - 1) > options.max_width:
            yield from super().__rich_console__(console, options)
            return
        for row in zip(*columns, strict=True):
            styles = [console.get_style(cell.style) if isinstance(cell, Text) and cell.style else None for cell in row]
            for line in zip_longest(*(str(cell).split("\n") for cell in row), fillvalue=""):
                written: list[Segment] = []
                for text, style, width, column in zip(line, styles, widths, self.columns, strict=True):
                    padding = Segment(" " * (width - cell_len(text)))
                    gap = [Segment("  ")] if written else []
                    cell = [Segment(text, style), padding]
                    written += [*gap, *(reversed(cell) if column.justify == "right" else cell)]
                yield from Segment.simplify([*written, Segment("\n")])
