"""Describe the figure of a series, and the figures of a case over its replicates, as reports and tables show them.

Compute work per joule: the rate of a case over the device's mean power in its window, from the energy counter.

The counter advances only every few tens of milliseconds and is read twice per second. A window must therefore be long,
and one series must fill it; otherwise the case has a reason in place of an energy figure."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from gpubench import stats
from gpubench.analysis import peaks
from gpubench.analysis.counters import CounterTable, Window
from gpubench.analysis.fingerprint import relative_deviation
from gpubench.analysis.peaks import Share
from gpubench.base import units
from gpubench.model import Better, Case, Measure, Result, Series, Status

WITHIN_PROCESS = "95 % within process"
_ONE_DIGIT = 0.00095  # ± 0.1 %: a smaller half width has two digits behind the point
_WORST_LAST: tuple[Status, ...] = ("ok", "skipped", "invalid", "failed")


@dataclass(frozen=True, slots=True)
class Figure:
    """A series as a figure: its median with 95 % interval in SI units, noise (a fraction), and its shares of peaks.

    The interval of one process holds within that process: the median of another process may lie outside. `name` is the
    label of the series. `shares` has one entry for each known peak, in the order of `peaks.BASES`."""

    RECORD: ClassVar[str] = (
        "unit better median=interval.centre low=interval.low high=interval.high "
        "noise samples share limit basis *of_bases"
    )
    name: str
    unit: str
    better: Better
    interval: stats.Interval
    noise: float
    samples: int
    shares: tuple[Share, ...] = ()
    stage: str = ""  # the stage of the series
    short: str = ""  # the series' name for narrow places
    processes: int = 1  # processes in this figure; with one, interval and noise are within that process

    @property
    def text(self) -> str:
        """The median as text: 4213 GB/s."""
        return units.quantity(self.interval.centre, self.unit)

    @property
    def half_width_text(self) -> str:
        """Half the width of the interval as `± 0.1 %`, with a second digit if it is smaller than 0.1 %."""
        half_width = self.interval.half_width
        values = self.processes if self.processes > 1 else self.samples
        if values < 2 or not math.isfinite(half_width):
            return ""
        digits = 1 if half_width >= _ONE_DIGIT else 2
        return f"± {units.percent(half_width, digits)}" + (" range" if values < stats.LEAST_FOR_INTERVAL else "")

    @property
    def interval_name(self) -> str:
        """The coverage of the interval: `95 % within process`, or `95 % of 12 processes`."""
        return WITHIN_PROCESS if self.processes == 1 else f"95 % of {self.processes} processes"

    @property
    def main_share(self) -> Share | None:
        """The share to show if there is room for one: of the data sheet if that is known, else of the next peak."""
        return self.shares[0] if self.shares else None

    @property
    def share(self) -> float | None:
        """The fraction of the peak that `basis` and `limit` name; None if no peak is known."""
        return self.main_share.fraction if self.main_share else None

    @property
    def limit(self) -> str:
        """The name of the peak: `dram`, `tensor.float16`; empty if no peak is known."""
        return self.main_share.limit if self.main_share else ""

    @property
    def basis(self) -> str:
        """The source of the peak: `spec`, `clock` or `best`; empty if no peak is known."""
        return self.main_share.basis if self.main_share else ""

    @property
    def share_text(self) -> str:
        """`87.7 % of dram peak (data sheet)`; empty if no peak is known."""
        return self.main_share.text if self.main_share else ""

    def share_of(self, basis: peaks.Basis) -> Share | None:
        """Return the share of the peak with that basis (`spec`, `clock` or `best`); None if the peak is unknown."""
        return next((share for share in self.shares if share.basis == basis), None)

    @property
    def of_bases(self) -> dict[str, float | None]:
        """The share (a fraction) and the peak (SI units) of each basis, None if unknown: `share_spec`, `peak_spec`."""
        shares = {basis: self.share_of(basis) for basis in peaks.BASES}
        return {
            f"{name}_{basis}": getattr(share, attribute, None)
            for basis, share in shares.items()
            for name, attribute in (("share", "fraction"), ("peak", "peak"))
        }

    @classmethod
    def over_replicates(cls, figures: Sequence[Figure]) -> Figure:
        """Return the figure of a series over its replicates; `figures` holds the figure of each, at least one.

        Median, noise and shares are medians over the replicates, `samples` is the sum, and the interval belongs to the
        median of the processes' medians. A single figure is returned unchanged."""
        first = figures[0]
        if len(figures) == 1:
            return first
        return replace(
            first,
            interval=stats.median_interval([figure.interval.centre for figure in figures]),
            noise=stats.median([figure.noise for figure in figures]),
            samples=sum(figure.samples for figure in figures),
            shares=peaks.shares_over_replicates([figure.shares for figure in figures]),
            processes=len(figures),
        )


