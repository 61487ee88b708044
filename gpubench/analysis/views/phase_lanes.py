"""Draw the phases of a profiled program and the counters of its devices as lanes over one axis of time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench.analysis import phases
from gpubench.analysis.counters import CounterTable, Track
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.phase_tables import phase_name
from gpubench.analysis.window import Span
from gpubench.base import units
from gpubench.model import Measure, Result

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
