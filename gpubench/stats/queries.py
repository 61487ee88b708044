"""Estimate high percentiles of the latencies of queries by LoadGen's rules."""

import math
from collections.abc import Sequence

import numpy as np

_CONFIDENCE = 0.99


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
