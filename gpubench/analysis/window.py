"""One device over one or more spans of time: what its counters say of a case, or of a phase of a program.

Counters are asked for by what they measure, never by name, so that a collector that declares a measure takes part in
everything at once. Where several counters measure the same, the first that was read in the window speaks, in the order
of the manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpubench import stats
from gpubench.analysis.counters import CounterTable, Track
from gpubench.knowledge import hardware
from gpubench.model import Device, EventBit, EventClass, Measure

Floats = npt.NDArray[np.float64]
Span = tuple[float, float]  # seconds of the run, from when to when

_STEADY = 1.05  # of two readings of a clock that was the same between them
_EDGE_GAPS = 4.0  # readings of a cumulative counter that a span has to cover: each edge is known to one of them
_LOST_GAPS = 20.0  # without a reading: a device that is silent for so long was lost
_LEAST_READINGS = 5  # of power, where the energy counter cannot be used


@dataclass(frozen=True, slots=True)
class CounterReading:
    """What counters say over a window: the value in the counter's unit, the counter's name, and the readings' span."""

    value: float
    by: str
    span_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Throttle:
    """A reason that held a device back: its bit, the share of the readings that had it, and that share of the time."""

    bit: EventBit
    share: float
    seconds: float

    @property
    def name(self) -> str:
        """What the driver calls the reason: `power cap`."""
        return self.bit.name


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """Joules and mean watts over a window; `is_integrated` where they are mean power times time, for want of better."""

    joules: float
    watts: float
    is_integrated: bool


