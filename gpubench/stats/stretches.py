"""Find the levels and drifts of a history: a series that grows by one value at a time and is tested again each time.

`stretches` divides the series, and `slope` measures a drift.

Divide a finished series into the parts that cost least together; `stretches` is for a series that still grows.

Optimal partitioning: Jackson et al., An Algorithm for Optimal Partitioning of Data on an Interval, IEEE Signal
Processing Letters 12(2), 2005."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench.stats.samples import Interval

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


# tests/studies/history_simulation.py sets the prices, the margins and _COINCIDENCE.
LEAST_RUNS = 9  # the shortest series that can be divided, into five values and four
_LEAST_DRIFT = 12  # the fewest values of a drift, because a line fits fewer values too easily
_STEP_PRICE, _DRIFT_PRICE = 18.5, 12.0  # the likelihood ratio (2·log) that a step or a drift must gain
_SEASON_MARGIN = 4.0  # for each step: the likelihood ratio that it must gain over a slow swing
_SPREAD_MARGIN = 8.0  # the likelihood ratio that a step must gain over a change of the spread alone
_LARGEST_GROWTH = 9.0  # of the variance, where the spread changes
_STATE_GAP, _STATE_SWITCHES = 5.0, 3  # least distance of states, in deviations of the values; least switches
_STATE_UNREST = 3.0  # variance of all values of a state over the variance of neighbours
_PLACE_PARAMETERS = 1.5  # parameters that a step has more than a drift, because its place is searched
_COINCIDENCE = 5e-5  # the largest accepted probability that a level was drawn from its neighbour's values
_TREND_SCORE = 3.5  # Mann-Kendall, in standard deviations: p < 0.0005
_MOST_STRETCHES = (4, 8, 16, 32)  # limits that are tried in turn, the next one only if all stretches were needed
_MOST_DRIFTS = 2
_WINDOW = 5  # values: two outliers in a row are cut to the median of their window, three are a level
_OUTLIER = 2.6  # standard deviations from the median of the window
_LOCAL_TO_SIGMA = 2.02  # a normal sample's sigma over its median distance from the median of the window; simulated
_CORRELATIONS = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 0.9])[:, None]  # correlations of neighbouring runs that are tried
_FITTED = 4  # values that a fit uses up, so that short series gain less
_FEWEST_SWINGS, _SHORTEST_SWING = 0.75, 8  # periods in the series; runs of a period
_RESOLUTION = 1e-5  # relative to the median; smaller differences are rounding
_NORMAL_975 = 1.959963984540054  # Φ⁻¹(0.975)

_Starts = dict[tuple[int, int], tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The values from `start` to before `end`, which stay at one level, drift along a line, or alternate.

    `switches` are the indices at which values that alternate between two levels go to the other one."""

    start: int
    end: int
    is_drift: bool = False
    switches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slope:
    """The rise from one value to the next with its 95 % interval, and its Mann-Kendall score in standard deviations."""

    interval: Interval
    score: float


@dataclass(frozen=True, slots=True)
class _Division:
    """A division of a series into stretches with its fit; `deviance` is −2·log of the likelihood of its residuals."""

    stretches: tuple[Stretch, ...]
    deviance: float

    @property
    def drifts(self) -> int:
        return sum(stretch.is_drift for stretch in self.stretches)

    @property
    def parts(self) -> int:
        return len(self.stretches) + self.drifts

    @property
    def price(self) -> float:
        return _STEP_PRICE * (len(self.stretches) - 1) + _DRIFT_PRICE * self.drifts

    def gain_of(self, other: _Division) -> float:
        """Return the likelihood ratio (2·log) that `other` gains over this division, less the difference in price."""
        return self.deviance - other.deviance - (other.price - self.price)


