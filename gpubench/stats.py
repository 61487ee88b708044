"""Pure functions of numbers, each with its reference. Values in, values out; nothing is stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MAD_TO_SIGMA = 1.4826  # 1 / Φ⁻¹(3/4): makes the MAD of a normal sample estimate its sigma
_NORMAL_975 = 1.959963984540054  # Φ⁻¹(0.975)


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval with its centre, in the unit of the data."""

    low: float
    centre: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width over the centre, as a fraction; infinite where the centre is 0."""
        return (self.high - self.low) / 2 / abs(self.centre) if self.centre else math.inf


def median(values: Sequence[float]) -> float:
    """The sample median; NaN of nothing."""
    return float(np.median(values)) if len(values) else math.nan


def quantile(values: Sequence[float], fraction: float) -> float:
    """The quantile at `fraction` in [0, 1], linear between order statistics (Hyndman & Fan type 7)."""
    return float(np.quantile(values, fraction)) if len(values) else math.nan


def noise(values: Sequence[float]) -> float:
    """Robust coefficient of variation: 1.4826 · MAD / median, a fraction (Rousseeuw & Croux 1993)."""
    if len(values) < 2:
        return 0.0
    data = np.asarray(values, dtype=float)
    centre = float(np.median(data))
    if centre == 0 or not np.isfinite(data).all():
        return 0.0
    return _MAD_TO_SIGMA * float(np.median(np.abs(data - centre))) / abs(centre)


def median_interval(values: Sequence[float]) -> Interval:
    """A 95 % interval of the median from order statistics, free of any distribution.

    Ranks by the normal approximation of the binomial, n/2 ± 1.96·√n/2, widened to whole ranks
    (Le Boudec, Performance Evaluation of Computer Systems, 2010, theorem 2.1). Below 6 samples no
    pair of order statistics reaches 95 %: the whole range is returned.
    """
    data = sorted(values)
    count = len(data)
    if count == 0:
        return Interval(math.nan, math.nan, math.nan)
    if count < 6:
        return Interval(data[0], median(data), data[-1])
    reach = _NORMAL_975 * math.sqrt(count) / 2
    low = max(math.floor(count / 2 - reach), 1)
    high = min(math.ceil(count / 2 + 1 + reach), count)
    return Interval(data[low - 1], median(data), data[high - 1])


def is_steady(values: Sequence[float], window: int = 8, limit: float = 0.02) -> bool:
    """Whether warm-up is over: the last `window` values vary by less than `limit`, with no drift.

    The coefficient-of-variation rule of Georges, Buytaert & Eeckhout (OOPSLA 2007, §4.2.2), and
    beside it the two halves of the window must agree within the same limit, so that a slow drift
    with little noise is not taken for steady.
    """
    if len(values) < window:
        return False
    tail = np.asarray(values[-window:], dtype=float)
    centre = float(np.median(tail))
    if centre <= 0:
        return True
    first, second = np.median(tail[: window // 2]), np.median(tail[window // 2 :])
    return noise(tail.tolist()) < limit and abs(float(second - first)) / centre < limit


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive values; NaN of nothing."""
    if not values:
        return math.nan
    return math.exp(sum(math.log(value) for value in values) / len(values))
