"""Divide a finished series into the parts that cost least together; `stretches` is for a series that still grows.

Optimal partitioning: Jackson et al., An Algorithm for Optimal Partitioning of Data on an Interval, IEEE Signal
Processing Letters 12(2), 2005."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LEAST = 3  # the fewest values on either side of a change, because two in a row may be outliers
_DIFFERENCE_TO_SIGMA = 1.4826 / 2**0.5  # a normal sample's sigma over the median distance of neighbouring values
_LEAST_SIGMA = 1e-3  # relative to the range: smaller noise than this is not noise
_PRICE = 2.5  # times log n for each parameter of a change: chance cuts 1 % of normal series at most

Floats = npt.NDArray[np.float64]


def cheapest_parts(costs: Floats) -> list[tuple[int, int]]:
    """Return the first and the last index of each part, in order, of the division with the smallest total cost.

    `costs[i, j]`, shape (n, n), is the cost of one part from i to j; infinite for one that is not allowed."""
    count = len(costs)
    least, starts = np.zeros(count + 1), np.zeros(count + 1, dtype=int)
    for end in range(1, count + 1):
        totals = least[:end] + costs[:end, end - 1]
        starts[end] = np.argmin(totals)
        least[end] = totals[starts[end]]
    parts, end = [], count
    while end:
        parts.append((int(starts[end]), end - 1))
        end = int(starts[end])
    return parts[::-1]


def change_points(values: Sequence[float] | Floats) -> list[int]:
    """Return the indices, in order, at which the mean of a series changes for at least three values.

    `values` has the shape (n,), or (n, variables) for several variables at once, whose noise may differ. A part costs
    the squares of its deviations over the noise, and each change a multiple of Schwarz' penalty (Yao, Statistics &
    Probability Letters 6, 1988)."""
    data = np.asarray(values, dtype=float)
    count = len(data)
    if count < 2 * LEAST:
        return []
    data = data.reshape(count, -1)
    ranges = np.ptp(data, axis=0)
    data = data[:, ranges > 0] - data[0, ranges > 0]
    if not data.size:
        return []
    noise = _DIFFERENCE_TO_SIGMA * np.median(np.abs(np.diff(data, axis=0)), axis=0)
    data = data / np.maximum(noise, _LEAST_SIGMA * ranges[ranges > 0])
    sums = np.vstack([np.zeros(data.shape[1]), np.cumsum(data, axis=0)])
    squares = np.concatenate([[0.0], np.cumsum((data**2).sum(axis=1))])
    lengths = np.arange(1, count + 1)[None, :] - np.arange(count)[:, None]
    within = squares[None, 1:] - squares[:-1, None]
    means = ((sums[None, 1:] - sums[:-1, None]) ** 2).sum(axis=2) / np.maximum(lengths, 1)
    price = _PRICE * (data.shape[1] + 1) * np.log(count)
    parts = cheapest_parts(np.where(lengths >= LEAST, np.maximum(within - means, 0.0) + price, np.inf))
    return [first for first, _ in parts[1:]]
