"""Where a series of values changes: in a finished recording, and in a history that grows by one value at a time.

`change_points` tests a finished series once, by E-divisive: Matteson & James, A Nonparametric Approach for Multiple
Change Point Analysis of Multivariate Data, Journal of the American Statistical Association 109(505), 2014; with α = 1.
It assumes nothing of the values' distribution, and the number of changes need not be known.

`stretches` divides a growing series into levels and drifts, and `slope` measures a drift.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench.stats.samples import Interval

LEAST = 3  # values on either side of a change: two in a row may be a bad day
_LEVEL = 0.01  # of one test; a series without a change is cut by chance that often
_PERMUTATIONS = 199
_SEED = 20140505
_ROUNDING = 1e-9  # of a statistic: sums of the same numbers in another order differ by less

# Constants of `stretches`; the prices, _COINCIDENCE and the prior are set by tests/history_simulation.py.
LEAST_RUNS = 9  # the shortest series that can be divided: into five values and four
_LEAST_DRIFT = 12  # values: a line through fewer fits any of them
_STEP_PRICE, _DRIFT_PRICE = 20.0, 12.0  # the likelihood ratio (2·log) that each must gain
_PLACE_PARAMETERS = 1.5  # that a step counts for beyond a drift: its place is searched, not estimated
_COINCIDENCE = 5e-5  # the largest probability that a level is made of values which the neighbour had too
_TREND_SCORE = 3.5  # Mann-Kendall, in standard deviations: p < 0.0005
_MOST_STRETCHES = (4, 8, 16, 32)  # that are tried; more only where all of them were needed
_MOST_DRIFTS = 2
_WINDOW = 5  # values: two outliers in a row are cut to the median of their window, three are a level
_OUTLIER = 2.6  # standard deviations from the median of the window
_LOCAL_TO_SIGMA = 2.02  # a normal sample's sigma over its median distance from the median of the window; simulated
_PRIOR_CORRELATION, _PRIOR_WEIGHT = 0.3, 20  # of neighbouring runs, and the number of runs that the prior counts for
_RESOLUTION = 1e-5  # of the median: smaller differences are rounding
_NORMAL_975 = 1.959963984540054  # Φ⁻¹(0.975)

Floats = npt.NDArray[np.float64]
_Starts = dict[tuple[int, int], tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """The values from `index` on are others than before; `p` is the share of shuffled series that look as changed."""

    index: int
    p: float


@dataclass(frozen=True, slots=True)
class _Segment:
    """A stretch of the series from `start`, its distances to itself, and where it is best cut (after so many)."""

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
        return len(self.distances) >= 2 * LEAST


def change_points(values: Sequence[float] | Floats) -> tuple[ChangePoint, ...]:
    """The change points of a series, in order; the same series always has the same.

    Of several variables at once values have the shape (n, variables), in units in which they count alike.

    Cut after cut, each tested by 199 permutations within the segments that are there, until one is not
    significant at 1 %. Time and memory grow with the square of the length: 0.5 s and 10 MB a cut of 400 values.
    """
    data = np.asarray(values, dtype=float)
    if len(data) < 2 * LEAST:
        return ()
    data = data.reshape(len(data), -1)
    rng = np.random.default_rng(_SEED)
    segments, found = [_Segment.of(data, 0, len(data))], []
    while segments:
        best = max(segments, key=lambda segment: segment.statistic)
        p = _p_value(segments, best.statistic, rng)
        if p > _LEVEL:
            break
        found.append(ChangePoint(best.start + best.cut, p))
        end = best.start + len(best.distances)
        parts = (_Segment.of(data, best.start, found[-1].index), _Segment.of(data, found[-1].index, end))
        segments = [segment for segment in (*segments, *parts) if segment is not best and segment.is_long_enough]
    return tuple(sorted(found, key=lambda point: point.index))


def _p_value(segments: Sequence[_Segment], statistic: float, rng: np.random.Generator) -> float:
    """The share of permutations within the segments that reach the statistic; the counting stops where it is lost."""
    bound = statistic * (1 - _ROUNDING)
    reached = 1
    for shuffled in _shuffled(segments, rng):
        reached += bool(shuffled >= bound)
        if reached > _LEVEL * (_PERMUTATIONS + 1):
            break
    return reached / (_PERMUTATIONS + 1)


def _shuffled(segments: Sequence[_Segment], rng: np.random.Generator) -> Iterator[float]:
    """The best statistic of all segments, each shuffled, once for every permutation."""
    for _ in range(_PERMUTATIONS):
        orders = [(segment.distances, rng.permutation(len(segment.distances))) for segment in segments]
        yield max(_best_cut(distances[np.ix_(order, order)])[1] for distances, order in orders)


def _best_cut(distances: Floats) -> tuple[int, float]:
    """After how many values to cut, and the statistic there: the maximum of q(τ, κ) (the paper's equation 7)."""
    if len(distances) < 2 * LEAST:
        return 0, -np.inf
    statistics = divergences(distances)
    cut, _ = np.unravel_index(int(np.argmax(statistics)), statistics.shape)
    return int(cut), float(statistics[cut].max())


def divergences(distances: Floats) -> Floats:
    """q(τ, κ) of every τ (rows) and κ (columns), -inf where a side is shorter than LEAST.

    q = n·m/(n+m) · (2·mean|x−y| − mean|x−x'| − mean|y−y'|), x being the first τ values and y those from τ to κ
    (the paper's equations 5 and 6). All from one table of cumulative sums.
    """
    count = len(distances)
    sums = np.zeros((count + 1, count + 1))
    np.cumsum(distances, axis=0, out=sums[1:, 1:])
    np.cumsum(sums[1:, 1:], axis=1, out=sums[1:, 1:])
    inner = sums.diagonal()
    both, first, last, excluded = _weights(count)
    return both * sums + first * inner[:, None] + last * inner[None, :] + excluded


@functools.lru_cache(maxsize=8)
def _weights(count: int) -> tuple[Floats, Floats, Floats, Floats]:
    """What the sums up to (τ, κ), (τ, τ) and (κ, κ) count for in q; -inf where τ and κ are no cut."""
    n, kappa = np.meshgrid(np.arange(count + 1.0), np.arange(count + 1.0), indexing="ij")
    valid = (n >= LEAST) & (kappa - n >= LEAST)
    n, kappa = np.where(valid, n, 2.0), np.where(valid, kappa, 4.0)
    within_first, within_last = (kappa - n) / (kappa * (n - 1)), n / (kappa * (kappa - n - 1))
    excluded = np.where(valid, 0.0, -np.inf)
    return 2 / kappa + 2 * within_last, -2 / kappa - within_first - within_last, -within_last, excluded


# ---- Histories: a series that is looked at again after every new value


@dataclass(frozen=True, slots=True)
class Stretch:
    """The values from `start` to before `end`: they keep one level, or drift along a line."""

    start: int
    end: int
    is_drift: bool = False


@dataclass(frozen=True, slots=True)
class Slope:
    """The rise from one value to the next with its 95 % interval; `score` is Mann-Kendall's, in standard deviations."""

    interval: Interval
    score: float


@dataclass(frozen=True, slots=True)
class _Division:
    """A division of a series: `errors` is n·log(sum of squares), `independence` the share of independent values."""

    stretches: tuple[Stretch, ...]
    errors: float
    independence: float

    @property
    def drifts(self) -> int:
        return sum(stretch.is_drift for stretch in self.stretches)

    @property
    def parts(self) -> int:
        return len(self.stretches) + self.drifts

    @property
    def price(self) -> float:
        return _STEP_PRICE * (len(self.stretches) - 1) + _DRIFT_PRICE * self.drifts

    def loss_to(self, other: _Division) -> float:
        """The likelihood ratio that another division gains over this one, less the difference of their prices."""
        return other.independence * (self.errors - other.errors) - (other.price - self.price)


def stretches(values: Sequence[float] | Floats) -> tuple[Stretch, ...]:
    """Divide a series into levels and drifts; one level where it shows no change or has fewer than LEAST_RUNS values.

    The question may be asked again after every new value. A division is accepted only where its likelihood ratio
    exceeds a bound that chance reaches, over all looks at 100 values, in about 5 % of series at most (Hawkins, Qiu &
    Kang, The Changepoint Model for Statistical Process Control, Journal of Quality Technology 35(4), 2003, who
    take their bounds from simulation too). Dynamic programming finds the best division into each number of parts
    (Jackson et al., An Algorithm for Optimal Partitioning of Data on an Interval, IEEE Signal Processing Letters
    12(2), 2005). Up to two outliers in a row count as the median around them (Hampel, Journal of the American
    Statistical Association 69(346), 1974).
    """
    data = np.asarray(values, dtype=float)
    accepted: tuple[Stretch, ...] = (Stretch(0, len(data)),)
    if len(data) < LEAST_RUNS:
        return accepted
    for most in _MOST_STRETCHES:
        divisions = _divisions(data, most)
        accepted = _accepted(data, divisions)
        errors = [division.errors for division in divisions if not division.drifts]
        if len(accepted) < most and errors[-3:][0] - errors[-1] < 2 * _STEP_PRICE:  # two more steps gain too little
            break
    return accepted


def _accepted(data: Floats, divisions: Sequence[_Division]) -> tuple[Stretch, ...]:
    """The division that no other one beats: each of its steps and drifts gained its price."""
    current = divisions[0]
    while True:
        dearer = [division for division in divisions if division.price > current.price]
        candidates = sorted(dearer, key=current.loss_to, reverse=True)
        for division in candidates:
            if current.loss_to(division) > 0 and _is_clear(division, divisions) and _is_sound(data, division):
                current = division
                break
        else:
            return current.stretches


def _is_clear(division: _Division, divisions: Sequence[_Division]) -> bool:
    """Whether no division with steps in place of its drifts, or drifts in place of its steps, explains as much.

    A step chooses its place, so it must fit better than a drift by 1.5·log n, as the Bayesian information criterion
    charges parameters. A drift must fit better than a step. In between, only more values can tell.
    """
    place = _PLACE_PARAMETERS * math.log(division.stretches[-1].end)
    rivals = [rival for rival in divisions if rival.parts == division.parts and rival.drifts != division.drifts]
    return all(
        min(division.independence, rival.independence) * (rival.errors - division.errors)
        > place * max(rival.drifts - division.drifts, 0)
        for rival in rivals
    )


def _is_sound(data: Floats, division: _Division) -> bool:
    """Whether its levels are no coincidence and its drifts are significant, by the ranks of the values alone."""
    return all(
        _coincidence(data[before.start : before.end], data[after.start : after.end]) <= _COINCIDENCE
        for before, after in itertools.pairwise(division.stretches)
    ) and all(
        abs(slope(data[part.start : part.end]).score) >= _TREND_SCORE for part in division.stretches if part.is_drift
    )


def _coincidence(before: Floats, after: Floats) -> float:
    """The probability of drawing the shorter stretch from the longer one's values: noise of two states has such rows.

    All or three quarters of the shorter stretch lie beyond some point, and so does a share of the longer one.
    """
    shorter, longer = sorted((before, after), key=len)
    if np.median(shorter) < np.median(longer):
        shorter, longer = -shorter, -longer
    ordered, chances = np.sort(shorter), []
    for spared in {0, len(shorter) // 4}:
        share = (np.count_nonzero(longer >= ordered[spared]) + 0.5) / (len(longer) + 1)
        chances.append(math.comb(len(shorter), spared) * float(share) ** (len(shorter) - spared))
    return min(chances)


def _divisions(data: Floats, most: int) -> list[_Division]:
    """The best division into each number of levels and drifts, up to `most` stretches; first the single level."""
    count, cleaned = len(data), _without_outliers(data)
    centred = cleaned - np.median(cleaned)
    scaled = centred / (np.abs(centred).max() or 1.0)
    rounding = count * (_RESOLUTION * abs(float(np.median(data))) / (np.abs(centred).max() or 1.0)) ** 2
    divisions = []
    for parts, squares in _best_divisions(scaled, most):
        residuals = np.concatenate([_residuals(scaled[part.start : part.end], part.is_drift) for part in parts])
        errors = count * math.log(squares + rounding + np.finfo(float).tiny)
        divisions.append(_Division(parts, errors, _independence(residuals)))
    return divisions


def _without_outliers(data: Floats) -> Floats:
    """The values, each cut to 2.6 standard deviations from the median of the five around it."""
    windows = np.lib.stride_tricks.sliding_window_view(data, _WINDOW)
    places = np.clip(np.arange(len(data)) - _WINDOW // 2, 0, len(windows) - 1)
    centres = np.median(windows, axis=1)[places]
    reach = _OUTLIER * _LOCAL_TO_SIGMA * float(np.median(np.abs(data - centres)))
    return np.clip(data, centres - reach, centres + reach)


def _best_divisions(data: Floats, most: int) -> Iterator[tuple[tuple[Stretch, ...], float]]:
    """Each division with its sum of squares: optimal partitioning, by number of stretches and of drifts among them."""
    count = len(data)
    errors = _squared_errors(data)
    unreached = np.full(count + 1, np.inf)
    best = {(0, 0): np.where(np.arange(count + 1), np.inf, 0.0)}
    starts: _Starts = {}
    for number, drifts in itertools.product(range(1, most + 1), range(_MOST_DRIFTS + 1)):
        options = [
            best.get((number - 1, drifts - is_drift), unreached)[:, None] + errors[is_drift] for is_drift in (0, 1)
        ]
        firsts = [option.argmin(axis=0) for option in options]
        squares = [option.min(axis=0) for option in options]
        is_drift = squares[1] < squares[0]
        best[number, drifts] = np.where(is_drift, squares[1], squares[0])
        starts[number, drifts] = np.where(is_drift, firsts[1], firsts[0]), is_drift
        if math.isfinite(best[number, drifts][count]):
            yield _traced(starts, number, drifts, count), float(best[number, drifts][count])


def _traced(starts: _Starts, number: int, drifts: int, end: int) -> tuple[Stretch, ...]:
    """The stretches of the best division up to `end`, followed back from its last one."""
    parts: list[Stretch] = []
    while end > 0:
        places, kinds = starts[number, drifts]
        parts.append(Stretch(int(places[end]), end, bool(kinds[end])))
        number, drifts, end = number - 1, drifts - parts[-1].is_drift, parts[-1].start
    return tuple(reversed(parts))


def _squared_errors(data: Floats) -> tuple[Floats, Floats]:
    """The squared residuals of every stretch [start, end), about its mean and about its line; inf where too short."""
    index = np.arange(len(data) + 1.0)
    sums, squares, moments = (
        np.concatenate([[0.0], np.cumsum(terms)]) for terms in (data, data * data, index[:-1] * data)
    )
    start, end = np.meshgrid(index, index, indexing="ij")
    length = np.maximum(end - start, 1.0)
    total = sums[None, :] - sums[:, None]
    level = np.maximum(squares[None, :] - squares[:, None] - total * total / length, 0.0)
    product = moments[None, :] - moments[:, None] - (start + end - 1) / 2 * total
    line = np.maximum(level - product * product / np.maximum(length * (length * length - 1) / 12, 1.0), 0.0)
    return np.where(end - start >= LEAST, level, np.inf), np.where(end - start >= _LEAST_DRIFT, line, np.inf)


def _residuals(part: Floats, is_drift: bool) -> Floats:
    centred: Floats = part - part.mean()
    index = np.arange(len(part)) - (len(part) - 1) / 2
    return centred - index * float(index @ centred / (index @ index)) if is_drift else centred


def _independence(residuals: Floats) -> float:
    """The share of values that count as independent: (1 − r)/(1 + r) at a lag-one correlation r.

    r is corrected for its bias (Kendall, Biometrika 41, 1954) and drawn towards 0.3, as if 20 more runs had shown that.
    """
    count, power = len(residuals), float(residuals @ residuals)
    found = float(residuals[1:] @ residuals[:-1]) / power if power > 0 else 0.0
    correlation = found + (1 + 3 * max(found, 0.0)) / count
    correlation = (count * correlation + _PRIOR_WEIGHT * _PRIOR_CORRELATION) / (count + _PRIOR_WEIGHT)
    correlation = min(max(correlation, 0.0), 0.9)
    return (1 - correlation) / (1 + correlation)


def slope(values: Sequence[float] | Floats) -> Slope:
    """Return the Theil-Sen slope of at least 3 values with its 95 % interval and its Mann-Kendall score.

    The interval is Sen's (Journal of the American Statistical Association 63, 1968). Serial correlation widens the
    variance of the Mann-Kendall sum as in Hamed & Rao (Journal of Hydrology 204, 1998); it never narrows it here.
    """
    data = np.asarray(values, dtype=float)
    first, last = np.triu_indices(len(data), 1)
    rises = data[last] - data[first]
    slopes = np.sort(rises / (last - first))
    centre = float(np.median(slopes))
    deviation = math.sqrt(_kendall_variance(data, centre))
    reach = _NORMAL_975 * deviation
    low = max(math.floor((len(slopes) - reach) / 2), 0)
    high = min(math.ceil((len(slopes) + reach) / 2), len(slopes) - 1)
    score = float(np.sign(rises).sum()) / deviation if deviation else 0.0
    return Slope(Interval(float(slopes[low]), centre, float(slopes[high])), score)


def _kendall_variance(data: Floats, centre: float) -> float:
    """The variance of the Mann-Kendall sum, with ties, and widened by the ranks' correlations once detrended."""
    count = len(data)
    _, ties = np.unique(data, return_counts=True)
    variance = (_kendall_term(count) - sum(map(_kendall_term, ties.tolist()))) / 18
    detrended = data - centre * np.arange(count)
    ranks = np.argsort(np.argsort(detrended, kind="stable"), kind="stable") - (count - 1) / 2
    correlations = np.correlate(ranks, ranks, "full")[count:] / float(ranks @ ranks)
    left = count - np.arange(1.0, count)
    weights = left * (left - 1) * (left - 2) / (count * (count - 1) * (count - 2))
    significant = np.abs(correlations) > _NORMAL_975 / math.sqrt(count)
    return float(variance * max(1 + 2 * float((weights * correlations)[significant].sum()), 1.0))


def _kendall_term(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)
