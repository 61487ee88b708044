"""Make tables of a profiled program: its phases and, if it was traced, its kernels and copies.

Draw the phases of a profiled program and the counters of its devices as lanes over one axis of time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench import stats
from gpubench.analysis import phases
from gpubench.analysis.counters import CounterTable, Span, Track
from gpubench.analysis.phases import TIMES, PhaseFigures, TracedWork, forwarded_work, traced_devices, traced_work
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.table import Table
from gpubench.base import units
from gpubench.model import Measure, Result

_NONE = "–"
_PHASE_SHARES = (
    ("busy", Measure.BUSY),
    ("SM", Measure.SM_ACTIVITY),
    ("tensor", Measure.TENSOR_ACTIVITY),
    ("DRAM", Measure.DRAM_SHARE),
)
_PHASE_HEADS = (
    *("phase", "device", "start", "times", "time", "energy", "power"),
    *(head for head, _ in _PHASE_SHARES),
    *("device memory", "cores", "host memory", "change", "throttle reasons"),
)
_ALWAYS = _PHASE_HEADS[:5]
_PHASE_TEXT_HEADS = ("phase", "device", "throttle reasons")
_MEMORY_NOTE = "host memory: the program's peak in the phase; change: its growth from start to end"
_INTEGRATED_NOTE = "~: mean power × time, because the phase is too short for the energy counter"
_DEVICE_HEADS = ("device", "traced", *TIMES, "events")
_KERNEL_HEADS = ("kernel or copy", "device", "calls", "total", "of busy time", "median", "maximum")
_DEVICE_NOTE = (
    "overlap: a kernel and a copy run at once; launch gaps: idle for less than 1 ms; waits: idle for longer. "
    "A roofline of kernels needs ncu: one pass counts neither operations nor bytes"
)

_ROUND_TRIPS_S = (1e-5, 1e-4, 1e-3)  # round trips from shared memory to another site
_FORWARDING_HEADS = (
    "device",
    "calls that wait",
    "calls",
    *(units.quantity(seconds, "s") for seconds in _ROUND_TRIPS_S),
)
_LINK_BYTES_PER_S = 12.5e9  # 100 Gbit/s
_FORWARDING_NOTE = (
    "a model: 1 + (waiting calls × round trip + copied bytes / 12.5 GB/s) / time traced, for the round trips in the "
    "head; `gpubench run virtual --tier full` measures round trips and copies (forward, forward_copy)"
)


def phase_tables(summary: Summary) -> list[Table]:
    """Return the tables of a profiled program: phases and, if it was traced, device time, kernels, and forwarding.

    A table without rows is left out."""
    return [*_phase_table(summary), *_device_table(summary), *_kernel_table(summary), *_forwarding_table(summary)]


def _phase_table(summary: Summary) -> list[Table]:
    """Return the table with a row for each phase and device, or no table without phases."""
    all_figures = list(_phase_figures(summary))
    if not all_figures:
        return []
    first_begin = min(figures.begin for figures, _ in all_figures)
    rows = [_phase_row(figures, host, first_begin) for figures, host in all_figures]
    columns = [
        place for place, head in enumerate(_PHASE_HEADS) if head in _ALWAYS or any(row[place] != _NONE for row in rows)
    ]
    heads = tuple(_PHASE_HEADS[place] for place in columns)
    cells = tuple(tuple(row[place] for place in columns) for row in rows)
    notes = [_INTEGRATED_NOTE] if any(cell.startswith("~") for row in cells for cell in row) else []
    notes += [_MEMORY_NOTE] if "host memory" in heads else []
    return [Table("Phases", heads, cells, tuple(head for head in heads if head in _PHASE_TEXT_HEADS), "; ".join(notes))]


def _phase_figures(summary: Summary) -> Iterator[tuple[PhaseFigures, PhaseFigures]]:
    for result in phases.phases(summary.run):
        host = phases.figures(result, summary.counters, "host")
        for device in result.devices:
            yield phases.figures(result, summary.counters, device), host


def phase_name(result: Result) -> str:
    """Return the name of a phase for people: `phase train`, `found 3` or `program`."""
    params = ", ".join(units.axis_text(axis, value) for axis, value in result.case.params)
    return f"{result.case.name} {params}".strip()


def _phase_row(figures: PhaseFigures, host: PhaseFigures, first_begin: float) -> tuple[str, ...]:
    """Return the cells of a phase on one device; `host` are the figures of the host in the same phase."""
    energy, memory, shares = figures.energy, host.program_memory, figures.shares
    joules = units.quantity(energy.joules, "J") if energy else _NONE
    reasons = ", ".join(f"{reason.name} {units.percent(reason.share, 0)}" for reason in figures.throttled)
    return (
        phase_name(figures.result),
        figures.device,
        units.duration(figures.begin - first_begin),
        str(figures.times),
        units.duration(figures.seconds),
        f"~{joules}" if energy and energy.is_integrated else joules,
        units.quantity(energy.watts, "W") if energy else _NONE,
        *(units.percent(shares[measure], 0) if measure in shares else _NONE for _, measure in _PHASE_SHARES),
        units.round_size(figures.memory_bytes) if figures.memory_bytes is not None else _NONE,
        units.significant(host.cores) if host.cores is not None else _NONE,
        units.round_size(memory.peak_bytes) if memory else _NONE,
        _change(memory.change_bytes) if memory else _NONE,
        reasons or _NONE,
    )


def _change(change_bytes: float) -> str:
    """Return a change of memory with its sign: `+1.516 GiB` or `−12.00 MiB`."""
    sign = "+" if change_bytes > 0 else "−" if change_bytes < 0 else ""
    return sign + units.round_size(abs(change_bytes))


def _device_table(summary: Summary) -> list[Table]:
    rows = []
    for traced in traced_devices(summary.run):
        times = traced.seconds.values()
        cells = (f"{units.duration(seconds)} ({units.percent(seconds / traced.span_s, 0)})" for seconds in times)
        counts = traced.counts
        lost = f", {counts['dropped']} lost" if counts["dropped"] != "0" else ""
        events = f"{counts['kernels']} kernels, {counts['copies']} copies{lost}"
        rows.append((traced.device, units.duration(traced.span_s), *cells, events))
    return [Table("Time of the device", _DEVICE_HEADS, tuple(rows), ("device", "events"), _DEVICE_NOTE)] if rows else []


def _kernel_table(summary: Summary) -> list[Table]:
    busy = {traced.device: traced.seconds["busy"] for traced in traced_devices(summary.run)}
    rows = [
        (
            _work_name(work),
            work.device,
            f"{work.calls:.0f}",
            units.quantity(work.total_s, "s"),
            units.percent(work.total_s / busy[work.device], 1) if busy.get(work.device) else _NONE,
            units.quantity(stats.median(work.each_s), "s"),
            units.quantity(max(work.each_s), "s"),
        )
        for work in traced_work(summary.run)
    ]
    return [Table("Kernels and copies", _KERNEL_HEADS, tuple(rows), _KERNEL_HEADS[:2])] if rows else []


def _forwarding_table(summary: Summary) -> list[Table]:
    rows = []
    for forwarded in forwarded_work(summary.run):
        slowdowns = [forwarded.slowdowns(round_trip_s, _LINK_BYTES_PER_S) for round_trip_s in _ROUND_TRIPS_S]
        for waiting, calls, place in (("copies to the host", forwarded.fewest, 0), ("every call", forwarded.most, 1)):
            rows.append((forwarded.device, waiting, f"{calls:.0f}", *(f"{pair[place]:.3g} ×" for pair in slowdowns)))
    return (
        [
            Table(
                "Slowdown if calls were forwarded",
                _FORWARDING_HEADS,
                tuple(rows),
                _FORWARDING_HEADS[:2],
                _FORWARDING_NOTE,
            )
        ]
        if rows
        else []
    )


def _work_name(work: TracedWork) -> str:
    """Return the name of a kernel, or of a direction of copies with the bytes copied: `copy h2d, 56.10 MiB`."""
    size = f", {units.round_size(work.size_bytes)}" if work.size_bytes is not None else ""
    return f"{work.name.removeprefix('kernel ')}{size}"


Floats = npt.NDArray[np.float64]

MOST_LANES = 12  # the most phases that are drawn; phases that took less time are left out
_OF_DEVICE = (("busy", Measure.BUSY), ("power", Measure.BOARD_POWER), ("device memory", Measure.MEMORY_USED))
_OF_HOST = (("cores", Measure.PROGRAM_CPU_TIME), ("host memory", Measure.PROGRAM_MEMORY))


@dataclass(frozen=True, slots=True)
class PhaseLane:
    """One phase: the fraction of each column of the time axis in which it ran."""

    name: str
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CounterLane:
    """One counter below the phases: its mean in each column as a fraction of `highest`; None without a reading.

    `highest` is a text with its unit."""

    name: str
    fractions: tuple[float | None, ...]
    highest: str


@dataclass(frozen=True, slots=True)
class PhaseLanes:
    """The phases and the counters of a profiled program over `seconds` of time.

    `left_out` is the number of phases that are not drawn."""

    seconds: float
    lanes: tuple[PhaseLane, ...]
    counters: tuple[CounterLane, ...]
    left_out: int


def phase_lanes(summary: Summary, columns: int) -> PhaseLanes | None:
    """Return the lanes of a profiled program over its run time, which is cut into `columns` equal columns.

    Only the twelve phases that took the most time are drawn, in the order of their starts."""
    all_phases = phases.phases(summary.run)
    program = next((result for result in all_phases if result.case.name == phases.PROGRAM), None)
    if program is None or columns < 1:
        return None
    ((begin, end), *_) = phases.spans_of(program)
    edges = np.linspace(begin, max(end, begin + 1e-9), columns + 1)
    parts = sorted((result for result in all_phases if result is not program), key=_negative_duration)[:MOST_LANES]
    drawn = sorted(parts, key=lambda result: result.window[0])
    return PhaseLanes(
        end - begin,
        tuple(PhaseLane(phase_name(result), _shares_by_column(phases.spans_of(result), edges)) for result in drawn),
        tuple(_counter_lanes(summary.counters, program, edges)),
        len(all_phases) - 1 - len(drawn),
    )


def lane_of(result: Result) -> str:
    """Return the name of a result's lane: its suite, or its phase if it belongs to a profiled program."""
    if not phases.spans_of(result) or result.case.suite != phases.SUITE:
        return result.case.suite
    return phase_name(result).removeprefix(f"{phases.MARKED} ")


