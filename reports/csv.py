"""The figures of a run as CSV: one line a series, ready for a spreadsheet or a data frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpubench.api import Report, Result, Run, Summary, headline

from ._clean import tidy
from ._derived import derived_lines
from ._figures import energy_record, records, spread_record

COLUMNS = (
    *("case", "suite", "params", "device", "replicate", "status", "cause", "reason"),
    *("series", "rank", "quantity", "unit", "better", "median", "low", "high", "noise", "samples"),
    *("share", "limit", "basis", "labels"),
    *("share_spec", "peak_spec", "share_clock", "peak_clock", "share_best", "peak_best"),
    *("work_per_joule", "watts"),
    *("replicates", "within", "between", "lowest", "highest"),
)
_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "＝",
    "＋",
    "－",
    "＠",
)  # a spreadsheet runs a cell that starts so (OWASP, CSV injection)


@dataclass(frozen=True, slots=True)
class CsvReport:
    """Writes one line a series, in SI units; a result without a series has one line of its own."""

    summary: str = "one line a series in SI units, for spreadsheets and data frames"

    def render(self, run: Run) -> str:
        """The table with its header line; absent and non-finite numbers are empty cells."""
        import pandas as pd  # a slow import, paid only by who asks for CSV

        lines = [_safe(line) for line in _lines(Summary(tidy(run)))]
        return pd.DataFrame(lines, columns=list(COLUMNS), dtype=object).to_csv(index=False, lineterminator="\n")


def _lines(summary: Summary) -> Iterator[dict[str, Any]]:
    spreads = {row.result.key: spread_record(spread) for spread in summary.spreads() for row in spread.rows}
    for result in summary.run.results:
        key, spoken = _key(result), headline(result)
        if not result.series:
            yield key
        for series, record in zip(result.series, records(summary, result), strict=True):
            joined = spreads[result.key] if series is spoken and summary.replicated else {}
            yield key | record | joined | (_energy(summary, result) if series is spoken else {})
    yield from derived_lines(summary)


def _energy(summary: Summary, result: Result) -> dict[str, Any]:
    record = energy_record(summary, result)
    return {name: record[name] for name in ("work_per_joule", "watts")}


def _key(result: Result) -> dict[str, Any]:
    return {
        "case": result.case.id,
        "suite": result.case.suite,
        "params": ";".join(f"{axis}={value}" for axis, value in result.case.params),
        "device": "+".join(result.devices),
        "replicate": result.replicate,
        "status": result.status,
        "cause": result.cause,
        "reason": result.reason,
        "labels": ";".join(result.labels),
    }


def _safe(line: dict[str, Any]) -> dict[str, Any]:
    """The same line with every text that a spreadsheet would run made a plain text by an apostrophe."""
    return {
        column: f"'{value}" if isinstance(value, str) and value.lstrip().startswith(_FORMULA) else value
        for column, value in line.items()
    }


report: Report = CsvReport()
