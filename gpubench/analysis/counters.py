"""Look up the counters of a run by device and time, and compute their figures for a case. Pure functions of a run.

Times are in seconds of the run (CLOCK_MONOTONIC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpubench.model import Counter, Measure, Result, Run, Samples

_Readings = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # moments in seconds and values, each of shape (n,)


@dataclass(frozen=True, slots=True)
class Track:
    """The readings of one counter on one device over a whole run, in order of time, without missing readings.

    `device` is the id of the device, `at` are the moments of the readings in seconds of the run, and `values` the
    readings in the unit of the counter; both have the shape (readings,)."""

    counter: Counter
    device: str
    at: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]

    def during(self, start: float, end: float) -> Track:
        """Return the track with only the readings in [start, end] (seconds of the run).

        A reading of a window counter counts if the whole period before it, which it covers, lies inside. A cumulative
        counter also keeps the last reading before `start` and the first one after `end`, if there are such readings."""
        start = start + self.counter.period_s if self.counter.kind == "window" else start
        low, high = int(np.searchsorted(self.at, start, "left")), int(np.searchsorted(self.at, end, "right"))
        if self.counter.kind == "cumulative":
            low, high = max(low - 1, 0), min(high + 1, len(self.at))
        return Track(self.counter, self.device, self.at[low:high], self.values[low:high])

    def thinned(self, most: int) -> Track:
        """Return the track with at most `most` readings, among them every spike."""
        kept = extremes(self.values, most)
        return Track(self.counter, self.device, self.at[kept], self.values[kept])

    def around(self, start: float, end: float) -> Track:
        """Return the track with only the last reading before `start` and the first after `end` (seconds of the run).

        A reading more than two periods of the counter away from its end is left out, so that none, one or two remain.
        """
        low, high = int(np.searchsorted(self.at, start, "left")), int(np.searchsorted(self.at, end, "right"))
        reach = 2 * self.counter.period_s
        near = [index for index in (low - 1, high) if 0 <= index < len(self.at)]
        near = [index for index in near if start - reach <= self.at[index] <= end + reach]
        return Track(self.counter, self.device, self.at[near], self.values[near])


@dataclass(frozen=True, slots=True)
class CounterFigure:
    """A counter over the window of a case: mean, minimum and maximum of `samples` readings, in the unit of the counter.

    Of a cumulative counter all three are the rise per second; of an event counter, the mask of all bits that were set.
    """

    counter: Counter
    device: str
    mean: float
    low: float
    high: float
    samples: int


def figure_of(track: Track) -> CounterFigure | None:
    """Return the mean, minimum and maximum of a track, in the unit of its counter.

    The result is None for a track without readings, and for a cumulative counter with fewer than two of them."""
    count = len(track.values)
    if track.counter.kind == "cumulative":
        if count < 2 or track.at[-1] <= track.at[0]:
            return None
        rate = float((track.values[-1] - track.values[0]) / (track.at[-1] - track.at[0]))
        return CounterFigure(track.counter, track.device, rate, rate, rate, count)
    if count == 0:
        return None
    values = track.values
    if track.counter.kind == "event":  # combine all bits that were ever set; a mean of bit masks has no meaning
        all_bits = float(np.bitwise_or.reduce(values.astype(np.int64)))
        return CounterFigure(track.counter, track.device, all_bits, all_bits, all_bits, count)
    return CounterFigure(
        track.counter, track.device, float(values.mean()), float(values.min()), float(values.max()), count
    )


class CounterTable:
    """The counters of a run by device and measure; the tracks are built once, on first use.

    The manifest declares the `counters`; `samples` are all chunks of readings of the run, in any order."""

    def __init__(self, counters: Sequence[Counter], samples: Sequence[Samples]) -> None:
        self._counters = counters
        self._samples = samples

    @classmethod
    def of_run(cls, run: Run) -> CounterTable:
        """Return the counters of a run."""
        return cls(run.manifest.counters, run.samples)

    @cached_property
    def tracks(self) -> list[Track]:
        """All tracks: counters in the order given to the table, then devices in the order of their first samples."""
        chunks: dict[str, dict[str, list[_Readings]]] = {}
        for samples in self._samples:
            _gather(samples, chunks)
        return [
            Track(counter, device, *_joined(parts))
            for counter in self._counters
            for device, parts in chunks.get(counter.name, {}).items()
        ]

    @cached_property
    def _by_measure(self) -> dict[tuple[str, Measure], list[Track]]:
        """The tracks by device id and measure; the tracks of one key in the order of the counters."""
        by_measure: dict[tuple[str, Measure], list[Track]] = {}
        for track in self.tracks:
            by_measure.setdefault((track.device, track.counter.measures), []).append(track)
        return by_measure

    def of(self, device: str, measure: Measure) -> Sequence[Track]:
        """Return the tracks of a device with this measure, in the order of the counters."""
        return self._by_measure.get((device, measure), ())

    def during(self, result: Result) -> list[CounterFigure]:
        """Return the figures of all counters of a result's devices and of the host over the result's window.

        A counter with too few readings in the window is left out."""
        start, end = result.window
        wanted = {*result.devices, "host"}
        parts = (track.during(start, end) for track in self.tracks if track.device in wanted)
        return [figure for part in parts if (figure := figure_of(part))]


def _gather(samples: Samples, chunks: dict[str, dict[str, list[_Readings]]]) -> None:
    """Append the finite readings of `samples` to `chunks[counter name][device id]`, as pairs of arrays."""
    at = np.asarray(samples.at, dtype=float)
    for name, column in samples.columns:
        values = np.asarray(column, dtype=float)  # None becomes NaN
        is_finite = np.isfinite(values)
        part = (
            (at, values) if is_finite.all() else (at[is_finite], values[is_finite])
        )  # a column without gaps is not copied
        chunks.setdefault(name, {}).setdefault(samples.device, []).append(part)


def _joined(parts: list[_Readings]) -> _Readings:
    if len(parts) == 1:
        return parts[0]
    at, values = np.concatenate([at for at, _ in parts]), np.concatenate([values for _, values in parts])
    if (np.diff(at) >= 0).all():
        return at, values
    order = np.argsort(at, kind="stable")
    return at[order], values[order]


def extremes(values: npt.NDArray[np.float64], most: int) -> npt.NDArray[np.intp]:
    """Return the indices of the values that a drawing keeps, ascending, so that every spike stays visible.

    `values` has the shape (n,). With at most `most` values all are kept. Otherwise the values are cut into at most
    `most` / 2 spans of equal length, and the minimum and the maximum of each span are kept; `most` must be at least 2.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    size = -(-count // (most // 2))
    whole = count - count % size
    blocks, starts = values[:whole].reshape(-1, size), np.arange(0, whole, size)
    indices = [starts + blocks.argmin(axis=1), starts + blocks.argmax(axis=1)]
    if whole < count:
        indices.append(whole + np.array([values[whole:].argmin(), values[whole:].argmax()]))
    return np.unique(np.concatenate(indices))
