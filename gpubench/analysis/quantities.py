"""Compute the quantity by which a series is judged (a rate, seconds per item, or a value), and find headlines.

Read from a result what disturbed it: other work on the machine, or slowdowns of the device itself."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gpubench.model import Better, Result, Series

SUM = "sum"  # the name of the derived series that counts both directions, or the links of all devices
_INTEGER = ("tensor.int", "int")  # limits of integer operations
_UNITS = {"moved": "B/s", "payload": "B/s", "flops": "FLOP/s", "item": "s"}

Number = TypeVar("Number", float, npt.NDArray[np.float64])


def rate(work: float, seconds: Number) -> Number:
    """Return work over time in units of work per second: the one place where a rate is computed."""
    return work / seconds


def judged(values: Number, series: Series) -> Number:
    """Return samples of a series in the quantity by which the series is judged.

    `values` are in seconds, or in the unit of a series of values."""
    if series.quantity == "value":
        return values
    if series.quantity == "item":
        return values / series.work.items
    return rate(getattr(series.work, series.quantity), values)


def judged_values(series: Series) -> npt.NDArray[np.float64]:
    """Return the samples in the judged quantity, shape (samples,)."""
    return judged(np.asarray(series.values, dtype=float), series)


def judged_median(series: Series) -> float:
    """Return the median of `judged_values`, NaN without samples.

    It makes no array, because a gate calls it for 100 000 series."""
    ordered = sorted(series.values)
    if not ordered:
        return math.nan
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    return sum(judged(float(value), series) for value in middle) / len(middle)


def judged_unit(series: Series) -> str:
    """Return the SI unit of `judged_values`."""
    if series.quantity == "flops" and series.limit.startswith(_INTEGER):
        return "OP/s"
    return f"{series.item}/s" if series.quantity == "items" else _UNITS.get(series.quantity, series.unit)


def judged_better(series: Series) -> Better:
    """Return whether more or less of the judged quantity is better: more of a rate, else as declared."""
    return "more" if series.quantity in ("moved", "payload", "flops", "items") else series.better


def limited_median(series: Series) -> float:
    """Return the median of a series in the unit of its peak: items per second become bytes or operations per second."""
    if series.quantity == "items":
        arithmetic = series.limit.startswith(("tensor.", "float"))
        series = replace(series, quantity="flops" if arithmetic else "moved")
    return judged_median(series)


def peak_limit(series: Series) -> str:
    """Return the name of the peak that a series is compared with; empty for no peak.

    The peak of a link is the peak of one direction, counted in bytes on the link."""
    return "" if series.role == "derived" and series.limit.startswith("link.") else series.limit


def headline(result: Result) -> Series | None:
    """Return the headline of a result, its first series; None if nothing was timed.

    If several ranks have a series of that label, the headline is the one with the worst median."""
    return series_labelled(result, "")


def series_labelled(result: Result, label: str) -> Series | None:
    """Return the series of a result with that label, the first series for an empty label; None if there is none.

    If several ranks have such a series, it is the one with the worst median."""
    if not label and len(result.series) < 2:
        return next(iter(result.series), None)
    label = label or result.series[0].label
    ranks = [series for series in result.series if series.label == label]
    return max(ranks, key=_badness) if len(ranks) > 1 else next(iter(ranks), None)


def slowest_series(result: Result) -> Iterator[Series]:
    """Yield one series for each label of a result, in the order measured.

    If several ranks have a series of that label, it is the one with the worst median."""
    labelled: dict[str, list[Series]] = {}
    for series in result.series:
        labelled.setdefault(series.label, []).append(series)
    for ranks in labelled.values():
        yield max(ranks, key=_badness) if len(ranks) > 1 else ranks[0]


def _badness(series: Series) -> float:
    centre = judged_median(series)
    return -centre if judged_better(series) == "more" else centre


_OTHER_WORK_LABELS = frozenset({"shared-device", "loaded", "migrated"})
_OTHER_WORK_DISCARDS = frozenset({"steal", "foreign-process"})
_SLOWDOWNS = frozenset({"thermal", "hw-slowdown", "power-brake", "low-clock"})
_DISCARDED = 0.1  # share of discarded samples from which the remaining ones count as disturbed too


def other_work(result: Result) -> tuple[str, ...]:
    """Return the signs of other work on the machine, sorted: labels (`loaded`), and frequent discard reasons (`steal`).

    A discard reason is frequent if at least a tenth of the samples were discarded for it."""
    labels = _OTHER_WORK_LABELS.intersection(result.labels)
    return tuple(sorted(labels | (_frequent_discards(result) & _OTHER_WORK_DISCARDS)))


def slowdowns(result: Result) -> tuple[str, ...]:
    """Return the slowdowns of the device (`thermal`) for which a tenth or more of the samples was discarded, sorted."""
    return tuple(sorted(_frequent_discards(result) & _SLOWDOWNS))


def _frequent_discards(result: Result) -> set[str]:
    if not result.discarded:
        return set()
    kept_count = sum(len(series.values) for series in result.series if series.role == "primary")
    return {reason for reason, count in result.discarded if count >= _DISCARDED * (kept_count + count)}
