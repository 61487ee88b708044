"""What the reports for programs share: every series of a result as one flat record of finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gpubench.api import BASES, Figure, NoEnergy, Result, Spread, Summary


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
            **_shares(figure),
        }


def _shares(figure: Figure) -> dict[str, float | None]:
    """The share and the peak of each basis; null where that peak is not known."""
    found: dict[str, float | None] = {}
    for basis in BASES:
        share = figure.share_of(basis)
        found[f"share_{basis}"] = finite(share.fraction) if share else None
        found[f"peak_{basis}"] = finite(share.peak) if share else None
    return found


def energy_record(summary: Summary, result: Result) -> dict[str, Any]:
    """What a result's headline costs in SI units (FLOP or bytes a joule), or the reason why that is not known."""
    energy = summary.energy(result)
    if isinstance(energy, NoEnergy):
        return {"work_per_joule": None, "watts": None, "no_energy": energy.reason}
    return {"work_per_joule": finite(energy.rate / energy.watts), "watts": finite(energy.watts), "no_energy": ""}


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
