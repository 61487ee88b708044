"""Write the figures of a run as CSV: one line for each series, ready for a spreadsheet or a data frame."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

from ._amortisation import amortisation_lines
from ._derived import derived_lines
from ._payoffs import payoff_lines

COLUMNS = tuple(column.name for column in gb.frame.COLUMNS)
# A spreadsheet runs a cell that starts so (OWASP, "CSV Injection"); where a semicolon separates cells, as in much of
# Europe, one begins behind each.
_FORMULA = re.compile(r"(^|;)(?=\s*[=+\-@＝＋－＠])")


@dataclass(frozen=True, slots=True)
class CsvReport:
    """Writes one line for each series, in SI units; a result without a series also has one line."""

    summary: str = "one line per series in SI units, for spreadsheets and data frames"

    def render(self, run: gb.Run) -> str:
        """Return the CSV with its header line; a number that is missing or not finite is an empty cell.

        An apostrophe stands before a text that a spreadsheet would run as a formula."""
        table = io.StringIO()
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_safe(line) for line in _lines(gb.Summary(run)))
        return table.getvalue()


def _lines(summary: gb.Summary) -> Iterator[dict[str, Any]]:
    """Yield each line of the table as values keyed by column name, some columns missing."""
    yield from gb.frame.lines(summary)
    yield from derived_lines(summary)
    yield from payoff_lines(summary)
    yield from amortisation_lines(summary)


def _safe(line: dict[str, Any]) -> dict[str, Any]:
    """Return the line with an apostrophe in each text that a spreadsheet would run as a formula."""
    return {column: _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value for column, value in line.items()}


report: gb.Report = CsvReport()
