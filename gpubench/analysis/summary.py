"""The figures of a run, derived from its raw samples: the one place where rates are computed, for every report."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpubench import stats
from gpubench.analysis import peaks
from gpubench.analysis.counters import CounterTable
from gpubench.analysis.empty_kernel import EmptyKernels
from gpubench.analysis.energy import Energy, NoEnergy, energy_of
from gpubench.analysis.peaks import Peaks, Share
from gpubench.analysis.quantities import (
    headline,
    judged_better,
    judged_median,
    judged_unit,
    judged_values,
    limited_median,
    slowest_series,
)
from gpubench.analysis.reproducibility import Reproducibility, relative_deviation, reproducibility
from gpubench.base import units
from gpubench.model import Better, Case, Device, Result, Run, Series, Status

WITHIN_PROCESS = "95 % within process"
_WORSE: tuple[Status, ...] = ("ok", "skipped", "invalid", "failed")
_EARLY_DIFFERS = 0.01  # of the headline: early samples that differ by more are reported beside it


@dataclass(frozen=True, slots=True)
class Figure:
    """A series as a figure: its median with 95 % interval in SI units, noise, and its shares of peaks.

    The interval of one process holds within that process: the median of another process may lie outside.

    `shares` has one entry for each known peak, in this order: the data sheet's, the peak at the clock measured
    during the case, the best figure of this run.
    """

    name: str
    unit: str
    better: Better
    interval: stats.Interval
    noise: float
    samples: int
    shares: tuple[Share, ...] = ()
    stage: str = ""  # the stage of the series
    short: str = ""  # the series' name for narrow places
    processes: int = 1  # joined in this figure; with one, interval and noise are those within that process

    @property
    def text(self) -> str:
        """The median as text: 4213 GB/s."""
        return units.quantity(self.interval.centre, self.unit)

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
        """Return the share of that basis; None if its peak is unknown."""
        return next((share for share in self.shares if share.basis == basis), None)

    @property
    def shares_text(self) -> str:
        """All shares in per cent, in the order of `peaks.BASES`: `87.7 · 87.4 · 99.8 dram`; empty without shares."""
        if not self.shares:
            return ""
        by_basis = [self.share_of(basis) for basis in peaks.BASES]
        percentages = [f"{share.fraction * 100:.1f}" if share else "–" for share in by_basis]
        return f"{' · '.join(percentages)} {self.limit}"

    @classmethod
    def joined(cls, figures: Sequence[Figure]) -> Figure:
        """Return the figure of a case over its replicates: the medians of their medians, noise and shares.

        The interval is that of the median of the processes' medians. A single figure is returned unchanged.
        """
        first = figures[0]
        if len(figures) == 1:
            return first
        return replace(
            first,
            interval=stats.median_interval([figure.interval.centre for figure in figures]),
            noise=stats.median([figure.noise for figure in figures]),
            samples=sum(figure.samples for figure in figures),
            shares=peaks.joined([figure.shares for figure in figures]),
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


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a summary table: a result and its headline figure (None unless it was timed).

    `impossible` are the shares of its series above the peak of the device.
    """

    result: Result
    figure: Figure | None
    impossible: tuple[ImpossibleShare, ...] = ()

    @property
    def suite(self) -> str:
        """The suite's name."""
        return self.result.case.suite

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the conditions of the measurement, and `above-peak` if a share is impossible."""
        return (*self.result.labels, *([peaks.ABOVE_PEAK] if self.impossible else []))


@dataclass(frozen=True)
class Spread:
    """One case on one device set over its replicates, each a fresh process; it has at least one row.

    Noise between processes is as large as within one (Kalibera & Jones, ISMM 2013). `medians` are the
    headline medians of the replicates that are ok, `within` is the median of their noise, and
    `between` their standard deviation over their mean (n - 1), NaN for fewer than two.
    """

    rows: tuple[Row, ...]

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
        return Figure.joined(self.figures) if self.figures else None

    @property
    def medians(self) -> tuple[float, ...]:
        """The median of each replicate that is ok, in SI units."""
        return tuple(figure.interval.centre for figure in self.figures)

    @property
    def within(self) -> float:
        """The noise within a process: the median of the replicates' noise, a fraction; NaN if none is ok."""
        return stats.median([figure.noise for figure in self.figures])

    @property
    def between(self) -> float:
        """The noise between processes: the coefficient of variation of their medians, a fraction."""
        return relative_deviation(self.medians)

    @cached_property
    def row(self) -> Row:
        """All replicates as one row: the first one that is ok, with the figure over all that are ok.

        If no replicate is ok, it is the row of the first replicate.
        """
        ok = [row for row in self.rows if row.result.status == "ok"]
        return replace(ok[0], figure=self.figure) if ok else self.rows[0]

    @cached_property
    def status(self) -> Status:
        """The worst status of the replicates."""
        return max(self.statuses, key=_WORSE.index)

    @cached_property
    def statuses(self) -> dict[Status, int]:
        """The number of replicates with each status that occurred, the most frequent first."""
        return dict(Tally(row.result.status for row in self.rows).most_common())

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that any replicate has, each once."""
        return tuple(dict.fromkeys(label for row in self.rows for label in row.labels))


class Summary:
    """A run with its figures; the peaks and the figures are computed once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.counters = CounterTable.of_run(run)
        self._peaks = Peaks(run, self.counters, limited_median)
        # by the ids of a result and a series, which stay unique as long as the dictionary holds both objects
        self._figures: dict[tuple[int, int], tuple[Result, Series, Figure]] = {}

    def device(self, device_id: str) -> Device:
        """Return the device of that id in the run's facts; raises KeyError for an id that they do not describe."""
        return self._peaks.device(device_id)

    def figure(self, result: Result, series: Series) -> Figure:
        """Return the figure of one series of a result; it is kept, because tables, charts and notices share it."""
        key = (id(result), id(series))
        if key not in self._figures:
            self._figures[key] = (result, series, self._figure(result, series))
        return self._figures[key][2]

    def _figure(self, result: Result, series: Series) -> Figure:
        values = judged_values(series).tolist()
        interval = stats.median_interval(values)
        return Figure(
            series.label,
            judged_unit(series),
            judged_better(series),
            interval,
            stats.noise(values),
            len(values),
            self._shares(result, series, interval.centre),
            series.stage,
            series.short,
        )

    def _shares(self, result: Result, series: Series, centre: float) -> tuple[Share, ...]:
        """Return the shares of a figure's peaks; a peak of items per second is scaled to the unit of the figure."""
        if not series.limit:
            return ()
        limited = limited_median(series)
        shares = self._peaks.shares(result, series, limited)
        if series.quantity != "items" or not limited:
            return shares
        return tuple(replace(share, peak=share.peak * centre / limited) for share in shares)

    def secondary_figures(self, spread: Spread) -> list[Figure]:
        """Return the figures beside the headline: the first series of each other stage, and observed values."""
        of_status = spread.row.result.status
        results = [row.result for row in spread.rows if row.result.status == of_status]
        by_label: dict[str, list[Figure]] = {}
        for result in results:
            for series in _secondary_series(result):
                by_label.setdefault(series.label, []).append(self.figure(result, series))
        return [Figure.joined(figures) for figures in by_label.values()]

    def energy(self, result: Result) -> Energy | NoEnergy:
        """Return the energy figure of a result's headline, or the reason why it has none."""
        series = headline(result)
        if series is None:
            return NoEnergy("nothing was timed")
        return energy_of(result, series, judged_median(series), judged_unit(series), self.counters)

    @cached_property
    def empty_kernels(self) -> EmptyKernels:
        """The times of empty kernels on the devices of this run."""
        return EmptyKernels.of_run(self.run)

    def rows(self) -> list[Row]:
        """Return one row for each result, in the order measured."""
        return list(self._rows)

    @cached_property
    def _rows(self) -> tuple[Row, ...]:
        headlines = ((result, headline(result)) for result in self.run.results)
        return tuple(
            Row(result, self.figure(result, series) if series else None, tuple(self.impossible_shares(result)))
            for result, series in headlines
        )

    def impossible_shares(self, result: Result) -> Iterator[ImpossibleShare]:
        """Yield each share of a result above its device's peak, except of early samples, whose clock is unknown."""
        for series in result.series if result.status == "ok" else ():
            if series.limit and series.role != "early":
                share = peaks.impossible(self._peaks.shares(result, series, limited_median(series)))
                if share:
                    yield ImpossibleShare(series.label, share)

    def reproducibility(self, spread: Spread) -> Reproducibility | None:
        """Return the deviation between fresh processes of a case; None if nobody measured it."""
        models = {self.device(device_id).name for device_id in spread.devices}
        return reproducibility(spread.medians, spread.case.id, models)

    @cached_property
    def replicated(self) -> bool:
        """Whether this run holds more than one replicate."""
        return len({result.replicate for result in self.run.results}) > 1

    def results_of(self, suite: str) -> list[Result]:
        """Return the results of a suite, in the order measured."""
        return self._by_suite.get(suite, [])

    @cached_property
    def _by_suite(self) -> dict[str, list[Result]]:
        by_suite: dict[str, list[Result]] = {}
        for result in self.run.results:
            by_suite.setdefault(result.case.suite, []).append(result)
        return by_suite

    def spreads(self) -> list[Spread]:
        """Return the spread of each case on each device set, in the order measured; sorted if there are replicates."""
        return list(self._spreads)

    @cached_property
    def _spreads(self) -> list[Spread]:
        grouped: dict[tuple[str, tuple[str, ...]], list[Row]] = {}
        for row in self.rows():
            grouped.setdefault(row.result.key[:2], []).append(row)
        spreads = [Spread(tuple(sorted(rows, key=lambda row: row.result.replicate))) for rows in grouped.values()]
        return sorted(spreads, key=self._sort_key) if self.replicated else spreads

    def _sort_key(self, spread: Spread) -> tuple[object, ...]:
        """Return the sort key of a spread: suite, case name, parameters, devices."""
        suites = [suite.name for suite in self.run.manifest.suites]
        suite = spread.case.suite
        values = tuple((axis, isinstance(value, str), value) for axis, value in spread.case.params)
        return (
            suites.index(suite) if suite in suites else len(suites),
            suite,
            spread.case.name,
            values,
            spread.devices,
        )

    def counts(self) -> dict[str, int]:
        """Return the number of results with each status: ok, skipped, failed, invalid."""
        by_status = dict.fromkeys(("ok", "skipped", "failed", "invalid"), 0)
        for result in self.run.results:
            by_status[result.status] += 1
        return by_status

    def suites(self) -> list[tuple[str, list[Spread]]]:
        """Return the spreads by suite, in the order of `spreads`."""
        grouped: dict[str, list[Spread]] = {}
        for spread in self.spreads():
            grouped.setdefault(spread.case.suite, []).append(spread)
        return list(grouped.items())


def _secondary_series(result: Result) -> Iterator[Series]:
    """Yield the series that are reported beside the headline.

    These are the first series of each other stage, every observed value, and the early samples of the headline (from
    before the device settled) if they differ from it by more than 1 %.
    """
    stages = {series.stage for series in result.series[:1]}
    for series in list(slowest_series(result))[1:]:
        if series.role == "primary" and series.stage not in stages:
            stages.add(series.stage)
            yield series
        is_value = series.role == "observed" and series.quantity == "value"
        if is_value or (series.role == "early" and _differs(series, result.series[0])):
            yield series


def _differs(early: Series, settled: Series) -> bool:
    """Return whether the early samples of a stage differ from those after the device settled."""
    return early.stage == settled.stage and abs(judged_median(early) / judged_median(settled) - 1) > _EARLY_DIFFERS


def exit_status(results: Sequence[Result]) -> int:
    """Return the exit status of a run: 3 if a case failed, else 0 (skipped and invalid cases only warn)."""
    return 3 if any(result.status == "failed" for result in results) else 0
