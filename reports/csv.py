"""Write the figures of a run as CSV: one line for each series, ready for a spreadsheet or a data frame."""

import csv
import io
import re
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

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
        summary, table = gb.Summary(run), io.StringIO()
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_safe(line) for line in (*gb.frame.lines(summary), *gb.derived_lines(summary)))
        return table.getvalue()


def _safe(line: dict[str, Any]) -> dict[str, Any]:
    return {column: _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value for column, value in line.items()}


report: gb.Report = CsvReport()
