"""Tables for a terminal. Names are shown as they are: no markup, no control characters, none without an end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpubench.base.clean import one_line

_WIDE = 1000  # characters of a line that nobody looks at in a window


def out() -> Console:
    """Standard output; wide where it is no terminal, so that nothing is folded in a log."""
    size = shutil.get_terminal_size()  # asked here, since rich takes a dumb terminal to have 80 columns
    width = size.columns if sys.stdout.isatty() else _WIDE
    return Console(width=width, height=size.lines, highlight=False, emoji=False)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, emoji=False)


def say(words: object, style: str = "") -> None:
    """Print one line on standard error."""
    err().print(plain(words, style), soft_wrap=True)


def echo(words: object) -> None:
    """Print one line on standard output."""
    out().print(plain(words), soft_wrap=True)


def document(value: object) -> None:
    """Exactly one JSON document on standard output, in ASCII: its texts are whole, and no terminal obeys them."""
    import json

    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def plain(value: object, style: str = "") -> Text:
    """Return a text as a message: on one line, not too long, with neither markup nor control characters."""
    return Text(one_line(str(value)), style=style)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", right: Sequence[str] = ()
) -> Table:
    """A table of plain cells."""
    found = Table(
        title=plain(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        found.add_column(plain(column), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        found.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return found
