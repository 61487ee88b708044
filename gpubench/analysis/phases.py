"""The phases of a profiled program: what each of its devices did in them. Pure functions of a run.

A phase is a result of the suite `profile` whose series `time` says when it came (`at`) and how long it lasted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpubench.analysis.counters import CounterTable
from gpubench.analysis.window import EnergyUse, Span, Throttle, Window
from gpubench.model import Measure, Result, Run

SUITE = "profile"
PROGRAM, MARKED, FOUND, PART = "program", "phase", "found", "part"  # its cases
TIME = "time"
SHARES = (Measure.BUSY, Measure.SM_ACTIVITY, Measure.TENSOR_ACTIVITY, Measure.DRAM_SHARE)


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """What one device did in a phase; None where it has no such counter, or too few readings to say.

    `times` is how often the phase came, `shares` are fractions of its time by measure, `cores` the processor cores
    that the program kept busy.
    """

    result: Result
    device: str
    times: int
    seconds: float
    energy: EnergyUse | None
    shares: Mapping[Measure, float]
    memory_bytes: float | None
    cores: float | None
    throttled: tuple[Throttle, ...]


def phases(run: Run) -> list[Result]:
    """Return the results that are phases of a profiled program, itself among them, in the order of the file."""
    return [result for result in run.results if result.case.suite == SUITE and spans_of(result)]


def spans_of(result: Result) -> list[Span]:
    """Return from when to when a phase came, each time, in seconds of the run."""
    for series in result.series:
        if series.label == TIME and series.at:
            return [(at, at + value) for at, value in zip(series.at, series.values, strict=True)]
    return []


def figures(result: Result, table: CounterTable, device: str) -> PhaseFigures:
    """Return what one device, or the host, did in a phase."""
    spans = spans_of(result)
    window = Window(table, device, spans)
    shares = {measure: found.value for measure in SHARES if (found := window.share(measure))}
    cpu_s = window.rise(Measure.PROGRAM_CPU_TIME)
    return PhaseFigures(
        result,
        device,
        len(spans),
        window.seconds,
        window.energy(),
        shares,
        window.most(Measure.MEMORY_USED),
        cpu_s / window.seconds if cpu_s is not None and window.seconds > 0 else None,
        window.throttling(),
    )
