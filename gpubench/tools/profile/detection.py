"""Find the phases of a program without marks: the moments at which its counters change their level.

The activity counters are averaged over bins of equal length, and divided at the changes of all counters at once.
Changes that are too small, or that leave too short a phase, are dropped. Each remaining change is placed between two
samples."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpubench.analysis.counters import Track
from gpubench.model import Measure
from gpubench.stats.stretches import change_points

Floats = npt.NDArray[np.float64]

SHORTEST_S = 1.0  # the shortest phase: ten samples of the fast counters
_BINS = 160  # the search takes time that grows with the square of this number: some seconds at most
_LEAST_BIN_S = 0.25  # each bin has one or two samples of the fast counters
_CHANGE = 0.15  # a step smaller than this share of a counter's range in the run begins no phase
_LEAST_RANGE = {"%": 20.0, "W": 20.0, "core·s": 0.5}  # a smaller range is noise; "core·s": of the rate, in cores
_ACTIVITY = (
    *(Measure.BUSY, Measure.BOARD_POWER, Measure.SM_ACTIVITY, Measure.TENSOR_ACTIVITY, Measure.DRAM_SHARE),
    Measure.PROGRAM_CPU_TIME,
)


def changes(tracks: Sequence[Track], begin: float, end: float) -> list[float]:
    """Return the moments between `begin` and `end`, in s and ascending, at which a new phase begins."""
    series = [activity for track in tracks if (activity := _activity_of(track, begin, end))]
    bins = int(min(_BINS, (end - begin) / _LEAST_BIN_S))
    if not series or bins < 2:
        return []
    table = np.column_stack([_bin_means(at, values, begin, end, bins) / scale for at, values, scale in series])
    width = (end - begin) / bins
    distinct_cuts = _distinct_cuts(table, change_points(table), shortest_bins=max(1, round(SHORTEST_S / width)))
    return [_change_time(series, begin + cut * width, distance_s=1.5 * width) for cut in distinct_cuts]


def _activity_of(track: Track, begin: float, end: float) -> tuple[Floats, Floats, float] | None:
    """Return the times (s) and values of an activity counter from `begin` to `end`, and the range of the values."""
    least_range = _LEAST_RANGE.get(track.counter.unit)
    if least_range is None or track.counter.measures not in _ACTIVITY:
        return None
    part = track.during(begin, end)
    at, values = part.at, part.values
    if track.counter.kind == "cumulative":
        spans = np.diff(at)
        positive = spans > 0
        at, values = (at[:-1] + at[1:])[positive] / 2, np.diff(values)[positive] / spans[positive]
    if len(at) < 2:
        return None
    low, high = np.quantile(values, (0.02, 0.98))
    return at, values, float(max(high - low, least_range))


def _bin_means(at: Floats, values: Floats, begin: float, end: float, bins: int) -> Floats:
    """Return the mean of `values` in each of `bins` equal parts of the time from `begin` to `end`, shape (bins,)."""
    places = np.clip(((at - begin) / (end - begin) * bins).astype(int), 0, bins - 1)
    counts = np.bincount(places, minlength=bins)
    sums = np.bincount(places, weights=values, minlength=bins)
    filled = np.flatnonzero(counts)
    means: Floats = np.interp(np.arange(bins), filled, sums[filled] / counts[filled])
    return means


def _distinct_cuts(table: Floats, cuts: Sequence[int], shortest_bins: int) -> list[int]:
    """Return the cuts between phases that differ by at least 0.15 and have at least `shortest_bins` rows."""
    remaining = list(cuts)
    while remaining:
        edges = [0, *remaining, len(table)]
        levels = [np.median(table[low:high], axis=0) for low, high in itertools.pairwise(edges)]
        steps = [float(np.abs(after - before).max()) for before, after in itertools.pairwise(levels)]
        short = [
            min(edges[i + 1] - edges[i], edges[i + 2] - edges[i + 1]) < shortest_bins for i in range(len(remaining))
        ]
        weights = [step - 2 if too_short else step for step, too_short in zip(steps, short, strict=True)]
        weakest = int(np.argmin(weights))
        if weights[weakest] >= _CHANGE:
            break
        del remaining[weakest]
    return remaining


def _change_time(series: Sequence[tuple[Floats, Floats, float]], near_s: float, distance_s: float) -> float:
    """Return the time of a change in s: the middle between two samples at most `distance_s` from `near_s`."""
    best = (0.0, near_s)
    for at, values, scale in series:
        inside = np.flatnonzero((at >= near_s - distance_s) & (at <= near_s + distance_s))
        if len(inside) < 2:
            continue
        scaled, moments = values[inside] / scale, at[inside]
        gains = [_residual_reduction(scaled, cut) for cut in range(1, len(scaled))]
        cut = int(np.argmax(gains)) + 1
        best = max(best, (gains[cut - 1], float(moments[cut - 1] + moments[cut]) / 2))
    return best[1]


def _residual_reduction(part: Floats, cut: int) -> float:
    """Return by how much the sum of squared residuals falls if two means, split at index `cut`, replace one mean."""
    first, last = part[:cut], part[cut:]
    return float(len(first) * len(last) / len(part) * (first.mean() - last.mean()) ** 2)
