"""What a profiled program did, as tables of words: its phases, and of a traced one its kernels."""

from __future__ import annotations

from collections.abc import Iterator

from gpubench import stats
from gpubench.analysis import phases
from gpubench.analysis.phases import PhaseFigures
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.tables import Table
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
    *("phase", "device", "times", "time", "energy", "power"),
    *(head for head, _ in _PHASE_SHARES),
    *("memory, most", "cores", "held back by"),
)
_PHASE_WORDS = ("phase", "device", "held back by")
_INTEGRATED_NOTE = "~ is mean power times time: the phase is too short for the energy counter"
_TIMES = ("busy", "kernels", "copies", "overlap", "launch gaps", "waits")  # of a traced device, seconds
_DEVICE_HEADS = ("device", "traced", *_TIMES, "events")
_KERNEL_HEADS = ("kernel or copy", "device", "calls", "total", "of busy", "median", "most", "bytes")
_DEVICE_NOTE = (
    "overlap: a kernel and a copy at once; launch gaps: nothing ran for less than 1 ms; waits: for longer. "
    "No roofline of the kernels: one pass gives neither their operations nor their bytes; ncu takes several"
)


def phase_tables(summary: Summary) -> list[Table]:
    """The phases of a profiled program; where it was traced, where its devices' time went, its kernels and copies."""
    return [*_phase_table(summary), *_device_table(summary), *_kernel_table(summary)]


def _phase_table(summary: Summary) -> list[Table]:
    """What each device did in each phase, a row both; columns that nothing is known for are left out."""
    rows = [_phase(figures, host) for figures, host in _phase_figures(summary)]
    if not rows:
        return []
    kept = [place for place, head in enumerate(_PHASE_HEADS) if place < 4 or any(row[place] != _NONE for row in rows)]
    heads = tuple(_PHASE_HEADS[place] for place in kept)
    cells = tuple(tuple(row[place] for place in kept) for row in rows)
    note = _INTEGRATED_NOTE if any(cell.startswith("~") for row in cells for cell in row) else ""
    return [Table("Phases", heads, cells, tuple(head for head in heads if head in _PHASE_WORDS), note)]


def _phase_figures(summary: Summary) -> Iterator[tuple[PhaseFigures, PhaseFigures]]:
    """Of each phase and device its figures, and those of the host meanwhile."""
    for result in phases.phases(summary.run):
        host = phases.figures(result, summary.counters, "host")
        for device in result.devices:
            yield phases.figures(result, summary.counters, device), host


def _phase(found: PhaseFigures, host: PhaseFigures) -> tuple[str, ...]:
    case = found.result.case
    name = ", ".join(units.axis_text(axis, value) for axis, value in case.params)
    energy = found.energy
    joules = units.quantity(energy.joules, "J") if energy else _NONE
    held = ", ".join(f"{reason.name} {units.percent(reason.share, 0)}" for reason in found.throttled)
    return (
        f"{case.name} {name}".strip(),
        found.device,
        str(found.times),
        units.duration(found.seconds),
        f"~{joules}" if energy and energy.is_integrated else joules,
        units.quantity(energy.watts, "W") if energy else _NONE,
        *(_share(found.shares.get(measure)) for _, measure in _PHASE_SHARES),
        units.round_size(found.memory_bytes) if found.memory_bytes is not None else _NONE,
        units.significant(host.cores) if host.cores is not None else _NONE,
        held or _NONE,
    )


def _share(share: float | None) -> str:
    return units.percent(share, 0) if share is not None else _NONE


def _device_table(summary: Summary) -> list[Table]:
    """Where the time of each traced device went."""
    rows = []
    for result in _traced(summary, "trace"):
        seconds = {series.label: series.values[0] for series in result.series}
        span = result.window[1] - result.window[0]
        cells = (f"{units.duration(seconds[name])} ({units.percent(seconds[name] / span, 0)})" for name in _TIMES)
        notes = dict(result.notes)
        lost = f", {notes['dropped']} lost" if notes.get("dropped", "0") != "0" else ""
        counts = f"{notes['kernels']} kernels, {notes['copies']} copies{lost}"
        rows.append((result.devices[0], units.duration(span), *cells, counts))
    return [Table("Time of the device", _DEVICE_HEADS, tuple(rows), ("device", "events"), _DEVICE_NOTE)] if rows else []


def _kernel_table(summary: Summary) -> list[Table]:
    """The kernels that take the most time, and the copies."""
    busy = {result.devices: result.series[0].values[0] for result in _traced(summary, "trace")}
    rows = []
    for result in (*_traced(summary, "kernel"), *_traced(summary, "copy")):
        values = {series.label: series.values for series in result.series}
        (total,), (calls,) = values["total"], values["calls"]
        rows.append(
            (
                f"{result.case.name} {result.case.params[0][1]}",
                result.devices[0],
                f"{calls:.0f}",
                units.quantity(total, "s"),
                units.percent(total / busy[result.devices], 1) if busy.get(result.devices) else _NONE,
                units.quantity(stats.median(values["each"]), "s"),
                units.quantity(max(values["each"]), "s"),
                units.round_size(values["bytes"][0]) if "bytes" in values else _NONE,
            )
        )
    return [Table("Kernels and copies", _KERNEL_HEADS, tuple(rows), _KERNEL_HEADS[:2])] if rows else []


def _traced(summary: Summary, name: str) -> list[Result]:
    return [each for each in summary.run.results if each.case.suite == phases.SUITE and each.case.name == name]
