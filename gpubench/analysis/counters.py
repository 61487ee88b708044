"""Joining samples to cases: pure functions of a run, by device and by time (CLOCK_MONOTONIC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpubench.model import Counter, Measure, Result, Run, Samples

_Part = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # moments and values


@dataclass(frozen=True, slots=True)
class Track:
    """One counter of one device over a whole run: `at` and `values`, shape (n,), missing ones left out."""

    counter: Counter
    device: str
    at: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]

    def during(self, start: float, end: float) -> Track:
        """The part inside [start, end]; a cumulative counter keeps one reading on either side.

        A reading of a window counter is of the period before it: it has to lie inside as a whole.
        """
        start = start + self.counter.period_s if self.counter.kind == "window" else start
        low, high = int(np.searchsorted(self.at, start, "left")), int(np.searchsorted(self.at, end, "right"))
        if self.counter.kind == "cumulative":
            low, high = max(low - 1, 0), min(high + 1, len(self.at))
        return Track(self.counter, self.device, self.at[low:high], self.values[low:high])

    def beside(self, start: float, end: float) -> Track:
        """The last reading before and the first after a window that may hold none, two periods away at the most."""
        low, high = int(np.searchsorted(self.at, start, "left")), int(np.searchsorted(self.at, end, "right"))
        reach = 2 * self.counter.period_s
        near = [index for index in (low - 1, high) if 0 <= index < len(self.at)]
        near = [index for index in near if start - reach <= self.at[index] <= end + reach]
        return Track(self.counter, self.device, self.at[near], self.values[near])


@dataclass(frozen=True, slots=True)
class CounterFigure:
    """A counter over a case's window. Of a cumulative one `mean` is its rise a second, of an event all its bits."""

    counter: Counter
    device: str
    mean: float
    low: float
    high: float
    samples: int


def figure_of(track: Track) -> CounterFigure | None:
    """Mean, least and greatest of a track; None where it holds too little to say."""
    count = len(track.values)
    if track.counter.kind == "cumulative":
        if count < 2 or track.at[-1] <= track.at[0]:
            return None
        rate = float((track.values[-1] - track.values[0]) / (track.at[-1] - track.at[0]))
        return CounterFigure(track.counter, track.device, rate, rate, rate, count)
    if count == 0:
        return None
    values = track.values
    if track.counter.kind == "event":  # bits: all that were ever set, not their mean
        every = float(np.bitwise_or.reduce(values.astype(np.int64)))
        return CounterFigure(track.counter, track.device, every, every, every, count)
    return CounterFigure(
        track.counter, track.device, float(values.mean()), float(values.min()), float(values.max()), count
    )


class CounterTable:
    """The counters of a run, indexed once, when first asked for: by device, and by what they measure."""

    def __init__(self, counters: Sequence[Counter], samples: Sequence[Samples]) -> None:
        self._counters = counters
        self._samples = samples

    @classmethod
    def of_run(cls, run: Run) -> CounterTable:
        """Return the counters of a run."""
        return cls(run.manifest.counters, run.samples)

    @cached_property
    def tracks(self) -> list[Track]:
        """Every track, in the order of the counters, then devices."""
        chunks: dict[str, dict[str, list[_Part]]] = {}
        for samples in self._samples:
            _gather(samples, chunks)
        return [
            Track(counter, device, *_joined(parts))
            for counter in self._counters
            for device, parts in chunks.get(counter.name, {}).items()
        ]

    @cached_property
    def _by_measure(self) -> dict[tuple[str, Measure], list[Track]]:
        found: dict[tuple[str, Measure], list[Track]] = {}
        for track in self.tracks:
            found.setdefault((track.device, track.counter.measures), []).append(track)
        return found

    def of(self, device: str, measure: Measure) -> Sequence[Track]:
        """Return the tracks of a device that measure this, in the order of the counters."""
        return self._by_measure.get((device, measure), ())

    def during(self, result: Result) -> list[CounterFigure]:
        """The counters of a result's devices, and of the host, over its window."""
        start, end = result.window
        wanted = {*result.devices, "host"}
        parts = (track.during(start, end) for track in self.tracks if track.device in wanted)
        return [figure for part in parts if (figure := figure_of(part))]


def _gather(samples: Samples, chunks: dict[str, dict[str, list[_Part]]]) -> None:
    at = np.asarray(samples.at, dtype=float)
    for name, column in samples.columns:
        values = np.asarray(column, dtype=float)  # None becomes NaN
        there = np.isfinite(values)
        part = (at, values) if there.all() else (at[there], values[there])  # no copy of what has no gap
        chunks.setdefault(name, {}).setdefault(samples.device, []).append(part)


def _joined(parts: list[_Part]) -> _Part:
    """The parts of one counter behind one another, in the order of time."""
    if len(parts) == 1:
        return parts[0]
    at, values = np.concatenate([at for at, _ in parts]), np.concatenate([values for _, values in parts])
    if (np.diff(at) >= 0).all():
        return at, values
    order = np.argsort(at, kind="stable")
    return at[order], values[order]


def extremes(values: npt.NDArray[np.float64], most: int) -> npt.NDArray[np.intp]:
    """Which of too many samples a drawing keeps: the least and the greatest of each of `most` / 2 equal runs.

    The indices, at most `most`, in order: all of them where they are no more. No spike is lost.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    size = -(-count // (most // 2))
    whole = count - count % size
    blocks, starts = values[:whole].reshape(-1, size), np.arange(0, whole, size)
    found = [starts + blocks.argmin(axis=1), starts + blocks.argmax(axis=1)]
    if whole < count:
        found.append(whole + np.array([values[whole:].argmin(), values[whole:].argmax()]))
    return np.unique(np.concatenate(found))
