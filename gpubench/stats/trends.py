"""Test whether values rise or fall with time, and how far a transient still affects them, by published methods."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpubench.stats.samples import Vector

_PLAUSIBLE = 8.0  # F(1, 17) at 1 % is 8.4, at 2 % 6.6


@dataclass(frozen=True, slots=True)
class SampleTrend:
    """The change of values with time: the Theil-Sen slope in the unit of the values per second, and its p-value.

    The p-value comes from the test of Mann and Kendall."""

    slope: float
    p: float


def midmeans(values: Sequence[float], times: Sequence[float], blocks: int) -> tuple[Vector, Vector]:
    """Return the means of the middle halves of `blocks` runs of equal length, and the mean times of the runs.

    Both have the shape (blocks,). Outliers move a midmean as little as a median, and it needs a quarter fewer samples
    for the same error (Tukey, Exploratory Data Analysis, 1977). If there are fewer values than blocks, each value is a
    run."""
    count, blocks = len(values), min(blocks, len(values))
    runs = list(itertools.pairwise(count * block // blocks for block in range(blocks + 1)))
    middles = [_midmean(values[start:end]) for start, end in runs]
    return np.array(middles), np.array([sum(times[start:end]) / (end - start) for start, end in runs])


def _midmean(values: Sequence[float]) -> float:
    quarter = len(values) // 4
    middle = sorted(values)[quarter : len(values) - quarter]
    return sum(middle) / len(middle)


def trend(values: Sequence[float], times: Sequence[float], blocks: int = 10) -> SampleTrend:
    """Return the trend of values with `times` (s), by a test of the midmeans of `blocks` runs of equal length.

    The test counts the pairs of runs in which the later is larger (Mann, Econometrica 13, 1945; Kendall, Rank
    Correlation Methods, 1975; the variance with ties and the normal approximation with its continuity correction). The
    slope is the median over all pairs (Sen, Journal of the American Statistical Association 63, 1968). Runs replace
    samples, because serial correlation of samples looks like a trend (Yue & Wang, Water Resources Management 18, 2004).
    With fewer than five values, or if time stands still, the slope is 0 and p is 1."""
    if len(values) < 5:
        return SampleTrend(0.0, 1.0)
    middles, centres = midmeans(values, times, blocks)
    later, earlier = np.tril_indices(len(middles), -1)
    rises, seconds = middles[later] - middles[earlier], centres[later] - centres[earlier]
    apart = seconds > 0
    if not apart.any():
        return SampleTrend(0.0, 1.0)
    score = float(np.sign(rises).sum())
    ties = np.unique(middles, return_counts=True)[1]
    sizes = np.array([len(middles), *ties])
    terms = sizes * (sizes - 1) * (2 * sizes + 5) / 18
    variance = float(terms[0] - terms[1:].sum())
    z = max(abs(score) - 1, 0.0) / math.sqrt(variance) if variance > 0 else 0.0
    return SampleTrend(float(np.median(rises[apart] / seconds[apart])), math.erfc(z / math.sqrt(2)))


def transient_left(
    values: Sequence[float], times: Sequence[float], starts: Sequence[float], longest_s: float
) -> tuple[float, ...]:
    """Return how far the mean from each of `starts` to the end may lie from the settled value, as a fraction of it.

    Times, starts and `longest_s` are in seconds; at least five values are needed.

    c + a·exp(-t/τ) is fitted to the midmeans of 20 runs for each of several time constants τ up to `longest_s`. All τ
    count whose sum of squares is within F(1, n - 3) at 1 %, about 8, of the smallest one (Bates & Watts, Nonlinear
    Regression Analysis, 1988, section 6.1), and the largest deviation among these is returned. The settled value is the
    median of the later half of the midmeans."""
    middles, centres = midmeans(values, times, 20)
    end = float(times[-1])
    taus = np.geomspace((end - centres[0]) / 40, longest_s, 24)
    decays = np.exp(-(centres - centres[0])[None, :] / taus[:, None])
    shapes = decays - decays.mean(axis=1, keepdims=True)
    amplitudes = shapes @ middles / (shapes * shapes).sum(axis=1)
    residuals = middles - middles.mean() - amplitudes[:, None] * shapes
    squares = (residuals * residuals).sum(axis=1)
    plausible = squares <= squares.min() * (1 + _PLAUSIBLE / (len(middles) - 3))
    settled = abs(float(np.median(middles[len(middles) // 2 :])))
    deviations = []
    for start in starts:
        left = np.exp(-(start - centres[0]) / taus) - np.exp(-(end - centres[0]) / taus)
        means = amplitudes * taus * left / (end - start)
        deviations.append(float(np.abs(means[plausible]).max()) / settled)
    return tuple(deviations)
