"""Write the figures of a run as Parquet: the columns of the CSV with types, and the samples of each series.

It needs pyarrow."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

_SAMPLES = "values"  # the judged samples of a series, in its unit


@dataclass(frozen=True, slots=True)
class ParquetReport:
    """Writes one row for each series, in SI units; a missing number is null."""

    summary: str = "the table of the CSV with types and with every sample, for data frames and databases"

    def render(self, run: gb.Run) -> bytes:
        """Return the content of the Parquet file; raises Unavailable if pyarrow is not installed."""
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise gb.Unavailable(
                f"pyarrow is not installed ({error})", gb.installation.with_extra("parquet")
            ) from error
        kinds = {"text": pa.string(), "number": pa.float64(), "whole": pa.int64()}
        fields = [(column.name, kinds[column.kind]) for column in gb.frame.COLUMNS]
        target = io.BytesIO()
        schema = pa.schema([*fields, (_SAMPLES, pa.list_(pa.float64()))], metadata=_metadata(run))
        parquet.write_table(pa.Table.from_pylist(list(_table_rows(run)), schema=schema), target, compression="zstd")
        return target.getvalue()


def _metadata(run: gb.Run) -> dict[str, str]:
    manifest = run.manifest
    devices = ", ".join(dict.fromkeys(device.name for device in manifest.facts.devices))
    return {"gpubench": manifest.gpubench, "gpubench.started": manifest.started, "gpubench.devices": devices}


def _table_rows(run: gb.Run) -> Iterator[dict[str, Any]]:
    """Yield each row of the table as values keyed by column name: the columns of the CSV, and `values`."""
    summary = gb.Summary(run)
    series = (gb.judged_values(measured).tolist() for result in run.results for measured in result.series)
    for line in gb.frame.lines(summary):
        yield {**line, _SAMPLES: next(series) if "series" in line else []}
    yield from gb.derived_lines(summary)


report: gb.Report = ParquetReport()
