"""Tables in Markdown, and what a comment of GitHub holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

MOST_BYTES = 65_536  # GitHub refuses a longer comment: "maximum is 65536 characters"
_CLIPPED = 400  # characters of a reason: a traceback is in the page


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
