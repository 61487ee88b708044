"""Tables in Markdown, and the limit of a comment on GitHub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

MOST_BYTES = 65_536  # GitHub refuses a longer comment: "maximum is 65536 characters"
_CLIPPED = 400  # characters of a reason: a traceback is in the page


def clipped(text: str) -> str:
    """Return the text, shortened to at most 400 characters and an ellipsis."""
    return text if len(text) <= _CLIPPED else f"{text[:_CLIPPED]}…"


def cut(text: str) -> str:
    """Return the document, cut after the last whole line that fits."""
    data = text.encode()
    return text if len(data) <= MOST_BYTES else data[: data.rfind(b"\n", 0, MOST_BYTES) + 1].decode()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose cells are escaped."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
