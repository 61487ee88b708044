"""Look up the counters of a run by device and time, and compute their figures for a case. Pure functions of a run.

Times are in seconds of the run (CLOCK_MONOTONIC).

Evaluate the counters of one device over one or more spans of time of a case or of a phase of a program.

Counters are looked up by what they measure, never by name, so that a new collector only has to declare its measures. Of
several counters with the same measure, the first in the order of the manifest that was read in the window is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpubench import stats
from gpubench.analysis.bound import SLOWED, Activity, Bound, Use, bound_by
from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.model import Counter, Device, EventBit, EventClass, Measure, Result, Run, Samples

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


Floats = npt.NDArray[np.float64]
Span = tuple[float, float]  # the start and the end in seconds of the run

_STEADY = 1.05  # two readings of a clock within this ratio: the clock did not change between them
_EDGE_GAPS = 4.0  # periods of a cumulative counter that a span must cover: each edge is accurate to one period
_LOST_GAPS = 20.0  # periods without a reading after which a device counts as lost
_LEAST_READINGS = 5  # the fewest power readings that can replace the energy counter
# The arithmetic of matrix and vector units; integer units are left out, because they also compute addresses.
_PIPES = (Measure.TENSOR_ACTIVITY, Measure.FP64_ACTIVITY, Measure.FP32_ACTIVITY, Measure.FP16_ACTIVITY)
_LINKS = (
    ("link.h2d", (Measure.PCIE_SENT, Measure.PCIE_RECEIVED)),
    ("link.peer", (Measure.NVLINK_SENT, Measure.NVLINK_RECEIVED)),
)


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A counter over a window: its value in the counter's unit, or as a fraction or a rate as the method says.

    `by` is the counter's name."""

    value: float
    by: str
    span_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Throttle:
    """A throttle reason: its bit, the fraction of the readings that had it, and that share of the window in seconds."""

    bit: EventBit
    share: float
    seconds: float

    @property
    def name(self) -> str:
        """The driver's name of the reason: `power cap`."""
        return self.bit.name


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """Joules and mean watts over a window.

    `is_integrated` says that the joules are mean power × time, because the energy counter could not be used."""

    joules: float
    watts: float
    is_integrated: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """The memory traffic over a window in bytes per second: `seen` by the counter `by`, and `counted` by the suite.

    `counted` is the work of the calls over the whole window, including the gaps that the counter sees too."""

    seen: float
    counted: float
    by: str

    @property
    def ratio(self) -> float:
        """Seen over counted: below 1, caches served some bytes; above 1, more bytes moved than the method counts."""
        return self.seen / self.counted

    @property
    def text(self) -> str:
        """`4213 GB/s seen (gpm.dram), 4198 GB/s counted: 100.4 %`."""
        seen, counted = units.quantity(self.seen, "B/s"), units.quantity(self.counted, "B/s")
        return f"{seen} seen ({self.by}), {counted} counted: {units.percent(self.ratio)}"


class WindowLoad(NamedTuple):
    """The facts about the work in a window that are not from counters; all are optional.

    `moved_rate` is the counted bytes per second of a running call, `counted_rate` per second of the whole window."""

    limit: str = ""
    of_peak: tuple[Use, ...] = ()
    clock: Use | None = None
    call_s: float = 0.0
    launch_s: float = 0.0
    moved_rate: float = 0.0
    counted_rate: float = 0.0
    is_capped: bool = False
    is_dependent: bool = False
    fills_window: bool = True


