"""Make the table of a traced program's operators: share of the machine's measured roofs, and the seconds to be won."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpubench.analysis.phases import traced_devices
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.table import NO_VALUE, Table
from gpubench.base import units
from gpubench.explaining.evidence import Evidence
from gpubench.explaining.traced import SUITE
from gpubench.knowledge import alone, hardware
from gpubench.model import Device, Result

_HEADS = ("operator", "calls", "total", "of busy", "bytes", "operations", "of roof", "to win", "bound by or reason")
_TEXT_HEADS = (_HEADS[0], _HEADS[-1])
_MOST_ROWS = 40
_ABOVE = 1.02  # a share above it is no share of that roof
Roofs = Mapping[str, hardware.Peak]
_OTHER_LIMIT = {"float32": "tensor.tf32"}  # products of float32 that may run in another precision


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """An operator on a device: its seconds, its calls, its unavoidable work, and the time that the roofs allow it.

    `roof_s` is 0 if the work is unknown, and `reason` then says why; else `reason` names the roof."""

    name: str
    device: str
    seconds: float
    calls: float
    bytes: float
    flops: float
    roof_s: float
    reason: str

    @property
    def to_win_s(self) -> float:
        """The seconds above the roof; 0 if it is unknown."""
        return max(self.seconds - self.roof_s, 0.0) if self.roof_s else 0.0


def roofs(device: Device, measured: Summary | None) -> dict[str, hardware.Peak]:
    """Return the roofs of a device by the name of the peak: measured by a run, else the data sheet's.

    A trace that does not state its device takes the run's first GPU. Raises LookupError if the run measured another."""
    roof_of: dict[str, hardware.Peak] = {}
    for limit in ("dram", "link.h2d", "link.d2h", "tensor.tf32", "float32", *_tensors()):
        if peak := hardware.peak(device, limit):
            roof_of[limit] = hardware.Peak(peak.value, "data sheet")
    if measured is None:
        return roof_of
    devices = [other for other in measured.run.manifest.facts.devices if other.backend != "host"]
    same = [other for other in devices if other.name == device.name or not device.arch]
    if not same:
        others = f"{', '.join(other.name for other in devices)}, and the trace is of {device.name}"
        raise LookupError(f"the run with the roofs measured {others if devices else 'no GPU'}")
    evidence = Evidence(measured)
    for case in evidence.named((*alone.READS, *alone.LINKS, *alone.PRODUCTS), same[0].id):
        limit = case.series.limit
        best = roof_of.get(limit)
        if limit and (best is None or best.source == "data sheet" or case.rate > best.value):
            roof_of[limit] = hardware.Peak(case.rate, case.id)
    return roof_of


def _tensors() -> Iterator[str]:
    return (f"tensor.{name}" for name in ("bfloat16", "float16", "float8", "float64", "int8"))


def operator_times(summary: Summary, roof_of: Roofs) -> list[OperatorTime]:
    """Return the operators of a traced program with their times under the roofs, the longest first."""
    times = [
        time
        for result in summary.run.results
        if result.case.suite == SUITE and result.case.name in ("operator", "kernel", "copy")
        if (time := _time(result, roof_of))
    ]
    return sorted(times, key=lambda time: -time.seconds)


def _time(result: Result, roof_of: Roofs) -> OperatorTime | None:
    series, notes = {one.name: one for one in result.series}, dict(result.notes)
    if "total" not in series or "calls" not in series:
        return None
    total, calls = series["total"].values[0], series["calls"].values[0]
    name = " ".join(str(value) for _, value in result.case.params)
    if result.case.name == "copy" and "bytes" in series:  # of `profile --trace`
        moved, flops, kind = series["bytes"].values[0], 0.0, str(result.case.params[0][1])
    else:
        moved, flops = series["total"].work.moved, series["total"].work.flops
        kind = _kind_of_copy(name) if notes.get("kind") == "copy" else ""
    reason = notes.get("reason", "" if moved or flops else "CUPTI records no shapes of kernels")
    if reason:
        return OperatorTime(name, result.devices[0], total, calls, 0.0, 0.0, 0.0, reason)
    roof_s, bound = _roof_time(moved, flops, kind, notes.get("limit", ""), total, roof_of)
    return OperatorTime(name, result.devices[0], total, calls, moved, flops, roof_s, bound)


