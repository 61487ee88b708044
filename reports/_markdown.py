"""Write tables in Markdown, and keep documents within the limit of a comment on GitHub."""

from collections.abc import Iterable, Iterator, Sequence

MOST_BYTES = 65_536  # GitHub refuses a longer comment: "maximum is 65536 characters"
_CLIPPED = 400  # characters of a reason: a traceback is in the page


def clipped(text: str) -> str:
    """Return the text, or its first 400 characters and an ellipsis if it is longer."""
    return text if len(text) <= _CLIPPED else f"{text[:_CLIPPED]}…"


def cut(text: str) -> str:
    """Return the document, or its whole lines within 65 536 bytes if it is longer."""
    data = text.encode()
    return text if len(data) <= MOST_BYTES else data[: data.rfind(b"\n", 0, MOST_BYTES) + 1].decode()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table without newlines: two for its heads, then one per row.

    The cells must be escaped already."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