@dataclass(frozen=True, slots=True)
class ImpossibleShare:
    """A share above the peak of the device, and the label of its series."""

    series: str
    share: Share

    @property
    def text(self) -> str:
        """`cold: 104.3 % of dram peak (measured clock)`."""
        return f"{self.series}: {self.share.text}"

    @property
    def label(self) -> str:
        """The label of a case with such a share."""
        return peaks.ABOVE_PEAK

    @property
    def reason(self) -> str:
        """The clause on why a share above the peak is impossible."""
        return peaks.ABOVE_PEAK_REASON


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One result with its headline figure, which is None if nothing was timed.

    `impossible` are the shares of its series that exceed the peak of the device."""

    result: Result
    figure: Figure | None
    impossible: tuple[ImpossibleShare, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the conditions of the measurement, and `above-peak` if a share is impossible."""
        return (*self.result.labels, *([peaks.ABOVE_PEAK] if self.impossible else []))


@dataclass(frozen=True)
class Spread:
    """One case on one device set over its replicates, each a fresh process; it has at least one row.

    Noise between processes is as large as within one (Kalibera & Jones, ISMM 2013). `medians` are the headline medians
    of the replicates that are ok, `within` is the median of their noise, and `between` their standard deviation over
    their mean (n - 1), NaN for fewer than two."""

    rows: tuple[ResultRow, ...]

    @property
    def case(self) -> Case:
        """The case."""
        return self.rows[0].result.case

    @property
    def devices(self) -> tuple[str, ...]:
        """The device set."""
        return self.rows[0].result.devices

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The headline figures of the replicates that are ok, in the order measured."""
        return tuple(row.figure for row in self.rows if row.figure is not None and row.result.status == "ok")

    @cached_property
    def figure(self) -> Figure | None:
        """The figure over all replicates that are ok; None if no replicate is."""
        return Figure.over_replicates(self.figures) if self.figures else None

    @cached_property
    def medians(self) -> tuple[float, ...]:
        """The median of each replicate that is ok, in SI units."""
        return tuple(figure.interval.centre for figure in self.figures)

    @cached_property
    def ends(self) -> tuple[float, float] | tuple[None, None]:
        """The lowest and the highest median; None without one."""
        return (min(self.medians), max(self.medians)) if self.medians else (None, None)

    @cached_property
    def within(self) -> float:
        """The noise within a process: the median of the replicates' noise, a fraction; NaN if none is ok."""
        return stats.median([figure.noise for figure in self.figures])

    @cached_property
    def between(self) -> float:
        """The noise between processes: the coefficient of variation of their medians, a fraction."""
        return relative_deviation(self.medians)

    @cached_property
    def row(self) -> ResultRow:
        """All replicates as one row: the result of the first ok replicate, with the figure over all ok replicates.

        If no replicate is ok, it is the row of the first replicate, unchanged."""
        ok = [row for row in self.rows if row.result.status == "ok"]
        return replace(ok[0], figure=self.figure) if ok else self.rows[0]

    @cached_property
    def status(self) -> Status:
        """The worst status of the replicates, in the order failed, invalid, skipped, ok."""
        return max(self.statuses, key=_WORST_LAST.index)

    @cached_property
    def statuses(self) -> dict[Status, int]:
        """The number of replicates with each status that occurred, the most frequent first."""
        statuses = [row.result.status for row in self.rows]
        return dict(Tally(statuses).most_common()) if statuses[1:] else {statuses[0]: 1}

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that any replicate has, each once."""
        return tuple(dict.fromkeys(label for row in self.rows for label in row.labels))


LEAST_SPAN_S = 1.5  # from the first to the last reading: a step of the counter is then below 2 % of the rise
LEAST_BUSY = 0.75  # smallest share of the window that the samples fill: the rest has the energy of another load
_GIGA = 1e9
_OPERATIONS = ("FLOP/s", "OP/s")


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of a case: its `rate` in `unit` (work per second) over `watts`.

    `watts` is the mean power between two readings of the energy counter `span_s` seconds apart, idle power included."""

    rate: float
    unit: str
    watts: float
    span_s: float

    @property
    def value(self) -> float:
        """FLOP or OP per joule if operations are counted, else joules per byte or per item, such as a token."""
        return self.rate / self.watts if self.unit in _OPERATIONS else self.watts / self.rate

    @property
    def text(self) -> str:
        """`1.056 TFLOP/J`, `0.1511 J/GB` or `3.1 J/token`, with the power it was derived from."""
        return f"{self.figure} at {units.quantity(self.watts, 'W')} over {units.duration(self.span_s)}"

    @property
    def figure(self) -> str:
        """The energy figure as text: `1.056 TFLOP/J` for operations, else `0.1511 J/GB` or `3.1 J/token`."""
        counted = self.unit.removesuffix("/s")
        if self.unit in _OPERATIONS:
            return units.quantity(self.value, f"{counted}/J")
        return (
            units.quantity(self.value, f"J/{counted}")
            if counted != "B"
            else f"{units.significant(self.value * _GIGA)} J/GB"
        )


