"""The phases of a profiled program: what each of its devices did in them, from the samples. Pure functions of a run.

A phase is a result of the suite `profile` whose series `time` says when it came (`at`) and how long it lasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench import stats
from gpubench.analysis.counters import CounterTable, Track
from gpubench.knowledge.hardware import event_names
from gpubench.model import Result, Run

SUITE = "profile"
PROGRAM, MARKED, FOUND, PART = "program", "phase", "found", "part"  # its cases
TIME = "time"
_GAPS = 4.0  # readings of the energy counter that a window has to span: an edge is known to one of them
_LOST_GAPS = 20.0  # without a reading: a device that is that silent was lost
_LEAST_READINGS = 5  # of power, where the counter cannot be used
_LIMITS = ("power cap", "thermal", "slow-down", "brake")  # of the events' names those that hold a device back

Floats = npt.NDArray[np.float64]
Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """What one device did in a phase; None where it has no such counter, or too few readings to say.

    `joules` are the energy counter's where each time is long enough for it, else (`is_integrated`) mean power times
    time. `shares` are fractions by the counter's name, `limits` events by the share of readings that had them.
    """

    result: Result
    device: str
    times: int
    seconds: float
    joules: float | None
    is_integrated: bool
    watts: float | None
    shares: tuple[tuple[str, float], ...]
    memory_bytes: float | None
    cores: float | None  # that the program kept busy
    limits: tuple[tuple[str, float], ...]

    def share(self, *ends: str) -> float | None:
        """The share whose counter's name ends so."""
        return next((value for name, value in self.shares if name.endswith(ends)), None)


def phases(run: Run) -> list[Result]:
    """The results that are phases of a profiled program, itself among them, in the order of the file."""
    return [result for result in run.results if result.case.suite == SUITE and spans_of(result)]


def spans_of(result: Result) -> list[tuple[float, float]]:
    """From when to when a phase came, each time."""
    for series in result.series:
        if series.name == TIME and series.at:
            return [(at, at + value) for at, value in zip(series.at, series.values, strict=True)]
    return []


def figures(result: Result, table: CounterTable, device: str) -> PhaseFigures:
    """What one device, or the host, did in a phase."""
    spans = spans_of(result)
    tracks = {track.counter.name: track for track in table.tracks if track.device == device}
    joules, watts, integrated = _energy(tracks, spans)
    return PhaseFigures(
        result,
        device,
        len(spans),
        sum(end - begin for begin, end in spans),
        joules,
        integrated,
        watts,
        tuple(_shares(tracks, spans)),
        _peak(_ending(tracks, ".memory.used"), spans),
        _rate(_ending(tracks, "program.cpu.busy"), spans),
        tuple(_limits(_ending(tracks, "event_reasons"), spans)),
    )


def _ending(tracks: dict[str, Track], ends: str) -> Track | None:
    return next((track for name, track in tracks.items() if name.endswith(ends)), None)


def _inside(track: Track, spans: Spans) -> Floats:
    """The values that were read in any of the spans; those of spans that overlap, each time."""
    low = np.searchsorted(track.at, [begin for begin, _ in spans], "left")
    high = np.searchsorted(track.at, [end for _, end in spans], "right")
    parts = [track.values[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    return np.concatenate(parts) if parts else track.values[:0]


def _energy(tracks: dict[str, Track], spans: Spans) -> tuple[float | None, float | None, bool]:
    """Joules, mean watts, and whether the joules are watts times seconds."""
    power, seconds = _ending(tracks, ".power"), sum(end - begin for begin, end in spans)
    if power and len(power.at) > 1 and not _reaches(power, spans):
        return None, None, False
    joules = _rise(_ending(tracks, ".energy"), spans)
    if joules is not None and seconds > 0:
        return joules, joules / seconds, False
    values = _inside(power, spans) if power else np.empty(0)
    if len(values) < _LEAST_READINGS:
        return None, None, False
    watts = float(values.mean())
    return watts * seconds, watts, True


def _reaches(track: Track, spans: Spans) -> bool:
    """Whether its readings go on to the end of the spans: those of a device that was lost do not."""
    gap = stats.median(np.diff(track.at).tolist())
    return max(end for _, end in spans) <= float(track.at[-1]) + _LOST_GAPS * gap


def _rise(track: Track | None, spans: Spans) -> float | None:
    """How far a cumulative counter rose in the spans, between its readings in a straight line; None of short ones."""
    if track is None or len(track.at) < 2 or not spans:
        return None
    gap = stats.median(np.diff(track.at).tolist())
    begins, ends = np.asarray([begin for begin, _ in spans]), np.asarray([end for _, end in spans])
    covered = begins.min() >= track.at[0] - 2 * gap and ends.max() <= track.at[-1] + 2 * gap
    if not covered or float((ends - begins).min()) < _GAPS * gap:
        return None
    rises = np.interp(ends, track.at, track.values) - np.interp(begins, track.at, track.values)
    return float(rises.sum()) if (rises >= 0).all() else None


def _rate(track: Track | None, spans: Spans) -> float | None:
    """The mean rise a second."""
    rise, seconds = _rise(track, spans), sum(end - begin for begin, end in spans)
    return rise / seconds if rise is not None and seconds > 0 else None


def _shares(tracks: dict[str, Track], spans: Spans) -> list[tuple[str, float]]:
    """The mean of every counter that is a per cent, as a fraction."""
    found = []
    for name, track in tracks.items():
        values = _inside(track, spans) if track.counter.unit == "%" else np.empty(0)
        if len(values):
            found.append((name, float(values.mean()) / 100))
    return found


def _peak(track: Track | None, spans: Spans) -> float | None:
    values = _inside(track, spans) if track else np.empty(0)
    return float(values.max()) if len(values) else None


def _limits(track: Track | None, spans: Spans) -> list[tuple[str, float]]:
    """The events that held the device back, each with the share of readings that had it."""
    values = _inside(track, spans).astype(np.int64) if track else np.empty(0, np.int64)
    if track is None or not len(values):
        return []
    every = int(np.bitwise_or.reduce(values))
    bits = [1 << place for place in range(every.bit_length()) if every >> place & 1]
    named = [(event_names(track.counter.name, bit), float(((values & bit) > 0).mean())) for bit in bits]
    return [(names[0], share) for names, share in named if names and any(word in names[0] for word in _LIMITS)]
