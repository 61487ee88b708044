"""What the reports for programs share: every series of a result as one flat record of finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gpubench.api import Result, Spread, Summary


def records(summary: Summary, result: Result) -> Iterator[dict[str, Any]]:
    """Each series of a result with its figure in SI units, in the order measured."""
    for series in result.series:
        figure = summary.figure(result, series)
        yield {
            "series": series.name,
            "rank": series.rank,
            "quantity": series.quantity,
            "unit": figure.unit,
            "better": figure.better,
            "median": finite(figure.interval.centre),
            "low": finite(figure.interval.low),
            "high": finite(figure.interval.high),
            "noise": finite(figure.noise),
            "samples": figure.samples,
            "share": finite(figure.share),
            "limit": figure.limit,
            "basis": figure.basis,
        }


def spread_record(spread: Spread) -> dict[str, Any]:
    """What a case's replicates differ by, of its headline series in SI units; null where none is ok."""
    medians = spread.medians
    return {
        "replicates": len(medians),
        "within": finite(spread.within),
        "between": finite(spread.between),
        "lowest": finite(min(medians, default=None)),
        "highest": finite(max(medians, default=None)),
    }


def finite(value: float | None) -> float | None:
    """The value, or None where it is not a finite number (a file has no NaN and no infinity)."""
    return value if value is not None and math.isfinite(value) else None
