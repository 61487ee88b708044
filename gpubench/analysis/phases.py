"""Compute the figures of each device in the phases of a profiled program. Pure functions of a run.

A phase is a result of the suite `profile` whose series `time` holds its starts (`at`) and its durations.

Read from a traced run how its devices spent their time, and their kernels and copies. Pure functions of a run.

`gpubench profile --trace` writes these results in the suite `profile`. A result of the same name without one of these
parts was written by another program and is left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpubench.analysis.counters import CounterTable, EnergyUse, Floats, Span, Throttle, Track, Window, bit_shares
from gpubench.model import Measure, Result, Run

SUITE = "profile"
PROGRAM, MARKED, FOUND, PART = "program", "phase", "found", "part"  # the names of its cases
TIME = "time"
SHARES = (Measure.BUSY, Measure.SM_ACTIVITY, Measure.TENSOR_ACTIVITY, Measure.DRAM_SHARE)
_LEAST_COVERED = 0.5  # the least share of a phase that intervals of readings must cover for a figure
_GAP_PERIODS = 2.0  # a reading that is later than this after the one before it covers its own period alone


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of a program's memory in a phase: the highest value, and by how much it grew from begin to end.

    For a phase that ran several times, `change_bytes` is the sum over all times."""

    peak_bytes: float
    change_bytes: float


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """The figures of one device in a phase; a figure is None if the device has no such counter or too few readings.

    `begin` is the first start of the phase in seconds of the run, `times` how often it ran, and `seconds` its total
    time."""

    result: Result
    device: str
    begin: float
    times: int
    seconds: float
    energy: EnergyUse | None
    shares: Mapping[Measure, float]
    memory_bytes: float | None
    cores: float | None
    program_memory: MemoryUse | None
    throttled: tuple[Throttle, ...]


def phases(run: Run) -> list[Result]:
    """Return the phases of a profiled program and the program itself, in the order of the file."""
    return [result for result in run.results if result.case.suite == SUITE and spans_of(result)]


def spans_of(result: Result) -> list[Span]:
    """Return the start and the end of a phase for each time that it ran, in seconds of the run; empty for no phase."""
    for series in result.series:
        if series.label == TIME and series.at:
            return [(at, at + value) for at, value in zip(series.at, series.values, strict=True)]
    return []


def figures(result: Result, table: CounterTable, device: str) -> PhaseFigures:
    """Return the figures of a phase on the device with that id: time, energy, busy shares, memory and throttling.

    For the id `host` they are the cores and the memory of the program's processes."""
    spans = spans_of(result)
    window = Window(table, device, spans)
    shares = {measure: share for measure in SHARES if (share := _share(table.of(device, measure), spans)) is not None}
    cpu_s = window.rise(Measure.PROGRAM_CPU_TIME)
    return PhaseFigures(
        result,
        device,
        min((begin for begin, _ in spans), default=result.window[0]),
        len(spans),
        window.seconds,
        window.energy(),
        shares,
        window.most(Measure.MEMORY_USED),
        cpu_s / window.seconds if cpu_s is not None and window.seconds > 0 else None,
        _program_memory(table, device, spans),
        tuple(
            Throttle(bit, share, share * window.seconds)
            for track in table.of(device, Measure.THROTTLE_REASONS)
            for bit, share in bit_shares(track, *_weighted(track, spans))
            if bit.slows
        ),
    )


def _share(tracks: Sequence[Track], spans: Sequence[Span]) -> float | None:
    weighted = (_weighted(track, spans) for track in tracks)
    return next((float(np.average(values, weights=weights)) / 100 for values, weights in weighted if len(values)), None)


def _weighted(track: Track, spans: Sequence[Span]) -> tuple[Floats, Floats]:
    """Return the readings that count in the spans, and the share of each one's interval that the spans cover."""
    ordered = np.array(sorted(spans)).reshape(-1, 2)
    ends = np.maximum.accumulate(ordered[:, 1])
    begins = np.maximum(ordered[:, 0], np.concatenate([[-np.inf], ends])[:-1])  # nested spans count once
    nothing = track.values[:0], track.values[:0]
    if not len(track.at) or not (ends > begins).any():
        return nothing
    if track.counter.kind not in ("window", "event"):  # a value of a moment has no interval and counts where it lies
        place = np.searchsorted(begins, track.at, "right") - 1
        values = track.values[(place >= 0) & (track.at <= ends[place])]
        return values, np.ones(len(values))
    low = int(np.searchsorted(track.at, begins[0], "right"))
    high = int(np.searchsorted(track.at, ends[-1], "left")) + 1  # the interval of the next reading begins inside
    at, period_s = track.at[low:high], track.counter.period_s
    before = np.concatenate([[-np.inf], track.at])[low : low + len(at)]
    since = np.where(at - before <= _GAP_PERIODS * period_s, before, at - period_s)
    edges, done_s = np.stack([begins, ends], 1).ravel(), np.cumsum(ends - begins)  # seconds of the phase until each end
    done_at_edges_s = np.stack([done_s - (ends - begins), done_s], 1).ravel()
    inside_s = np.interp(at, edges, done_at_edges_s) - np.interp(since, edges, done_at_edges_s)
    if inside_s.sum() < _LEAST_COVERED * done_s[-1]:  # the rest of the phase is unknown
        return nothing
    covered = inside_s > 0
    return track.values[low:high][covered], inside_s[covered] / (at - since)[covered]