@dataclass(frozen=True, slots=True)
class NoEnergy:
    """The reason, a clause, why a case has no energy figure."""

    reason: str

    @property
    def text(self) -> str:
        """The reason as the value of a fact."""
        return f"unknown: {self.reason}"


def energy_of(result: Result, series: Series, rate: float, unit: str, counters: CounterTable) -> Energy | NoEnergy:
    """Return the energy figure of a series of a result, or the reason why it has none.

    `rate` is the median of the series in `unit`, its judged unit."""
    if not unit.endswith("/s") or not rate > 0:
        return NoEnergy("the figure is a time, not a rate")
    if reason := shared_window_reason(result, series):
        return NoEnergy(reason)
    device = result.devices[0]
    if not counters.of(device, Measure.ENERGY):
        return NoEnergy(f"{device} has no energy counter")
    power = Window(counters, device, [result.window]).rate(Measure.ENERGY)
    span_s = power.span_s if power else 0.0
    if power is None or span_s < LEAST_SPAN_S:
        return NoEnergy(f"the energy counter was read over {span_s:.1f} s, less than {LEAST_SPAN_S} s")
    return (
        Energy(rate, unit, power.value, span_s) if power.value > 0 else NoEnergy("the energy counter did not advance")
    )


def shared_window_reason(result: Result, series: Series) -> str:
    """Return why the counters in a result's window do not belong to `series` alone, as a clause; empty if they do.

    They do not if several devices or processes took part, the cache was flushed between calls, another primary
    series ran in the window, or the samples fill less than 75 % of it."""
    if len(result.devices) != 1 or result.case.ranks != 1:
        return "several processes or devices ran at the same time"
    if series.mode == "cold":
        return "flushing the cache between calls takes energy too"
    other_labels = [
        primary.label for primary in result.series if primary.role == "primary" and primary.label != series.label
    ]
    if other_labels:
        return f"other series ran in the same window: {', '.join(other_labels)}"
    busy = filled_fraction(result, series)
    if busy >= LEAST_BUSY:
        return ""
    return f"the samples fill {units.percent(busy, 0)} of the case's window, less than {units.percent(LEAST_BUSY, 0)}"


def filled_fraction(result: Result, series: Series) -> float:
    """Return the fraction of a result's window in which the calls of a series ran; 0 for an empty window.

    Its early samples, its warm-up and the discarded samples of the result count too; a discarded one is taken to
    have lasted as long as the median sample."""
    window = result.window[1] - result.window[0]
    if window <= 0:
        return 0.0
    same_load = [timed for timed in result.series if _runs_same_calls(series, timed)]
    seconds = sum(sum(timed.values) * timed.calls for timed in same_load)
    dropped = sum(count for _, count in result.discarded) - sum(len(timed.values) for timed in same_load[1:])
    seconds += max(dropped, 0) * stats.median(series.values) * series.calls  # a discarded sample ran the same calls
    return (seconds + series.warmup_s) / window


def _runs_same_calls(series: Series, candidate: Series) -> bool:
    """Return whether `candidate` ran the same calls as `series`: it is `series` itself or has its early samples."""
    is_early = candidate.role == "early" and (candidate.stage, candidate.mode) == (series.stage, series.mode)
    return is_early or candidate.label == series.label