class Window:
    """The counters of one device over one or more spans of time.

    `table` has the counters of the whole run."""

    def __init__(self, table: CounterTable, device: str, spans: Sequence[Span], model: Device | None = None) -> None:
        """Store the arguments, which the class describes; nothing is evaluated yet."""
        self.device = device
        self.spans = spans
        self._table = table
        self._model = model
        self._means: dict[Measure, CounterReading | None] = {}

    @cached_property
    def seconds(self) -> float:
        """The total length of the spans in seconds."""
        return sum(end - begin for begin, end in self.spans)

    def mean(self, measure: Measure) -> CounterReading | None:
        """Return the mean of the readings of a counter with that measure inside the spans; None without readings.

        Each reading counts alike; readings of all spans are taken together."""
        if measure not in self._means:
            parts = ((track, self._inside(track)[1]) for track in self._table.of(self.device, measure))
            means = (CounterReading(float(values.mean()), track.counter.name) for track, values in parts if len(values))
            self._means[measure] = next(means, None)
        return self._means[measure]

    def share(self, measure: Measure) -> CounterReading | None:
        """Return the mean of a percentage counter as a fraction; None without readings."""
        mean = self.mean(measure)
        return CounterReading(mean.value / 100, mean.by) if mean else None

    def most(self, measure: Measure) -> float | None:
        """Return the maximum of the readings inside the spans, in the unit of the counter; None without readings."""
        parts = (self._inside(track)[1] for track in self._table.of(self.device, measure))
        return next((float(values.max()) for values in parts if len(values)), None)

    def rate(self, measure: Measure) -> CounterReading | None:
        """Return the rate per second: the mean of a counter of rates, or the rise of a cumulative counter over time.

        The result is None without enough readings."""
        for track in self._table.of(self.device, measure):
            if track.counter.kind != "cumulative":
                if mean := self.mean(measure):
                    return mean
                continue
            if len(self.spans) > 1:  # the rise between the spans must not count
                risen = self._rise(track)
                return CounterReading(risen / self.seconds, track.counter.name) if risen is not None else None
            at, values = self._inside(track)
            if len(at) > 1 and at[-1] > at[0]:
                span_s = float(at[-1] - at[0])
                return CounterReading(float(values[-1] - values[0]) / span_s, track.counter.name, span_s)
        return None

    def rise(self, measure: Measure) -> float | None:
        """Return the rise of a cumulative counter over the spans, in its unit, interpolated linearly between readings.

        The result is None if a span is shorter than four reading periods or not covered by readings, or if the
        counter fell."""
        rises = (self._rise(track) for track in self._table.of(self.device, measure))
        return next((value for value in rises if value is not None), None)

    def clock(self, measure: Measure) -> float | None:
        """Return the mean of the readings of a clock (core or memory) inside the spans in hertz; None if unknown.

        It is unknown if the two differ by more than 5 %, or if there is none."""
        if mean := self.mean(measure):
            return mean.value
        for track in self._table.of(self.device, measure):
            low, high = min(begin for begin, _ in self.spans), max(end for _, end in self.spans)
            values = track.around(low, high).values
            if len(values):  # if the clock changed in between, for example from idle, it is unknown
                return float(values.mean()) if values.max() <= _STEADY * values.min() else None
        return None

    def energy(self) -> EnergyUse | None:
        """Return the energy of the device in the spans: from its energy counter, else mean power × time.

        The result is None if the device was lost during the spans, or if there are fewer than five readings of the
        power."""
        powers = self._table.of(self.device, Measure.BOARD_POWER)
        if any(len(track.at) > 1 and not self._reaches_end(track) for track in powers):
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
        """Return the throttle reasons that occurred in the spans, the lowest bit first, without idle and set clocks."""
        return tuple(
            Throttle(bit, share, share * self.seconds)
            for track in self._table.of(self.device, Measure.THROTTLE_REASONS)
            for bit, share in bit_shares(track, self._inside(track)[1])
            if bit.slows
        )

    def throttled(self, kind: EventClass) -> float | None:
        """Return the largest share, a fraction, of the readings that any single throttle reason of a class has.

        It is 0 if no such reason occurred, and None if the throttle reasons were not read."""
        if not any(len(self._inside(track)[1]) for track in self._table.of(self.device, Measure.THROTTLE_REASONS)):
            return None
        return max((reason.share for reason in self.throttling() if reason.bit.kind is kind), default=0.0)

    def peak_dram(self) -> float | None:
        """Return the peak of the memory at its measured clock in B/s; None if clock or bus width are unknown."""
        per_clock = hardware.bytes_per_memory_clock(self._model) if self._model else None
        clock_hz = self.mean(Measure.MEMORY_CLOCK)
        return per_clock.value * clock_hz.value if per_clock and clock_hz else None

    def dram(self) -> CounterReading | None:
        """Return the memory traffic in B/s: from counters of bytes, else busy share × peak; None if unknown."""
        read, written = self.rate(Measure.DRAM_READ), self.rate(Measure.DRAM_WRITTEN)
        if read and written:
            return CounterReading(read.value + written.value, f"{read.by} + {written.by}")
        share, peak = self.share(Measure.DRAM_SHARE), self.peak_dram()
        return CounterReading(share.value * peak, share.by) if share and peak else None

    def traffic(self, load: WindowLoad) -> Traffic | None:
        """Return the memory traffic as the counters saw it and as the load counts it; None if either is unknown."""
        seen = self.dram() if load.counted_rate else None
        return Traffic(seen.value, load.counted_rate, seen.by) if seen and seen.value else None

    def bound(self, load: WindowLoad) -> Bound | None:
        """Return the bound of the load; None if the counters and shares do not decide."""
        return bound_by(self._activity(load))

    def _activity(self, load: WindowLoad) -> Activity:
        """Return the used share of each resource, from the counters and from the load's share of its peak."""
        is_gpu = self._model is not None and self._model.backend != "host"
        alone, limit = load.fills_window, load.limit
        capped = max(self.throttled(EventClass.POWER_CAP) or 0.0, 1.0 if load.is_capped else 0.0)
        is_launched = load.call_s > 0 and load.launch_s > 0
        launch = Use(load.launch_s / load.call_s, "launch time of an empty kernel") if is_launched else None
        return Activity(
            compute=(*(load.of_peak if limit.startswith(("tensor.", "float")) else ()), *self._uses(_PIPES, alone)),
            dram=(*(load.of_peak if limit == "dram" else ()), *(self._memory() if alone else ())),
            l2=(*(load.of_peak if limit == "l2" else ()), *(self._served_by_cache(load) if alone else ())),
            link=(*(load.of_peak if limit.startswith("link.") else ()), *(self._links() if alone else ())),
            busy=next(iter(self._uses((Measure.BUSY,), alone and is_gpu)), None),
            capped=Use(capped, "samples under the power cap") if is_gpu else None,
            clock=self._core_clock_use() if alone else load.clock,
            launch=launch if is_gpu else None,
            dependent=load.is_dependent,
        )

    def _uses(self, measures: Sequence[Measure], wanted: bool) -> list[Use]:
        """Return the mean shares of the measures that were read; an empty list if `wanted` is False."""
        shares = (self.share(measure) for measure in measures) if wanted else ()
        return [Use(reading.value, reading.by) for reading in shares if reading]

    def _memory(self) -> list[Use]:
        uses, seen, peak = self._uses((Measure.DRAM_SHARE,), True), self.dram(), self.peak_dram()
        if seen and peak and seen.by not in [use.by for use in uses]:
            uses.append(Use(seen.value / peak, seen.by))
        return uses

    def _served_by_cache(self, load: WindowLoad) -> list[Use]:
        """Return the share of the load's counted bytes that caches served, as a list of one use, or an empty list."""
        peak, seen = self.peak_dram(), self.dram()
        if not peak or not seen or load.moved_rate < peak / 2 or seen.value > load.moved_rate / 2:
            return []
        return [Use(1 - seen.value / load.moved_rate, f"share of the counted bytes that {seen.by} did not see")]

    def _links(self) -> list[Use]:
        """Return the used share of each direction of each link that had traffic; empty if the peaks are unknown."""
        uses = []
        for limit, measures in _LINKS:
            peak = hardware.peak(self._model, limit) if self._model else None
            rates = [self.rate(measure) for measure in measures] if peak else []
            uses += [
                Use(reading.value / peak.value, reading.by) for reading in rates if peak and reading and reading.value
            ]
        return uses

    def _core_clock_use(self) -> Use | None:
        mean, nominal_hz = self.mean(Measure.CORE_CLOCK), _nominal_clock_hz(self._model)
        return Use(mean.value / nominal_hz, "mean clock over nominal clock") if mean and nominal_hz else None

    def _inside(self, track: Track) -> tuple[Floats, Floats]:
        """Return the moments (s) and values read in any of the spans, shape (readings,)."""
        before = track.counter.period_s if track.counter.kind == "window" else 0.0
        if len(self.spans) == 1:  # nearly every case has one span
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

    def _reaches_end(self, track: Track) -> bool:
        gap = stats.median(np.diff(track.at).tolist())
        return max(end for _, end in self.spans) <= float(track.at[-1]) + _LOST_GAPS * gap


def bit_shares(track: Track, readings: Floats, weights: Floats | None = None) -> list[tuple[EventBit, float]]:
    """Return each bit that any reading of an event counter has set, with the fraction of the readings with it.

    Each reading counts alike, or by its weight."""
    values = readings.astype(np.int64)
    all_bits = int(np.bitwise_or.reduce(values)) if len(values) else 0
    return [
        (bit, float(np.average((values & bit.mask) > 0, weights=weights))) for bit in track.counter.events(all_bits)
    ]


def _nominal_clock_hz(model: Device | None) -> float | None:
    """Return the nominal core clock of a device in hertz; None if the inventory states none or no number."""
    text = dict(model.details).get("clock.sm_hz", "") if model else ""
    try:
        return float(text) or None
    except ValueError:
        return None


def is_slowed(clock_hz: float | None, model: Device) -> bool:
    """Return whether a core clock is below 97 % of the device's own; True if one of the two is unknown."""
    nominal_hz = _nominal_clock_hz(model)
    return not clock_hz or not nominal_hz or clock_hz < SLOWED * nominal_hz