def result_lanes(results: Sequence[Result]) -> dict[str, list[tuple[Result, float, float]]]:
    """Return triples of a result, a start and an end (seconds of the run) by the name of the lane.

    A phase of a profiled program has a triple for each time that it ran; only the program and its twelve longest phases
    are included."""
    lanes: dict[str, list[tuple[Result, float, float]]] = {}
    parts = sorted((result for result in results if result.case.suite == phases.SUITE), key=_negative_duration)
    left_out = {id(result) for result in parts[MOST_LANES + 1 :]}  # the program itself is one of them
    for result in results:
        if id(result) not in left_out:
            spans = phases.spans_of(result) if result.case.suite == phases.SUITE else []
            lanes.setdefault(lane_of(result), []).extend((result, *span) for span in spans or [result.window])
    return lanes


def _negative_duration(result: Result) -> float:
    return -sum(end - begin for begin, end in phases.spans_of(result))


def _shares_by_column(spans: Sequence[Span], edges: Floats) -> tuple[float, ...]:
    """Return the fraction of each column that the spans cover, at most 1; `edges` has shape (columns + 1,)."""
    covered = np.zeros(len(edges) - 1)
    for begin, end in spans:
        covered += np.clip(np.minimum(end, edges[1:]) - np.maximum(begin, edges[:-1]), 0.0, None)
    return tuple(np.minimum(covered / np.diff(edges), 1.0).tolist())


