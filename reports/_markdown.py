"""Markdown as GitHub takes it: texts that show as themselves, tables, and what a comment holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

MOST_BYTES = 65_536  # GitHub refuses a longer comment: "maximum is 65536 characters"
_MARKS = re.compile(
    r"([`*_\[\]~$]|^[#+=-])"
)  # what Markdown may read as more than itself, at a line's start or anywhere
# As entities: HTML, what parsers of tables disagree on (`\|` and `\\|` split cells in some), and what notifies people.
_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in "\\|@"} | {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
_LINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)  # what GitHub makes a link of by itself
_CLIPPED = 400  # characters of a reason: a traceback is in the page


def escape(text: str) -> str:
    """Text that shows as itself, in a table's cell too, and notifies nobody."""
    marked = _MARKS.sub(r"\\\1", text.strip().translate(_ENTITIES))
    return _LINK.sub(lambda found: f"&#{ord(found[0])};", marked)


def code(text: str) -> str:
    """Text as a code span; escaped text where it holds what would end the span or the cell."""
    return escape(text) if not text or set(text) & set("`|") else f"`{text}`"


def clipped(text: str) -> str:
    """A text that is not longer than a cell should be."""
    return text if len(text) <= _CLIPPED else f"{text[:_CLIPPED]}…"


def cut(text: str) -> str:
    """A document whose head alone is too long, as far as whole lines of it fit."""
    data = text.encode()
    return text if len(data) <= MOST_BYTES else data[: data.rfind(b"\n", 0, MOST_BYTES) + 1].decode()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table of cells that are escaped."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
