"""Lay out lists of cases for a terminal of any width: names are folded at commas, figures are never broken."""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from gpubench.base.clean import one_line
from gpubench.cli import _print

LONGEST_PART = 40  # longest part of a name between two commas that is not broken
INDENT = "  "
_GAP = 2
_LEAST_BESIDE = 20  # least width for a name beside its lead; otherwise the name stands below it
_RIGHT_TO_LEFT = ("R", "AL")


@dataclass(frozen=True, slots=True)
class NamedRow:
    """A row of a list: a leading word in Rich's `style`, a name, and a figure for each further column."""

    lead: str
    name: str
    figures: tuple[str, ...]
    style: str = ""


def named_rows(heads: Sequence[str], rows: Sequence[NamedRow], width: int) -> Iterator[Table | Text]:
    """Yield rows under their headings, laid out for a terminal of `width` columns.

    Where the names leave no room, the figures stand below them in columns, or each after its heading."""
    rows = [
        NamedRow(one_line(row.lead), one_line(row.name), tuple(map(one_line, row.figures)), row.style) for row in rows
    ]
    columns = [max(map(cell_len, cells)) for cells in zip(heads[2:], *(row.figures for row in rows), strict=True)]
    lead = max(cell_len(text) for text in (heads[0], *(row.lead for row in rows)))
    figures = sum(columns) + _GAP * len(columns)
    room = width - lead - _GAP - figures
    if room >= _least_room([row.name for row in rows]):
        yield _one_line_each(heads, rows, room)
    elif len(INDENT) + figures <= width:
        yield from _two_lines_each(heads, rows, columns, lead, width)
    else:
        yield from _labelled(heads, rows, width)


def _least_room(names: Sequence[str]) -> float:
    """Return the least width of a column of these names: the longest name or part between commas, with an indent."""
    if any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for name in names for letter in name):
        return math.inf
    longest = max((cell_len(part) for name in names for part in name_parts(name)), default=0)
    return min(max(map(cell_len, names), default=0), min(longest, LONGEST_PART) + len(INDENT))


def _one_line_each(heads: Sequence[str], rows: Sequence[NamedRow], room: int) -> Table:
    """Return a table with one row per line; a name wider than `room` columns is folded at its commas in its cell."""
    cells = [
        [_print.plain(row.lead, row.style), folded(row.name, room), *map(_print.plain, row.figures)] for row in rows
    ]
    table = _print.table(heads, cells, right=heads[2:])
    for column in (table.columns[0], *table.columns[2:]):
        column.no_wrap = True
    return table


def _two_lines_each(
    heads: Sequence[str], rows: Sequence[NamedRow], columns: Sequence[int], lead: int, width: int
) -> Iterator[Text]:
    yield _print.plain(f"{heads[0]:{lead}}  {heads[1]}", "bold")
    yield _aligned(heads[2:], columns, "bold")
    for row in rows:
        yield from _lead_and_name(row, lead, width)
        yield _aligned(row.figures, columns)


def _aligned(figures: Sequence[str], columns: Sequence[int], style: str = "") -> Text:
    cells = (" " * (size - cell_len(text)) + text for text, size in zip(figures, columns, strict=True))
    return Text(INDENT + (" " * _GAP).join(cells), style=style)


def _lead_and_name(row: NamedRow, lead: int, width: int) -> Iterator[Text]:
    """Yield the lines of a row's lead, padded to `lead` columns, and name, folded to the terminal's `width`."""
    start = f"{row.lead:{lead}}  "
    room = width - len(start)
    if room < _LEAST_BESIDE:
        yield _print.plain(row.lead, row.style)
        yield folded(row.name, width)
    else:
        first, *rest = folded(row.name, room).split("\n")
        yield _print.plain(start, row.style) + Text(first.plain, style="not bold")
        yield from (Text(" " * len(start)) + line for line in rest)


def _labelled(heads: Sequence[str], rows: Sequence[NamedRow], width: int) -> Iterator[Text]:
    """Yield each row as its lead, its name and its figures, each after its heading, in lines of at most `width`."""
    for row in rows:
        yield _print.plain(row.lead, row.style)
        yield folded(row.name, width)
        parts: list[str] = []
        for head, figure in zip(heads[2:], row.figures, strict=True):
            is_short = cell_len(f"{head} {figure}") <= width - len(INDENT)
            parts += [f"{head} {figure}, "] if is_short else [f"{head} ", f"{figure}, "]
        yield from (Text(line.rstrip(", ")) for line in joined(INDENT, parts, width + 1))


def folded(name: str, room: int) -> Text:
    """Return a name in lines of at most `room` characters, broken after commas; a longer part is not broken."""
    return Text("\n").join(_print.plain(line) for line in joined("", name_parts(name), room))


def joined(start: str, parts: Sequence[str], room: int) -> list[str]:
    """Return `parts` joined into lines of at most `room` characters; a longer part has a line to itself."""
    lines = [start]
    for part in parts:
        if cell_len(lines[-1]) + cell_len(part) > room and lines[-1].strip():
            lines.append(INDENT)
        lines[-1] += part
    return lines


def name_parts(name: str) -> list[str]:
    """Return the parts of a name, each with the comma that ends it."""
    pieces = name.split(",")
    return [f"{piece}," for piece in pieces[:-1]] + pieces[-1:]
