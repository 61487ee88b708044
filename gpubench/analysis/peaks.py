"""Relate a figure to its peaks by the data sheet, the measured clock and the best of the run, and to its roof."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubench import stats
from gpubench.analysis.counters import CounterTable, Window
from gpubench.analysis.quantities import peak_limit
from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.knowledge.key_figures import MEMORY_READS
from gpubench.model import Device, Measure, Result, Run, Series, Work

Basis = Literal["spec", "clock", "best", "roof"]
BASES: tuple[Basis, ...] = ("spec", "clock", "best", "roof")
BASIS_NAMES: dict[Basis, str] = {
    "spec": "data sheet",
    "clock": "measured clock",
    "best": "best of this run",
    "roof": "roof",
}
ABOVE_PEAK = "above-peak"  # the label of a case with an impossible share
ABOVE_PEAK_REASON = (
    "above the peak of the device: the counted work, the timing or the table of peaks is wrong; "
    "do not use the figure before the reason is known"
)
_MEMORY = "dram"
_MOST_SHARE = 1.02  # the largest possible share, because a mean clock is accurate to a per cent or two
_MOST_BOOST = 1.25  # the largest possible clock over the data sheet's: an H200 reaches 1.08, GeForce boards 1.2


@dataclass(frozen=True, slots=True)
class Share:
    """A figure as a fraction of a peak.

    `limit` is the id of the peak (`dram`, `tensor.float16`). `basis` names where the value of the peak is from: `spec`
    the data sheet, `clock` the mean clock measured during the case, `best` the best figure of the device in this run.
    `roof` is the smaller of the peak and what reading memory allows for the counted bytes. `peak` is the value of the
    peak in SI units, and `source` names its origin."""

    basis: Basis
    limit: str
    fraction: float
    peak: float
    source: str

    @property
    def text(self) -> str:
        """`87.7 % of dram peak (data sheet)`."""
        return f"{units.percent(self.fraction)} of {self.peak_text}"

    @property
    def peak_text(self) -> str:
        """`dram peak (data sheet)`."""
        return f"{self.limit} peak ({BASIS_NAMES[self.basis]})"


def impossible(shares: Sequence[Share]) -> Share | None:
    """Return the share of a figure that exceeds the peak of its device; None if the figure is possible.

    `shares` belong to one figure, at most one for each basis."""
    by_basis = {share.basis: share for share in shares}
    if clock := by_basis.get("clock"):
        return clock if clock.fraction > _MOST_SHARE else None
    spec = by_basis.get("spec")
    if spec is None:
        return None
    allowed = _MOST_SHARE if spec.limit.startswith(("dram", "link.")) else _MOST_BOOST
    return spec if spec.fraction > allowed else None


def roof(work: Work, read_rate: float, product_rate: float) -> float:
    """Return the FLOP/s that bytes at `read_rate` (B/s) and operations at `product_rate` (FLOP/s) allow a call.

    Williams, Waterman & Patterson, "Roofline", CACM 52 (2009)."""
    return min(product_rate, work.flops / work.moved * read_rate)


def shares_over_replicates(by_replicate: Sequence[tuple[Share, ...]]) -> tuple[Share, ...]:
    """Return the shares of a figure over its replicates: for each basis the median fraction and the median peak.

    `by_replicate` has the shares of each replicate. A basis that no replicate has is left out."""
    joined = []
    for basis in BASES:
        shares = [share for shares in by_replicate for share in shares if share.basis == basis]
        if shares:
            fraction = stats.median([share.fraction for share in shares])
            peak, first = stats.median([share.peak for share in shares]), shares[0]
            joined.append(Share(basis, first.limit, fraction, peak, first.source))
    return tuple(joined)


class Peaks:
    """The peaks of a run: of the data sheet, at the clocks of each case, and the best figure reached.

    `counters` are the run's; `median` returns the median of a series in the unit of its peak."""

    def __init__(self, run: Run, counters: CounterTable, median: Callable[[Series], float]) -> None:
        self._devices = {device.id: device for device in run.manifest.facts.devices}
        self._counters = counters
        candidates = _candidates(run, median)
        self._best = {place: self._best_possible(rivals) for place, rivals in candidates.items()}
        self._read: dict[str, float] = {}  # the fastest possible read of memory by device, B/s
        for candidate in itertools.chain(*candidates.values()):
            name, device = candidate.result.case.id.partition("[")[0], candidate.result.devices[0]
            if name in MEMORY_READS and candidate.limit == _MEMORY and not self._is_impossible(candidate):
                self._read[device] = max(self._read.get(device, 0.0), candidate.median)

    def device(self, device_id: str) -> Device:
        """Return the device of that id in the run's facts; raises KeyError for an id that they do not describe."""
        return self._devices[device_id]

    def shares(self, result: Result, series: Series, centre: float) -> tuple[Share, ...]:
        """Return the figure `centre` of a series as a share of each known peak of the series, in the order of `BASES`.

        `centre` is in the unit of the peak. The result is empty for a series that has no peak."""
        limit = peak_limit(series)
        if not limit:
            return ()
        roof_peak = self._roof(result, series.work, limit)
        if roof_peak and centre > _MOST_SHARE * roof_peak.value:
            roof_peak = None  # caches served counted bytes
        peaks: dict[Basis, hardware.Peak | None] = {
            "spec": self._spec(result, limit),
            "clock": self._at_clocks(result, limit),
            "best": self._best_of(result, limit),
            "roof": roof_peak,
        }
        return _shares(limit, centre, peaks.items())

    def _roof(self, result: Result, work: Work, limit: str) -> hardware.Peak | None:
        """Return the roof of a call in the unit of its peak; None if it counts no operations or no bytes."""
        device = result.devices[0]
        read = hardware.Peak(self._read[device], "read in this run") if device in self._read else None
        read = read or self._spec(result, _MEMORY)
        peak = self._spec(result, limit) or self._at_clocks(result, limit)
        if not (work.flops > 0 and work.moved > 0 and read) or (limit != _MEMORY and not _is_arithmetic(limit)):
            return None
        source = f"memory at {units.quantity(read.value, 'B/s')} ({read.source})"
        if limit == _MEMORY:
            return hardware.Peak(read.value, source)
        if peak is None:
            return None
        rate = roof(work, read.value, peak.value)
        intensity = f"{units.significant(work.flops / work.moved)} operations per byte"
        return hardware.Peak(rate, peak.source if rate == peak.value else f"{source}, {intensity}")

    def _spec(self, result: Result, limit: str) -> hardware.Peak | None:
        return hardware.peak(self.device(result.devices[0]), limit)

    def _best_possible(self, candidates: list[_Candidate]) -> float:
        candidates.sort(key=lambda candidate: -candidate.median)
        possible = (candidate.median for candidate in candidates if not self._is_impossible(candidate))
        return next(possible, candidates[0].median)

    def _is_impossible(self, candidate: _Candidate) -> bool:
        """Return whether a median exceeds the peak of its device at the measured clock by more than 2 %."""
        peaks: list[tuple[Basis, hardware.Peak | None]] = [
            ("spec", self._spec(candidate.result, candidate.limit)),
            ("clock", self._at_clocks(candidate.result, candidate.limit)),
        ]
        return impossible(_shares(candidate.limit, candidate.median, peaks)) is not None

    def _best_of(self, result: Result, limit: str) -> hardware.Peak | None:
        best = self._best.get((result.devices[0], limit))
        return hardware.Peak(best, "the best of this run") if best else None

    def _at_clocks(self, result: Result, limit: str) -> hardware.Peak | None:
        """Return the peak of `limit` on a result's first device at the mean clock during the case; None if unknown."""
        device = self.device(result.devices[0])
        if limit == _MEMORY:
            rate, clock_hz, count = (
                hardware.bytes_per_memory_clock(device),
                self._clock(result, Measure.MEMORY_CLOCK),
                1,
            )
        else:
            rate, clock_hz, count = (
                hardware.per_clock(device, limit),
                self._clock(result, Measure.CORE_CLOCK),
                device.units,
            )
        if rate is None or not clock_hz or not count:
            return None
        work = (
            f"{count} compute units × {rate.value:g} per clock" if limit != _MEMORY else f"{rate.value:g} B per clock"
        )
        source = f"{work} × {units.quantity(clock_hz, 'Hz')}, the mean clock during the case ({rate.source})"
        return hardware.Peak(count * rate.value * clock_hz, source)

    def _clock(self, result: Result, measure: Measure) -> float | None:
        """Return the mean clock of a result's first device during its case in hertz, as `Window.clock` does."""
        return Window(self._counters, result.devices[0], [result.window]).clock(measure)


def _is_arithmetic(limit: str) -> bool:
    return limit.startswith(("tensor.", "float", "int"))


def _shares(limit: str, centre: float, peaks: Iterable[tuple[Basis, hardware.Peak | None]]) -> tuple[Share, ...]:
    return tuple(Share(basis, limit, centre / peak.value, peak.value, peak.source) for basis, peak in peaks if peak)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The median of a series that may be the best of its device for its limit."""

    median: float
    result: Result
    limit: str


def _candidates(run: Run, median: Callable[[Series], float]) -> dict[tuple[str, str], list[_Candidate]]:
    candidates: dict[tuple[str, str], list[_Candidate]] = {}
    for result in run.results:
        for series in result.series if result.status == "ok" else ():
            limit = peak_limit(series)
            if limit and series.role != "early":
                place = result.devices[0], limit
                candidates.setdefault(place, []).append(_Candidate(median(series), result, limit))
    return candidates
