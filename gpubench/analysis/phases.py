"""Compute the figures of each device in the phases of a profiled program. Pure functions of a run.

A phase is a result of the suite `profile` whose series `time` holds its starts (`at`) and its durations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpubench.analysis.counters import CounterTable, Track
from gpubench.analysis.window import EnergyUse, Span, Throttle, Window
from gpubench.model import Measure, Result, Run

SUITE = "profile"
PROGRAM, MARKED, FOUND, PART = "program", "phase", "found", "part"  # the names of its cases
TIME = "time"
SHARES = (Measure.BUSY, Measure.SM_ACTIVITY, Measure.TENSOR_ACTIVITY, Measure.DRAM_SHARE)


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

    For the id `host` they are those of the program's processes: cores and memory."""
    spans = spans_of(result)
    window = Window(table, device, spans)
    shares = {measure: reading.value for measure in SHARES if (reading := window.share(measure))}
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
        window.throttling(),
    )


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