def while_running(track: Track) -> Track:
    """Return a track of the program's memory without the readings of 0 bytes after the program ended."""
    is_running = track.values > 0
    return Track(track.counter, track.device, track.at[is_running], track.values[is_running])


def _program_memory(table: CounterTable, device: str, spans: Sequence[Span]) -> MemoryUse | None:
    """Return the memory of the program over the spans of a phase; None without such a counter on `device`."""
    for track in map(while_running, table.of(device, Measure.PROGRAM_MEMORY)):
        begins, ends = np.asarray([begin for begin, _ in spans]), np.asarray([end for _, end in spans])
        reach = 3 * track.counter.period_s
        at = track.at
        if len(at) and begins.min() >= at[0] - reach and ends.max() <= at[-1] + reach:
            before, after = (np.interp(edges, at, track.values) for edges in (begins, ends))
            inside = [float(part.max()) for span in spans if len(part := track.during(*span).values)]
            return MemoryUse(max([*inside, float(before.max()), float(after.max())]), float((after - before).sum()))
    return None


TIMES = ("busy", "kernels", "copies", "overlap", "launch gaps", "waits")  # times of a device in seconds
_COUNTS = ("kernels", "copies", "dropped")


@dataclass(frozen=True, slots=True)
class TracedDevice:
    """One traced device: `seconds` by the names of TIMES, out of `span_s` seconds.

    `counts` are the numbers of kernels, copies and dropped events as texts."""

    device: str
    span_s: float
    seconds: Mapping[str, float]
    counts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TracedWork:
    """One kernel or one kind of copy on one device: its number of calls and their seconds in total.

    `each_s` are the seconds of each call, and `size_bytes` the bytes of all copies; None for a kernel."""

    name: str
    device: str
    calls: float
    total_s: float
    each_s: Sequence[float]
    size_bytes: float | None


def traced_devices(run: Run) -> list[TracedDevice]:
    """Return the traced devices of a run, in the order of the file.

    Devices with missing times or counts are left out."""
    devices = []
    for result in _results(run, "trace"):
        values, notes = _values(result), dict(result.notes)
        span_s = result.window[1] - result.window[0]
        if span_s > 0 and all(map(values.get, TIMES)) and notes.keys() >= set(_COUNTS):
            seconds = {name: values[name][0] for name in TIMES}
            devices.append(TracedDevice(result.devices[0], span_s, seconds, {name: notes[name] for name in _COUNTS}))
    return devices


def traced_work(run: Run) -> list[TracedWork]:
    """Return the traced kernels of a run, then its copies, both in the order of the file.

    A result without its parameter, total, calls or times is left out."""
    work = []
    for result in (*_results(run, "kernel"), *_results(run, "copy")):
        values = _values(result)
        if result.case.params and all(map(values.get, ("total", "each", "calls"))):
            name = f"{result.case.name} {result.case.params[0][1]}"
            size_bytes = values.get("bytes", [None])[0]
            calls, total_s = values["calls"][0], values["total"][0]
            work.append(TracedWork(name, result.devices[0], calls, total_s, values["each"], size_bytes))
    return work


@dataclass(frozen=True, slots=True)
class ForwardedWork:
    """What a traced program would send to a device of another machine: bytes, and the calls that would wait.

    `fewest` counts its copies to the host, whose result a program needs; `most` counts all launches and copies."""

    device: str
    span_s: float
    fewest: float
    most: float
    copied_bytes: float  # by all copies between the host and the device

    def slowdowns(self, round_trip_s: float, bytes_per_s: float) -> tuple[float, float]:
        """Return the run time over the time traced if only the fewest calls wait, and if the most do.

        The model is 1 + (waiting calls × round trip + bytes / bandwidth of the link) / time traced."""
        copying_s = self.copied_bytes / bytes_per_s
        fewest, most = ((calls * round_trip_s + copying_s) / self.span_s for calls in (self.fewest, self.most))
        return 1.0 + fewest, 1.0 + most


def forwarded_work(run: Run) -> list[ForwardedWork]:
    """Return for each traced device what would be forwarded; without it a device whose number of calls is unknown."""
    copies = [work for work in traced_work(run) if work.name in ("copy h2d", "copy d2h")]
    forwarded = []
    for traced in traced_devices(run):
        counts = [traced.counts[name] for name in ("kernels", "copies")]
        if all(count.isdecimal() for count in counts):
            own = [work for work in copies if work.device == traced.device]
            to_host = sum(work.calls for work in own if work.name == "copy d2h")
            copied = sum(work.size_bytes or 0.0 for work in own)
            forwarded.append(ForwardedWork(traced.device, traced.span_s, to_host, sum(map(int, counts)), copied))
    return forwarded


def _results(run: Run, name: str) -> list[Result]:
    of_suite = [result for result in run.results if result.case.suite == SUITE]
    return [result for result in of_suite if result.case.name == name and result.status == "ok"]


def _values(result: Result) -> dict[str, Sequence[float]]:
    return {series.label: series.values for series in result.series if series.values}
