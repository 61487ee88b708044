"""Define a derived figure as a table of texts, which the terminal, Markdown and the page share."""

from dataclasses import dataclass

NO_VALUE = "–"  # the text of a cell without a value


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts: each row has one cell for each head.

    `text_heads` are the heads of the columns that hold no figures, and `note` explains the columns."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_heads: tuple[str, ...]
    note: str = ""
