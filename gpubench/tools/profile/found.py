"""Find the phases of a program without marks: the moments at which its counters change their distribution.

The activity counters are averaged over equal bins. E-divisive finds the change points of all of them at once. Changes
that are too small or leave too short a phase are dropped, and the others are placed between two readings.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpubench.analysis.counters import Track
from gpubench.model import Measure
from gpubench.stats.changepoints import change_points

Floats = npt.NDArray[np.float64]

SHORTEST_S = 1.0  # the shortest phase: ten readings of the fast counters
_BINS = 160  # the time for the search grows with the square: some seconds at most
_LEAST_BIN_S = 0.25  # each bin has one or two readings of the fast counters
_CHANGE = 0.15  # of the range that a counter has in the run: a smaller step begins no phase
_LEAST_RANGE = {"%": 20.0, "W": 20.0, "core·s": 0.5}  # a smaller range is noise; for a cumulative counter, of its rate
_ACTIVITY = (
    *(Measure.BUSY, Measure.BOARD_POWER, Measure.SM_ACTIVITY, Measure.TENSOR_ACTIVITY, Measure.DRAM_SHARE),
    Measure.PROGRAM_CPU_TIME,
)


def changes(tracks: Sequence[Track], begin: float, end: float) -> list[float]:
    """Return the moments in (begin, end) at which a new phase begins, in order; none without activity counters."""
    series = [found for track in tracks if (found := _activity(track, begin, end))]
    bins = int(min(_BINS, (end - begin) / _LEAST_BIN_S))
    if not series or bins < 2:
        return []
    table = np.column_stack([_binned(at, values, begin, end, bins) / scale for at, values, scale in series])
    width = (end - begin) / bins
    cuts = [point.index for point in change_points(table)]
    kept = _distinct(table, cuts, least=max(1, round(SHORTEST_S / width)))
    return [_placed(series, begin + cut * width, reach=1.5 * width) for cut in kept]


def _activity(track: Track, begin: float, end: float) -> tuple[Floats, Floats, float] | None:
    """Return times and values of an activity counter in the window, and the range that its steps are compared with."""
    least = _LEAST_RANGE.get(track.counter.unit)
    if least is None or track.counter.measures not in _ACTIVITY:
        return None
    part = track.during(begin, end)
    at, values = part.at, part.values
    if track.counter.kind == "cumulative":
        spans = np.diff(at)
        there = spans > 0
        at, values = (at[:-1] + at[1:])[there] / 2, np.diff(values)[there] / spans[there]
    if len(at) < 2:
        return None
    low, high = np.quantile(values, (0.02, 0.98))
    return at, values, float(max(high - low, least))


def _binned(at: Floats, values: Floats, begin: float, end: float, bins: int) -> Floats:
    """Return the mean of each bin; a bin without a reading is interpolated between its neighbours."""
    places = np.clip(((at - begin) / (end - begin) * bins).astype(int), 0, bins - 1)
    counts = np.bincount(places, minlength=bins)
    sums = np.bincount(places, weights=values, minlength=bins)
    there = np.flatnonzero(counts)
    found: Floats = np.interp(np.arange(bins), there, sums[there] / counts[there])
    return found


def _distinct(table: Floats, cuts: Sequence[int], least: int) -> list[int]:
    """Return the cuts between phases that differ and are long enough, by removing the weakest cut repeatedly."""
    kept = list(cuts)
    while kept:
        edges = [0, *kept, len(table)]
        levels = [np.median(table[low:high], axis=0) for low, high in itertools.pairwise(edges)]
        steps = [float(np.abs(after - before).max()) for before, after in itertools.pairwise(levels)]
        short = [min(edges[i + 1] - edges[i], edges[i + 2] - edges[i + 1]) < least for i in range(len(kept))]
        weights = [step - 2 if too_short else step for step, too_short in zip(steps, short, strict=True)]
        weakest = int(np.argmin(weights))
        if weights[weakest] >= _CHANGE:
            break
        del kept[weakest]
    return kept


def _placed(series: Sequence[tuple[Floats, Floats, float]], near: float, reach: float) -> float:
    """Return the time of a change between two readings: the least-squares cut of the counter that shows it best."""
    best = (0.0, near)
    for at, values, scale in series:
        inside = np.flatnonzero((at >= near - reach) & (at <= near + reach))
        if len(inside) < 2:
            continue
        part, moments = values[inside] / scale, at[inside]
        gains = [_gain(part, cut) for cut in range(1, len(part))]
        cut = int(np.argmax(gains)) + 1
        best = max(best, (gains[cut - 1], float(moments[cut - 1] + moments[cut]) / 2))
    return best[1]


def _gain(part: Floats, cut: int) -> float:
    """Return by how much two means instead of one reduce the sum of squares."""
    first, last = part[:cut], part[cut:]
    return float(len(first) * len(last) / len(part) * (first.mean() - last.mean()) ** 2)
