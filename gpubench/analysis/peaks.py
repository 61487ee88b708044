"""What a figure is a share of, three ways that are never mixed: specification, measured clocks, best of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubench import stats
from gpubench.analysis.counters import CounterTable
from gpubench.analysis.window import Window
from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.model import Device, Measure, Result, Run, Series

Basis = Literal["spec", "clock", "best"]
BASES: tuple[Basis, ...] = ("spec", "clock", "best")
BASIS_WORDS: dict[Basis, str] = {"spec": "spec", "clock": "clock-corrected", "best": "best"}


@dataclass(frozen=True, slots=True)
class Share:
    """A figure as a fraction of a peak.

    `basis` says of which: `spec` is the data sheet's, `clock` what the device could do at the mean clock that was
    measured during the case, `best` the best that it reached in this run. `peak` is in SI units, `source` where it
    is from, in words.
    """

    basis: Basis
    limit: str
    fraction: float
    peak: float
    source: str

    @property
    def text(self) -> str:
        """`87.7 % of spec dram`."""
        return f"{units.percent(self.fraction)} of {BASIS_WORDS[self.basis]} {self.limit}"


def joined(several: Sequence[tuple[Share, ...]]) -> tuple[Share, ...]:
    """The shares of a case over its replicates: of each basis the median fraction, and the peak in the middle."""
    found = []
    for basis in BASES:
        shares = [share for shares in several for share in shares if share.basis == basis]
        if shares:
            fraction = stats.median([share.fraction for share in shares])
            peak, first = stats.median([share.peak for share in shares]), shares[0]
            found.append(Share(basis, first.limit, fraction, peak, first.source))
    return tuple(found)


class Peaks:
    """The peaks of a run: specified, at the clocks of each case, and the best reached; `median` judges a series."""

    def __init__(self, run: Run, counters: CounterTable, median: Callable[[Series], float]) -> None:
        self._devices = {device.id: device for device in run.manifest.facts.devices}
        self._counters = counters
        self._best = _best(run, median)

    def device(self, device_id: str) -> Device | None:
        """The device of that id in the run's facts."""
        return self._devices.get(device_id)

    def shares(self, result: Result, series: Series, centre: float) -> tuple[Share, ...]:
        """What `centre` is of each known peak of the series' limit, in the order of `BASES`."""
        if not series.limit or not result.devices:
            return ()
        peaks = {"spec": self._spec, "clock": self._at_clocks, "best": self._best_of}
        found = [(basis, peaks[basis](result, series.limit)) for basis in BASES]
        return tuple(
            Share(basis, series.limit, centre / peak.value, peak.value, peak.source) for basis, peak in found if peak
        )

    def _spec(self, result: Result, limit: str) -> hardware.Peak | None:
        device = self.device(result.devices[0])
        return hardware.peak(device, limit) if device else None

    def _best_of(self, result: Result, limit: str) -> hardware.Peak | None:
        best = self._best.get((result.devices[0], limit))
        return hardware.Peak(best, "the best of this run") if best else None

    def _at_clocks(self, result: Result, limit: str) -> hardware.Peak | None:
        """Units × work a clock and unit × the mean clock during the case; of memory, 2 × clock × width / 8."""
        device = self.device(result.devices[0])
        if device is None:
            return None
        if limit == "dram":
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
        each = f"{count} units × {rate.value:g} a clock" if limit != "dram" else f"{rate.value:g} B a clock"
        words = f"{each} × {units.quantity(clock_hz, 'Hz')}, the mean during the case ({rate.source})"
        return hardware.Peak(count * rate.value * clock_hz, words)

    def _clock(self, result: Result, measure: Measure) -> float | None:
        """The mean clock during a case; in a window between two readings, theirs where they agree."""
        return Window(self._counters, result.devices[0], [result.window]).clock(measure)


def _best(run: Run, median: Callable[[Series], float]) -> dict[tuple[str, str], float]:
    """The best median of each device and limit among results that are ok; early samples are none."""
    found: dict[tuple[str, str], float] = {}
    for result in run.results:
        for series in result.series if result.status == "ok" else ():
            if series.limit and result.devices and series.role != "early":
                key = (result.devices[0], series.limit)
                found[key] = max(found.get(key, 0.0), median(series))
    return found