def stretches(values: Sequence[float] | Floats) -> tuple[Stretch, ...]:
    """Return the levels and drifts of a series, in order and without gaps; without a change the result is one level.

    The function may be called again after every new value. Series with fewer than 9 values (LEAST_RUNS) are one level.
    A division is accepted only if its likelihood ratio exceeds a bound that chance reaches, over all tests of a series
    of 100 values, in about 5 % of series at most (Hawkins, Qiu & Kang, The Changepoint Model for Statistical Process
    Control, Journal of Quality Technology 35(4), 2003, who also take their bounds from simulation). Steps that lead
    back and forth between two levels at least three times are one stretch, which alternates. Dynamic programming
    finds the best division into each number of parts (Jackson et al., An Algorithm for Optimal Partitioning of Data on
    an Interval, IEEE Signal Processing Letters 12(2), 2005). Up to two outliers in a row are replaced by a bound near
    the median around them (Hampel, Journal of the American Statistical Association 69(346), 1974)."""
    data = np.asarray(values, dtype=float)
    data = data / (np.abs(data).max(initial=0.0) or 1.0)  # so that no square is too large
    accepted: tuple[Stretch, ...] = (Stretch(0, len(data)),)
    if len(data) < LEAST_RUNS:
        return accepted
    for most in _MOST_STRETCHES:
        divisions, season = _divisions(data, most)
        accepted = _accepted_stretches(data, divisions, season)
        steps = [division.deviance for division in divisions if not division.drifts]
        if len(accepted) < most and steps[-3:][0] - steps[-1] < 2 * _STEP_PRICE:  # two more steps gain too little
            break
    return _with_states(data, accepted)