def _kind_of_copy(name: str) -> str:
    """Return `h2d`, `d2h` or `d2d` for the name of a copy: `Memcpy HtoD (Pinned -> Device)` of Kineto, `MemcpyH2D`."""
    named = re.search("([HD])(?:to|2)([HD])", name)
    return f"{named[1]}2{named[2]}".lower() if named else ""


def _roof_time(moved: float, flops: float, kind: str, limit: str, seconds: float, roof_of: Roofs) -> tuple[float, str]:
    """Return the seconds that the roofs allow, and what bounds them; 0 and the reason if a roof is unknown."""
    memory = "link.h2d" if kind == "h2d" else "link.d2h" if kind == "d2h" else "dram"
    if memory not in roof_of or (limit and limit not in roof_of):
        return 0.0, f"no roof of {memory if memory not in roof_of else limit} is known for this device"
    by_memory_s = moved * (2.0 if kind == "d2d" else 1.0) / roof_of[memory].value
    by_operations_s = flops / roof_of[limit].value if limit else 0.0
    other = _OTHER_LIMIT.get(limit, "")
    if other in roof_of and by_operations_s > _ABOVE * seconds:
        limit, by_operations_s = other, flops / roof_of[other].value
    if by_operations_s > by_memory_s:
        return by_operations_s, limit
    if by_memory_s > _ABOVE * seconds:
        return 0.0, "faster than memory: a cache held its data"
    return by_memory_s, memory


def operator_tables(summary: Summary, measured: Summary | None = None) -> list[Table]:
    """Return a table of the operators of each traced device, with sums, gaps and waits; none for another run."""
    tables = []
    for traced in traced_devices(summary.run):
        device = summary.device(traced.device)
        roof_of = roofs(device, measured)
        times = [time for time in operator_times(summary, roof_of) if time.device == traced.device]
        if times:
            tables.append(_table(times, traced.device, traced.seconds, roof_of))
    return tables


def _table(times: list[OperatorTime], device: str, seconds: Mapping[str, float], roof_of: Roofs) -> Table:
    busy, total = seconds["busy"], sum(time.seconds for time in times)
    rows: list[tuple[str, ...]] = [
        (
            time.name,
            f"{time.calls:.0f}",
            units.duration(time.seconds),
            units.percent(time.seconds / busy) if busy else NO_VALUE,
            units.round_size(time.bytes) if time.bytes else NO_VALUE,
            units.quantity(time.flops, "FLOP") if time.flops else NO_VALUE,
            units.percent(time.roof_s / time.seconds) if time.roof_s else NO_VALUE,
            units.duration(time.to_win_s) if time.roof_s else NO_VALUE,
            time.reason,
        )
        for time in times[:_MOST_ROWS]
    ]
    rest, none = times[_MOST_ROWS:], NO_VALUE
    if rest:
        left, left_won = sum(time.seconds for time in rest), sum(time.to_win_s for time in rest)
        name = f"{len(rest)} more operators"
        rows.append((name, none, units.duration(left), *[none] * 4, units.duration(left_won), ""))
    won, shared = sum(time.to_win_s for time in times), sum(time.seconds for time in times if time.roof_s)
    part = f"{units.percent(shared / total)} of the seconds have a share, the others a reason"
    rows.append(("all operators", none, units.duration(total), *[none] * 4, units.duration(won), part))
    idle = [(name, units.duration(seconds[name])) for name in ("launch gaps", "waits")]
    rows += [(name, none, length, *[none] * 5, "the device was idle") for name, length in idle]
    sources = [
        f"{limit} {units.quantity(roof.value, _unit(limit))} ({roof.source})"
        for limit, roof in roof_of.items()
        if any(time.reason == limit for time in times)
    ]
    return Table(f"Operators of {device}", _HEADS, tuple(rows), _TEXT_HEADS, f"roofs: {'; '.join(sources) or none}")


def _unit(limit: str) -> str:
    return "FLOP/s" if limit.startswith(("tensor", "float")) else "B/s"
