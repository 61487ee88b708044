"""Estimate high percentiles of the latencies of queries by LoadGen's rules, and say how many queries they need."""

import math
from collections.abc import Sequence

import numpy as np

_CONFIDENCE = 0.99
_TAIL = 0.025  # the probability on each side of a 95 % interval


def queries_needed(fraction: float) -> int:
    """Return the smallest number of queries that can show the percentile `fraction`: 64 for 0.9, 662 for 0.99.

    With fewer queries, `tail_estimate` has no result."""
    count = 2
    while _discarded_count(count, fraction) < 1:
        count += 1
    return count


def tail_estimate(values: Sequence[float], fraction: float) -> float | None:
    """Return an upper estimate of the percentile `fraction` by LoadGen's early stopping; None for too few values.

    `fraction` 0.99 is the 99th percentile."""
    count = len(values)
    discarded = _discarded_count(count, fraction)
    return (
        float(np.partition(np.asarray(values, dtype=float), count - discarded)[count - discarded])
        if discarded
        else None
    )


def percentile_interval(values: Sequence[float], fraction: float) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a percentile; both ends are values of the sample; None for too few values.

    `fraction` 0.99 is the 99th percentile. The values must be independent but may have any distribution: of n values,
    the number below the percentile has the distribution B(n, `fraction`) (David and Nagaraja, Order Statistics, 2003,
    section 7.1)."""
    ordered = sorted(values)
    count = len(ordered)
    k = np.arange(1, count + 1)
    steps = np.log((count - k + 1) / k * (fraction / (1 - fraction)))
    below = np.cumsum(np.exp(count * math.log(1 - fraction) + np.concatenate(([0.0], np.cumsum(steps)))))
    low = int(np.searchsorted(below, _TAIL, side="right"))  # the largest rank with P(X < low) ≤ 2.5 %
    high = int(np.searchsorted(below, 1 - _TAIL)) + 1  # the smallest rank with P(X ≥ high) ≤ 2.5 %
    return (ordered[low - 1], ordered[high - 1]) if low >= 1 and high <= count else None


def _discarded_count(count: int, fraction: float) -> int:
    """Return how many of the largest of `count` values LoadGen's early stopping discards for a percentile."""
    if count < 1:
        return 0
    past = 1.0 - fraction
    k = np.arange(1, math.ceil(count * past) + 1)
    steps = np.log((count - k + 1) / k * (past / fraction))
    terms = np.exp(count * math.log(fraction) + np.concatenate(([0.0], np.cumsum(steps))))
    most = int(np.searchsorted(np.cumsum(terms), 1 - _CONFIDENCE, side="right")) - 1
    return max(most, 0)