def _counter_lanes(table: CounterTable, program: Result, edges: Floats) -> Iterator[CounterLane]:
    devices = [device for device in program.devices if device != "host"]
    for device, names in (*((device, _OF_DEVICE) for device in devices), ("host", _OF_HOST)):
        place = f"{device} " if len(devices) > 1 and device != "host" else ""
        for name, measure in names:
            for track in table.of(device, measure)[:1]:
                is_memory = measure is Measure.PROGRAM_MEMORY
                yield from _lane(place + name, phases.while_running(track) if is_memory else track, edges)


def _lane(name: str, track: Track, edges: Floats) -> Iterator[CounterLane]:
    """Yield the lane of a counter under that name; nothing if it was not read while the program ran."""
    unit, means = track.counter.unit, _means_by_column(track, edges)
    finite_means = means[np.isfinite(means)]
    if not len(finite_means):
        return
    highest = 100.0 if unit == "%" else float(finite_means.max())
    fractions = tuple(None if not np.isfinite(mean) else mean / highest if highest > 0 else 0.0 for mean in means)
    yield CounterLane(name, fractions, _value_text(highest, unit))


def _means_by_column(track: Track, edges: Floats) -> Floats:
    """Return a counter's mean, or a cumulative counter's rise per second, in each column, shape (columns,)."""
    if len(track.at) < 2:
        return np.full(len(edges) - 1, np.nan)
    if track.counter.kind == "cumulative":
        levels = np.interp(edges, track.at, track.values)
        means: Floats = np.diff(levels) / np.diff(edges)
    else:
        places = np.searchsorted(edges, track.at, "right") - 1
        inside = (places >= 0) & (places < len(edges) - 1)
        counts = np.bincount(places[inside], minlength=len(edges) - 1)
        sums = np.bincount(places[inside], track.values[inside], minlength=len(edges) - 1)
        between = np.interp((edges[1:] + edges[:-1]) / 2, track.at, track.values)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), between)
    is_known = (edges[1:] >= track.at[0]) & (edges[:-1] <= track.at[-1])
    return np.where(is_known, means, np.nan)


def _value_text(value: float, unit: str) -> str:
    if unit == "core·s":
        return f"{units.significant(value, 3)} cores"
    return f"{value:.0f} %" if unit == "%" else units.quantity(value, unit)
