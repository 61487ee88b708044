"""Write several runs as columns in Markdown: their heads, key figures, differences and cases."""

from collections.abc import Iterator, Sequence

from gpubench.api import report as gb

from ._columns import ColumnCell, ColumnRow, Columns
from ._markdown import cut, table


def columns_markdown(page: Columns) -> str:
    """Return the Markdown document, which ends with a newline and has at most 65 536 bytes.

    If it is longer, the lines at its end are left out."""
    return cut("\n".join(_lines(page)) + "\n")


def _lines(page: Columns) -> Iterator[str]:
    """Yield the document in parts that newlines join; a part may hold several lines."""
    letters = [run.letter for run in page.runs]
    yield f"# gpubench: {gb.escape(page.title)}\n"
    rows = (
        (run.letter, "; ".join(run.devices), " · ".join(run.conditions), run.trust, "; ".join(run.limitations))
        for run in page.runs
    )
    yield from table(
        ("run", "devices", "conditions", "trust", "limitations"), (tuple(map(gb.escape, row)) for row in rows)
    )
    if page.key_figures:
        yield "\n## Key figures\n"
        yield from table(("key figure", *letters), map(_row, page.key_figures))
    yield f"\n{gb.escape(page.note)}"
    if page.differences:
        yield "\n## Differences of the environment\n"
        differing = (
            (difference.name, *(value or "unknown" for value in difference.values)) for difference in page.differences
        )
        yield from table(("property", *letters), (tuple(map(gb.escape, row)) for row in differing))
    for suite in page.suites:
        yield f"\n## {gb.escape(suite.name)}\n"
        yield from table(("case", *letters), map(_row, suite.rows))


def _row(row: ColumnRow) -> Sequence[str]:
    """Return the cells of a table row: the title with its device, then one cell for each run."""
    name = f"{gb.code(row.title) if row.anchor else gb.escape(row.title)} {gb.escape(row.device)}".rstrip()
    return (name, *map(_cell, row.cells))


def _cell(cell: ColumnCell) -> str:
    """Return a figure with its change and its note as Markdown; a dash if it has neither text nor note."""
    change = f" ({cell.change})" if cell.change else ""
    parts = (f"**{gb.escape(cell.text)}**{change}" if cell.text else "", gb.escape(cell.note))
    return ", ".join(part for part in parts if part) or "–"
