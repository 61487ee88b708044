"""Find the changes of a finished series of values, such as a recording; `stretches` is for a series that still grows.

`change_points` tests the series once, by E-divisive: Matteson & James, A Nonparametric Approach for Multiple Change
Point Analysis of Multivariate Data, Journal of the American Statistical Association 109(505), 2014; with α = 1. It
assumes nothing about the distribution of the values, and the number of changes need not be known."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST = 3  # the fewest values on either side of a change, because two in a row may be outliers
_LEVEL = 0.01  # the significance level of one test: how often chance cuts a series without a change
_PERMUTATIONS = 199
_SEED = 20140505
_ROUNDING = 1e-9  # relative; sums of the same numbers in another order differ by less

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change: the values from `index` on differ from those before it.

    `p` is the share of shuffled series whose statistic is at least as large."""

    index: int
    p: float


@dataclass(frozen=True, slots=True)
class _Segment:
    """A stretch of the series from `start`, with the distances between its values, shape (values, values).

    Its best cut is after `cut` values and has the statistic `statistic`."""

    start: int
    distances: Floats
    cut: int
    statistic: float

    @classmethod
    def of(cls, values: Floats, start: int, end: int) -> _Segment:
        part = values[start:end]
        distances = np.sqrt(((part[:, None] - part[None, :]) ** 2).sum(axis=-1))
        return cls(start, distances, *_best_cut(distances))

    @property
    def is_long_enough(self) -> bool:
        """Whether both parts of a cut can have LEAST values."""
        return len(self.distances) >= 2 * LEAST


def change_points(values: Sequence[float] | Floats) -> tuple[ChangePoint, ...]:
    """Return the change points of a series in ascending order; the same series always has the same ones.

    `values` has the shape (n,), or (n, variables) for several variables at once, in units that weigh equally."""
    data = np.asarray(values, dtype=float)
    if len(data) < 2 * LEAST:
        return ()
    data = data.reshape(len(data), -1)
    rng = np.random.default_rng(_SEED)
    segments, points = [_Segment.of(data, 0, len(data))], []
    while segments:
        best = max(segments, key=lambda segment: segment.statistic)
        p = _p_value(segments, best.statistic, rng)
        if p > _LEVEL:
            break
        points.append(ChangePoint(best.start + best.cut, p))
        end = best.start + len(best.distances)
        parts = (_Segment.of(data, best.start, points[-1].index), _Segment.of(data, points[-1].index, end))
        segments = [segment for segment in (*segments, *parts) if segment is not best and segment.is_long_enough]
    return tuple(sorted(points, key=lambda point: point.index))


def _p_value(segments: Sequence[_Segment], statistic: float, rng: np.random.Generator) -> float:
    """Return the share of 199 permutations within the segments (and the series itself) that reach `statistic`."""
    bound = statistic * (1 - _ROUNDING)
    reached = 1
    for shuffled in _shuffled_statistics(segments, rng):
        reached += bool(shuffled >= bound)
        if reached > _LEVEL * (_PERMUTATIONS + 1):
            break
    return reached / (_PERMUTATIONS + 1)


def _shuffled_statistics(segments: Sequence[_Segment], rng: np.random.Generator) -> Iterator[float]:
    """Yield for each of 199 permutations the largest statistic of all segments, each of them shuffled."""
    for _ in range(_PERMUTATIONS):
        orders = [(segment.distances, rng.permutation(len(segment.distances))) for segment in segments]
        yield max(_best_cut(distances[np.ix_(order, order)])[1] for distances, order in orders)


def _best_cut(distances: Floats) -> tuple[int, float]:
    """Return the number of values before the best cut and the statistic there, the largest q(τ, κ) (equation 7)."""
    if len(distances) < 2 * LEAST:
        return 0, -np.inf
    statistics = divergences(distances)
    cut, _ = np.unravel_index(int(np.argmax(statistics)), statistics.shape)
    return int(cut), float(statistics[cut].max())


def divergences(distances: Floats) -> Floats:
    """Return q(τ, κ) for every τ (rows) and κ (columns), −∞ where a side has fewer than three values (LEAST).

    All of them come from one table of cumulative sums."""
    count = len(distances)
    sums = np.zeros((count + 1, count + 1))
    np.cumsum(distances, axis=0, out=sums[1:, 1:])
    np.cumsum(sums[1:, 1:], axis=1, out=sums[1:, 1:])
    inner = sums.diagonal()
    both, first, last, excluded = _sum_weights(count)
    return both * sums + first * inner[:, None] + last * inner[None, :] + excluded


@functools.lru_cache(maxsize=8)
def _sum_weights(count: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return four arrays of shape (count + 1, count + 1), of which q(τ, κ) in `divergences` is composed."""
    n, kappa = np.meshgrid(np.arange(count + 1.0), np.arange(count + 1.0), indexing="ij")
    valid = (n >= LEAST) & (kappa - n >= LEAST)
    n, kappa = np.where(valid, n, 2.0), np.where(valid, kappa, 4.0)
    within_first, within_last = (kappa - n) / (kappa * (n - 1)), n / (kappa * (kappa - n - 1))
    excluded = np.where(valid, 0.0, -np.inf)
    return 2 / kappa + 2 * within_last, -2 / kappa - within_first - within_last, -within_last, excluded
