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
from gpubench.analysis.bound import Activity, Bound, Use, bound_by
from gpubench.analysis.counters import CounterTable, Track
from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.model import Device, EventBit, EventClass, Measure

Floats = npt.NDArray[np.float64]
Span = tuple[float, float]  # seconds of the run, from when to when

_STEADY = 1.05  # of two readings of a clock that was the same between them
_EDGE_GAPS = 4.0  # readings of a cumulative counter that a span has to cover: each edge is known to one of them
_LOST_GAPS = 20.0  # without a reading: a device that is silent for so long was lost
_LEAST_READINGS = 5  # of power, where the energy counter cannot be used
# Arithmetic of the matrix and vector units; integers are addresses too.
_PIPES = (Measure.TENSOR_ACTIVITY, Measure.FP64_ACTIVITY, Measure.FP32_ACTIVITY, Measure.FP16_ACTIVITY)
_LINKS = (
    ("link.h2d", (Measure.PCIE_SENT, Measure.PCIE_RECEIVED)),
    ("link.peer", (Measure.NVLINK_SENT, Measure.NVLINK_RECEIVED)),
)


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


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes a second of the device's memory over a window: those that a counter saw, and those that the suite counted.

    `counted` is the work of the calls over the whole window, gaps between them included, as the counter sees it.
    """

    seen: float
    counted: float
    by: str

    @property
    def ratio(self) -> float:
        """Seen over counted: below 1 caches served some, above 1 more was moved than the method counts."""
        return self.seen / self.counted

    @property
    def text(self) -> str:
        """`4213 GB/s seen (gpm.dram), 4198 GB/s counted: 100.4 %`."""
        seen, counted = units.quantity(self.seen, "B/s"), units.quantity(self.counted, "B/s")
        return f"{seen} seen ({self.by}), {counted} counted: {units.percent(self.ratio)}"


@dataclass(frozen=True, slots=True)
class Load:
    """What is known of the work in a window beside its counters; nothing has to be.

    `limit` and `of_peak` name the peak that it is compared with and its share of it, `clock_of_spec` is the clock that
    it had over the data sheet's. `call_s` are the seconds of a call, `launch_s` those of an empty kernel timed in the
    same way (0 where launches are not timed), `moved_s` the bytes a second that it counts while
    it runs, `counted_s` those over the whole window. `is_dependent` says that each step waits for the last one's
    answer, `fills_window` that the counters are of this load alone: else only the throttle reasons are used.
    """

    limit: str = ""
    of_peak: tuple[Use, ...] = ()
    clock_of_spec: float | None = None
    call_s: float = 0.0
    launch_s: float = 0.0
    moved_s: float = 0.0
    counted_s: float = 0.0
    is_capped: bool = False
    is_dependent: bool = False
    fills_window: bool = True


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
            if len(self.spans) > 1:  # between them the counter rises too
                risen = self._rise(track)
                return CounterReading(risen / self.seconds, track.counter.name) if risen is not None else None
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

    def traffic(self, load: Load) -> Traffic | None:
        """Return what the memory moved beside what the load counted; None where either is not known."""
        seen = self.dram() if load.counted_s else None
        return Traffic(seen.value, load.counted_s, seen.by) if seen and seen.value else None

    def bound(self, load: Load) -> Bound | None:
        """Return what bounds the load; None where what is known does not tell."""
        return bound_by(self._activity(load))

    def _activity(self, load: Load) -> Activity:
        """How much of each resource was used, by counters and by the load's share of its peak."""
        is_gpu = self._model is not None and self._model.backend != "host"
        alone, limit = load.fills_window, load.limit
        capped = max(self.throttled(EventClass.POWER_CAP) or 0.0, 1.0 if load.is_capped else 0.0)
        is_launched = load.call_s > 0 and load.launch_s > 0
        launch = Use(load.launch_s / load.call_s, "launch time of an empty kernel") if is_launched else None
        return Activity(
            compute=(*(load.of_peak if limit.startswith(("tensor.", "float")) else ()), *self._uses(_PIPES, alone)),
            dram=(*(load.of_peak if limit == "dram" else ()), *(self._memory() if alone else ())),
            l2=(*(load.of_peak if limit == "l2" else ()), *(self._from_cache(load) if alone else ())),
            link=(*(load.of_peak if limit.startswith("link.") else ()), *(self._links() if alone else ())),
            busy=next(iter(self._uses((Measure.BUSY,), alone and is_gpu)), None),
            capped=Use(capped, "samples under the power cap") if is_gpu else None,
            clock=self._own_clock() if alone else _clock_of_spec(load),
            launch=launch if is_gpu else None,
            dependent=load.is_dependent,
        )

    def _uses(self, measures: Sequence[Measure], wanted: bool) -> list[Use]:
        """The shares of these measures that were read, where they are wanted."""
        shares = (self.share(measure) for measure in measures) if wanted else ()
        return [Use(found.value, found.by) for found in shares if found]

    def _memory(self) -> list[Use]:
        found, seen, peak = self._uses((Measure.DRAM_SHARE,), True), self.dram(), self.peak_dram()
        if seen and peak and seen.by not in [use.by for use in found]:
            found.append(Use(seen.value / peak, seen.by))
        return found

    def _from_cache(self, load: Load) -> list[Use]:
        """Where more is counted than the memory moved, and than half of what it could: caches served it."""
        peak, seen = self.peak_dram(), self.dram()
        if not peak or not seen or load.moved_s < peak / 2 or seen.value > load.moved_s / 2:
            return []
        return [Use(1 - seen.value / load.moved_s, f"share of the counted bytes that {seen.by} did not see")]

    def _links(self) -> list[Use]:
        found = []
        for limit, ways in _LINKS:
            peak = hardware.peak(self._model, limit) if self._model else None
            rates = [self.rate(way) for way in ways] if peak else []
            found += [Use(each.value / peak.value, each.by) for each in rates if peak and each and each.value]
        return found

    def _own_clock(self) -> Use | None:
        """The mean clock over the device's own."""
        mean, own = self.mean(Measure.CORE_CLOCK), _own_clock_hz(self._model)
        return Use(mean.value / own, "mean clock over nominal clock") if mean and own else None

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


def _own_clock_hz(model: Device | None) -> float | None:
    """The core clock that the runtime calls the device's own; None where the inventory has none, or no number."""
    text = dict(model.details).get("clock.sm_hz", "") if model else ""
    try:
        return float(text) or None
    except ValueError:
        return None


def _clock_of_spec(load: Load) -> Use | None:
    return Use(load.clock_of_spec, "clock over the data sheet clock") if load.clock_of_spec is not None else None
