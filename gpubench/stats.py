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


def serial_inflation(values: Sequence[float]) -> float:
    """How much serial correlation widens the variance of the count below the median: 1 where there is none.

    The signs of the deviations from the median have lag-one correlation r; of an AR(1) process with
    ρ = sin(π·r/2) the signs' correlation at lag k is (2/π)·asin(ρᵏ) (Kedem, Binary Time Series, 1980),
    and the inflation is 1 + 2·Σ(1 − k/n)·(2/π)·asin(ρᵏ). r is taken one standard error (1/√n) above its
    bias-corrected estimate, because a stopping rule picks the moments where it is small by chance.
    """
    data = np.asarray(values, dtype=float)
    signs = np.sign(data - np.median(data))
    count, power = len(signs), float((signs * signs).sum())
    if power == 0:
        return 1.0
    found = float((signs[1:] * signs[:-1]).sum()) / power
    bound = found + (1 + 2 * max(found, 0.0)) / count + 1 / math.sqrt(count)
    rho = math.sin(math.pi / 2 * min(max(bound, 0.0), 0.95))
    lags = np.arange(1, count)
    return 1 + float((4 / math.pi * (1 - lags / count) * np.arcsin(rho**lags)).sum())


def median_interval(values: Sequence[float]) -> Interval:
    """A 95 % interval of the median from order statistics, free of any distribution.

    Ranks by the normal approximation of the binomial, n/2 ± 1.96·√n/2, widened to whole ranks
    (Le Boudec, Performance Evaluation of Computer Systems, 2010, theorem 2.1) and, from 10 samples
    on, by the root of `serial_inflation`. Below 6 samples no pair of order statistics reaches 95 %:
    the whole range is returned.
    """
    data = sorted(values)
    count = len(data)
    if count == 0:
        return Interval(math.nan, math.nan, math.nan)
    if count < 6:
        return Interval(data[0], median(data), data[-1])
    inflation = serial_inflation(values) if count >= 10 else 1.0
    reach = _NORMAL_975 * math.sqrt(count * inflation) / 2
    low = max(math.floor(count / 2 - reach), 1)
    high = min(math.ceil(count / 2 + 1 + reach), count)
    return Interval(data[low - 1], median(data), data[high - 1])


def warm_up_length(values: Sequence[float]) -> int:
    """How many of the first values belong to a transient: the MSER truncation point.

    The d that makes the standard error of the mean of what is left least (White, Simulation 69(6),
    1997). A d beyond half of the values means that they do not show a steady state yet (Hoad,
    Robinson & Davies, Journal of the Operational Research Society 61, 2010).
    """
    least = 5  # fewer values at the end look steady by chance
    if len(values) < 2 * least:
        return len(values)
    data = np.asarray(values, dtype=float)[::-1]
    centre = np.median(data)
    data = np.where(np.abs(data - centre) <= 1e-9 * abs(centre), 0.0, data - centre)  # rounding is no transient
    counts = np.arange(1, len(data) + 1)
    means = np.cumsum(data) / counts
    squares = np.cumsum(data * data) / counts
    errors = np.maximum(squares - means * means, 0.0) / counts
    best = least + int(np.argmin(errors[least - 1 :]))
    steady = int(np.flatnonzero(errors <= errors[best - 1] * (1 + 1e-9))[-1]) + 1
    return len(data) - max(best, steady)


def is_steady(values: Sequence[float]) -> bool:
    """Whether warm-up is over: the transient is less than the first half of at least 10 values."""
    return len(values) >= 10 and warm_up_length(values) < len(values) // 2
