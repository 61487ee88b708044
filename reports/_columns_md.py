"""Several runs as columns in Markdown: their heads, their key figures, what differs, and the cases of each suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubench.api.report import code, escape

from ._columns import ColumnCell, ColumnRow, Columns
from ._markdown import cut, table


def columns_markdown(found: Columns) -> str:
    """Return the document, as far as a comment has room for it, with a newline at its end."""
    return cut("\n".join(_lines(found)) + "\n")


def _lines(found: Columns) -> Iterator[str]:
    letters = [run.letter for run in found.runs]
    yield f"# gpubench: {escape(found.title)}\n"
    rows = (
        (run.letter, "; ".join(run.devices), " · ".join(run.conditions), run.trust, "; ".join(run.matters))
        for run in found.runs
    )
    yield from table(
        ("run", "devices", "conditions", "trust", "what matters"), (tuple(map(escape, row)) for row in rows)
    )
    if found.key_figures:
        yield "\n## Key figures\n"
        yield from table(("key figure", *letters), map(_row, found.key_figures))
    yield f"\n{escape(found.note)}"
    if found.differences:
        yield "\n## Differences of the environment\n"
        differing = ((each.name, *(value or "unknown" for value in each.values)) for each in found.differences)
        yield from table(("what", *letters), (tuple(map(escape, row)) for row in differing))
    for suite in found.suites:
        yield f"\n## {escape(suite.name)}\n"
        yield from table(("case", *letters), map(_row, suite.rows))


def _row(row: ColumnRow) -> Sequence[str]:
    name = f"{code(row.title) if row.anchor else escape(row.title)} {escape(row.device)}".rstrip()
    return (name, *map(_cell, row.cells))


def _cell(cell: ColumnCell) -> str:
    change = f" ({cell.change})" if cell.change else ""
    parts = (f"**{escape(cell.text)}**{change}" if cell.text else "", escape(cell.note))
    return ", ".join(part for part in parts if part) or "–"
