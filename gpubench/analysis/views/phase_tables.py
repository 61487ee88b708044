"""Make tables of a profiled program: its phases and, if it was traced, its kernels and copies."""

from collections.abc import Iterator

from gpubench import stats
from gpubench.analysis import phases
from gpubench.analysis.phases import PhaseFigures
from gpubench.analysis.summary import Summary
from gpubench.analysis.traced import TIMES, TracedWork, forwarded_work, traced_devices, traced_work
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
    energy, memory = figures.energy, host.program_memory
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
        *(_share(figures.shares.get(measure)) for _, measure in _PHASE_SHARES),
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


def _share(share: float | None) -> str:
    return units.percent(share, 0) if share is not None else _NONE


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