def _with_states(data: Floats, parts: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
    """Return the stretches, the longest rows of levels that alternate joined."""
    rows = itertools.combinations(range(len(parts) + 1), 2)
    for first, last in sorted(rows, key=lambda row: row[0] - row[1]):
        if not any(part.is_drift for part in parts[first:last]):
            start, end = parts[first].start, parts[last - 1].end
            if switches := tuple(start + place for place in _switches(data[start:end])):
                joined = Stretch(start, end, switches=switches)
                return (*_with_states(data, parts[:first]), joined, *_with_states(data, parts[last:]))
    return parts


def _switches(values: Floats) -> list[int]:
    """Return the places at which values go from one of two levels to the other; none unless they come and go."""
    # The two groups with the least squares have these levels. A value that is close to neither is no switch, and each
    # level must be visited twice for two values or more, because a single value may be an outlier.
    ordered, count = np.sort(values), len(values)
    if count < LEAST_RUNS:
        return []
    sums, sizes = np.cumsum(ordered)[LEAST - 1 : count - LEAST], np.arange(LEAST, count - LEAST + 1)
    cut = sizes[np.argmax(sums**2 / sizes + (ordered.sum() - sums) ** 2 / (count - sizes))]
    levels = np.array([np.median(ordered[:cut]), np.median(ordered[cut:])])
    gap, rounding = levels[1] - levels[0], _RESOLUTION * abs(float(levels[0]))
    distances = np.abs(values[:, None] - levels)
    nearest = np.minimum(distances.min(axis=1), gap / 2)
    if gap < _STATE_GAP * (math.sqrt((nearest**2).mean()) + rounding):
        return []
    close = np.flatnonzero(nearest < gap / 4)
    states = distances[close].argmin(axis=1)
    switches = (np.flatnonzero(np.diff(states)) + 1).tolist()
    visits = [states[first] for first, after in itertools.pairwise([0, *switches, len(states)]) if after - first > 1]
    if sum(before != after for before, after in itertools.pairwise(visits)) < _STATE_SWITCHES:
        return []
    offsets = values[close] - levels[states]
    noise = np.diff(offsets)[np.diff(states) == 0].var() / 2 + rounding**2
    return close[switches].tolist() if offsets.var() < _STATE_UNREST * noise else []  # else there are more levels


def _accepted_stretches(data: Floats, divisions: Sequence[_Division], season: float) -> tuple[Stretch, ...]:
    """Return the stretches of the accepted division; `divisions[0]` must be the single level."""
    current = divisions[0]
    while True:
        dearer = [division for division in divisions if division.price > current.price]
        candidates = sorted(dearer, key=current.gain_of, reverse=True)
        for division in candidates:
            if (
                current.gain_of(division) > 0
                and _is_distinct(division, divisions, season)
                and _is_significant(data, division)
            ):
                current = division
                break
        else:
            return current.stretches


def _is_distinct(division: _Division, divisions: Sequence[_Division], season: float) -> bool:
    """Return whether no division with other drifts, and no season of this deviance, explains the series as well."""
    place = _PLACE_PARAMETERS * math.log(division.stretches[-1].end)
    steps = sum(not (before.is_drift or after.is_drift) for before, after in itertools.pairwise(division.stretches))
    rivals = [rival for rival in divisions if rival.parts == division.parts and rival.drifts != division.drifts]
    return season - division.deviance > _SEASON_MARGIN * steps and all(
        rival.deviance - division.deviance > place * max(rival.drifts - division.drifts, 0) for rival in rivals
    )


def _is_significant(data: Floats, division: _Division) -> bool:
    return all(
        _coincidence(data[before.start : before.end], data[after.start : after.end]) <= _COINCIDENCE
        and (before.is_drift or after.is_drift or _exceeds_spread(data, before, after))
        for before, after in itertools.pairwise(division.stretches)
    ) and all(
        abs(slope(data[part.start : part.end]).score) >= _TREND_SCORE for part in division.stretches if part.is_drift
    )


def _exceeds_spread(data: Floats, before: Stretch, after: Stretch) -> bool:
    """Return whether two levels of one spread explain the values better than one level whose spread grows."""
    # the spread may grow at any value, and at most threefold
    parts = [data[before.start : before.end], data[after.start : after.end]]
    if len(parts[0]) < len(parts[1]):  # the longer part has the level, and comes first
        parts = [parts[1][::-1], parts[0][::-1]]
    values, count = np.concatenate(parts), sum(map(len, parts))
    rounding = (_RESOLUTION * float(np.median(data))) ** 2 + np.finfo(float).tiny
    sums = np.cumsum((values - parts[0].mean()) ** 2 + rounding)
    narrow = np.arange(LEAST, count - LEAST + 1)
    spread = sums[narrow - 1] / narrow
    growth = (sums[-1] - sums[narrow - 1]) / (count - narrow) / spread
    allowed = np.clip(growth, 1.0, _LARGEST_GROWTH)
    one_level = count * np.log(spread) + (count - narrow) * (np.log(allowed) + growth / allowed - 1)
    one_spread = count * math.log(sum(len(part) * float(part.var()) for part in parts) / count + rounding)
    return bool(one_level.min() - one_spread > _SPREAD_MARGIN)


def _coincidence(before: Floats, after: Floats) -> float:
    shorter, longer = sorted((before, after), key=len)
    if np.median(shorter) < np.median(longer):
        shorter, longer = -shorter, -longer
    ordered, chances = np.sort(shorter), []
    for spared in {0, len(shorter) // 4}:
        share = (np.count_nonzero(longer >= ordered[spared]) + 0.5) / (len(longer) + 1)
        chances.append(math.comb(len(shorter), spared) * float(share) ** (len(shorter) - spared))
    return min(chances)


def _divisions(data: Floats, most: int) -> tuple[list[_Division], float]:
    """Return the best division for each number of stretches and of drifts, and the deviance of a season."""
    # the season is the sine wave about one level, of any period that the runs show, that fits them best
    count, cleaned = len(data), _without_outliers(data)
    centred = cleaned - np.median(cleaned)
    scaled = centred / (np.abs(centred).max() or 1.0)
    rounding = count * (_RESOLUTION * abs(float(np.median(data))) / (np.abs(centred).max() or 1.0)) ** 2
    parts = list(_best_divisions(scaled, most))
    residuals = [
        np.concatenate([_residuals(scaled[part.start : part.end], part.is_drift) for part in division])
        for division in parts
    ]
    deviances = _deviances(np.stack([*residuals, *_season_residuals(scaled)], axis=1), rounding)
    divisions = [_Division(*pair) for pair in zip(parts, deviances[: len(parts)].tolist(), strict=True)]
    return divisions, float(deviances[len(parts) :].min())


def _season_residuals(data: Floats) -> Iterator[Floats]:
    count = len(data)
    for swings in np.arange(_FEWEST_SWINGS, max(count / _SHORTEST_SWING, 1.0) + 0.25, 0.25):
        angles = 2 * math.pi * swings / count * np.arange(count)
        terms = np.stack([np.ones(count), np.cos(angles), np.sin(angles)], axis=1)
        yield data - terms @ np.linalg.lstsq(terms, data, rcond=None)[0]


def _deviances(residuals: Floats, rounding: float) -> Floats:
    """Return −2·log of the likelihood of each column, as an autoregressive process of the best correlation."""
    # a wander that correlation explains gains nothing from steps (Shi et al., Journal of Climate 35(19), 2022)
    cross = (residuals[1:] * residuals[:-1]).sum(axis=0)
    inner = (residuals[1:-1] ** 2).sum(axis=0)
    squares = (residuals**2).sum(axis=0) + _CORRELATIONS**2 * inner - 2 * _CORRELATIONS * cross
    errors = (len(residuals) - _FITTED) * np.log(squares + rounding + np.finfo(float).tiny)
    deviances: Floats = (errors - np.log(1 - _CORRELATIONS**2)).min(axis=0)
    return deviances


def _without_outliers(data: Floats) -> Floats:
    """Return the values, each limited to 2.6 standard deviations from the median of the five around it."""
    windows = np.lib.stride_tricks.sliding_window_view(data, _WINDOW)
    places = np.clip(np.arange(len(data)) - _WINDOW // 2, 0, len(windows) - 1)
    centres = np.median(windows, axis=1)[places]
    margin = _OUTLIER * _LOCAL_TO_SIGMA * float(np.median(np.abs(data - centres)))
    return np.clip(data, centres - margin, centres + margin)


def _best_divisions(data: Floats, most: int) -> Iterator[tuple[Stretch, ...]]:
    """Yield the division with the least squares for each number of stretches up to `most` and of drifts among them."""
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
            yield _traced_stretches(starts, number, drifts, count)


def _traced_stretches(starts: _Starts, number: int, drifts: int, end: int) -> tuple[Stretch, ...]:
    """Return the stretches of the best division of the values before `end`, in order, traced back from the last one."""
    parts: list[Stretch] = []
    while end > 0:
        places, kinds = starts[number, drifts]
        parts.append(Stretch(int(places[end]), end, bool(kinds[end])))
        number, drifts, end = number - 1, drifts - parts[-1].is_drift, parts[-1].start
    return tuple(reversed(parts))


def _squared_errors(data: Floats) -> tuple[Floats, Floats]:
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


def slope(values: Sequence[float] | Floats) -> Slope:
    """Return the Theil-Sen slope of at least 3 values with its 95 % interval and its Mann-Kendall score.

    The slope is the rise from one value to the next. The interval is Sen's (Journal of the American Statistical
    Association 63, 1968). Serial correlation widens the variance of the Mann-Kendall sum as in Hamed & Rao (Journal of
    Hydrology 204, 1998), but never narrows it here."""
    data = np.asarray(values, dtype=float)
    first, last = np.triu_indices(len(data), 1)
    rises = data[last] - data[first]
    slopes = np.sort(rises / (last - first))
    centre = float(np.median(slopes))
    deviation = math.sqrt(_kendall_variance(data, centre))
    margin = _NORMAL_975 * deviation
    low = max(math.floor((len(slopes) - margin) / 2), 0)
    high = min(math.ceil((len(slopes) + margin) / 2), len(slopes) - 1)
    score = float(np.sign(rises).sum()) / deviation if deviation else 0.0
    return Slope(Interval(float(slopes[low]), centre, float(slopes[high])), score)


def _kendall_variance(data: Floats, centre: float) -> float:
    """Return the variance of the Mann-Kendall sum of `data`, corrected for ties and for serial correlation."""
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
    """Return the variance term of a group of tied values, or of all values, before it is divided by 18."""
    return count * (count - 1) * (2 * count + 5)