class Window:
    """The counters of one device over `spans`; `model` is what the inventory says of it, where that is known."""

    def __init__(self, table: CounterTable, device: str, spans: Sequence[Span], model: Device | None = None) -> None:
        self.device = device
        self.spans = spans
        self._table = table
        self._model = model
        self._means: dict[Measure, CounterReading | None] = {}

    @cached_property
    def seconds(self) -> float:
        """How long the spans are together."""
        return sum(end - begin for begin, end in self.spans)

    def mean(self, measure: Measure) -> CounterReading | None:
        """Return the mean of the readings inside the window; None where there are none."""
        if measure not in self._means:
            parts = ((track, self._inside(track)[1]) for track in self._table.of(self.device, measure))
            found = (CounterReading(float(values.mean()), track.counter.name) for track, values in parts if len(values))
            self._means[measure] = next(found, None)
        return self._means[measure]

    def share(self, measure: Measure) -> CounterReading | None:
        """Return the mean of a counter of per cent as a fraction."""
        found = self.mean(measure)
        return CounterReading(found.value / 100, found.by) if found else None

    def most(self, measure: Measure) -> float | None:
        """Return the largest reading inside the window."""
        parts = (self._inside(track)[1] for track in self._table.of(self.device, measure))
        return next((float(values.max()) for values in parts if len(values)), None)

    def rate(self, measure: Measure) -> CounterReading | None:
        """Return what a counter says a second: the mean of one that counts by the second, the rise of a cumulative one.

        The rise is that between the first and the last reading inside, `span_s` apart.
        """
        for track in self._table.of(self.device, measure):
            if track.counter.kind != "cumulative":
                if found := self.mean(measure):
                    return found
                continue
            at, values = self._inside(track)
            if len(at) > 1 and at[-1] > at[0]:
                span_s = float(at[-1] - at[0])
                return CounterReading(float(values[-1] - values[0]) / span_s, track.counter.name, span_s)
        return None

    def rise(self, measure: Measure) -> float | None:
        """Return how far a cumulative counter rose in the spans, between its readings in a straight line.

        None where a span is too short for its edges to be known, or the counter fell.
        """
        found = (self._rise(track) for track in self._table.of(self.device, measure))
        return next((value for value in found if value is not None), None)

    def clock(self, measure: Measure) -> float | None:
        """Return the mean clock in hertz; in a window between two readings, theirs where they agree."""
        if found := self.mean(measure):
            return found.value
        for track in self._table.of(self.device, measure):
            low, high = min(begin for begin, _ in self.spans), max(end for _, end in self.spans)
            values = track.beside(low, high).values
            if len(values):  # where it changed meanwhile, from idle for one, nobody knows what it was
                return float(values.mean()) if values.max() <= _STEADY * values.min() else None
        return None

    def energy(self) -> EnergyUse | None:
        """Return what the device took in the spans: by its energy counter, else by mean power times time.

        None of a device that was lost on the way, and where there are too few readings to say.
        """
        powers = self._table.of(self.device, Measure.BOARD_POWER)
        if any(len(track.at) > 1 and not self._reaches(track) for track in powers):
            return None
        joules = self.rise(Measure.ENERGY)
        if joules is not None and self.seconds > 0:
            return EnergyUse(joules, joules / self.seconds, False)
        values = next((part for track in powers if len(part := self._inside(track)[1])), np.empty(0))
        if len(values) < _LEAST_READINGS:
            return None
        watts = float(values.mean())
        return EnergyUse(watts * self.seconds, watts, True)

    def throttling(self) -> tuple[Throttle, ...]:
        """Return each reason that held the device back, the lowest bit first; idle and user-set clocks are none."""
        return tuple(
            Throttle(bit, share, share * self.seconds)
            for track in self._table.of(self.device, Measure.THROTTLE_REASONS)
            for bit, share in _bits(track, self._inside(track)[1])
            if bit.slows
        )

    def throttled(self, kind: EventClass) -> float | None:
        """Return the largest share of the readings that had a reason of that class; None without such a counter."""
        if not any(len(self._inside(track)[1]) for track in self._table.of(self.device, Measure.THROTTLE_REASONS)):
            return None
        return max((each.share for each in self.throttling() if each.bit.kind is kind), default=0.0)

    def peak_dram(self) -> float | None:
        """Return bytes a second of the memory at the clock that it had; None where clock or bus are not known."""
        per_clock = hardware.bytes_per_memory_clock(self._model) if self._model else None
        clock_hz = self.mean(Measure.MEMORY_CLOCK)
        return per_clock.value * clock_hz.value if per_clock and clock_hz else None

    def dram(self) -> CounterReading | None:
        """Return bytes a second that the memory moved: counted, or else as the share that was busy of its peak."""
        read, written = self.rate(Measure.DRAM_READ), self.rate(Measure.DRAM_WRITTEN)
        if read and written:
            return CounterReading(read.value + written.value, f"{read.by} + {written.by}")
        share, peak = self.share(Measure.DRAM_SHARE), self.peak_dram()
        return CounterReading(share.value * peak, share.by) if share and peak else None

    def _inside(self, track: Track) -> tuple[Floats, Floats]:
        """The moments and values that were read in any of the spans; those of spans that overlap, each time.

        A reading of a window counter is of the period before it: it has to lie inside as a whole.
        """
        before = track.counter.period_s if track.counter.kind == "window" else 0.0
        if len(self.spans) == 1:  # of a case, nearly always
            ((begin, end),) = self.spans
            first, past = track.at.searchsorted(begin + before, "left"), track.at.searchsorted(end, "right")
            return track.at[first:past], track.values[first:past]
        low = np.searchsorted(track.at, [begin + before for begin, _ in self.spans], "left")
        high = np.searchsorted(track.at, [end for _, end in self.spans], "right")
        parts = [slice(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        if not parts:
            return track.at[:0], track.values[:0]
        return np.concatenate([track.at[part] for part in parts]), np.concatenate(
            [track.values[part] for part in parts]
        )

    def _rise(self, track: Track) -> float | None:
        if len(track.at) < 2 or not self.spans:
            return None
        gap = stats.median(np.diff(track.at).tolist())
        begins, ends = np.asarray([begin for begin, _ in self.spans]), np.asarray([end for _, end in self.spans])
        covered = begins.min() >= track.at[0] - 2 * gap and ends.max() <= track.at[-1] + 2 * gap
        if not covered or float((ends - begins).min()) < _EDGE_GAPS * gap:
            return None
        rises = np.interp(ends, track.at, track.values) - np.interp(begins, track.at, track.values)
        return float(rises.sum()) if (rises >= 0).all() else None

    def _reaches(self, track: Track) -> bool:
        """Whether its readings go on to the end of the spans: those of a device that was lost do not."""
        gap = stats.median(np.diff(track.at).tolist())
        return max(end for _, end in self.spans) <= float(track.at[-1]) + _LOST_GAPS * gap


def _bits(track: Track, readings: Floats) -> list[tuple[EventBit, float]]:
    """Each bit that was ever set, with the share of the readings that had it."""
    values = readings.astype(np.int64)
    every = int(np.bitwise_or.reduce(values)) if len(values) else 0
    return [(bit, float(((values & bit.mask) > 0).mean())) for bit in track.counter.events(every)]
