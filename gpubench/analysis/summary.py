"""Derive the figures of a run from its raw samples, once for all reports.

Derive from the counters of a case what bounds it, how much memory traffic it has, and why the device throttled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gpubench import stats
from gpubench.analysis import counters, peaks, quantities
from gpubench.analysis.bound import Bound, Use
from gpubench.analysis.figure import (
    WITHIN_PROCESS,
    Energy,
    Figure,
    ImpossibleShare,
    NoEnergy,
    ResultRow,
    Spread,
    energy_of,
    filled_fraction,
    shared_window_reason,
)
from gpubench.analysis.fingerprint import Reproducibility, recorded_sources_text, reproducibility
from gpubench.analysis.peaks import Peaks, Share
from gpubench.knowledge.launches import EMPTY_KERNEL, EMPTY_KERNEL_CASE, Launch, launch_of
from gpubench.model import Device, Measure, Result, Run, Series, SeriesMode, SuiteInfo


@dataclass(frozen=True, slots=True)
class EmptyKernels:
    """The medians of the run's own empty kernels in seconds, by device id and way of launching, over all replicates."""

    medians: dict[tuple[str, Launch], float]

    @classmethod
    def of_run(cls, run: Run) -> EmptyKernels:
        """Return the times that the case `latency/launch` measured in this run, by device id and way of launching.

        Without an ok result there are none. Replicates are joined by the median of their medians."""
        medians: dict[tuple[str, Launch], list[float]] = defaultdict(list)
        for result in run.results:
            if result.case.id == EMPTY_KERNEL_CASE and result.status == "ok":
                for series in result.series:
                    launch = launch_of(series.mode) if series.role == "primary" else None
                    if launch:
                        medians[result.devices[0], launch].append(quantities.judged_median(series))
        return cls({place: stats.median(values) for place, values in medians.items()})

    def seconds(self, device_id: str, mode: SeriesMode) -> float:
        """Return the seconds of an empty kernel on the device `device_id`, timed in the mode of a series.

        It is the median of this run, else that recorded on an H200."""
        launch = launch_of(mode)
        return self.medians.get((device_id, launch), EMPTY_KERNEL[launch].value) if launch else 0.0


POWER_CAPPED = "power-capped"
_EARLY_DIFFERS = 0.01  # early samples whose median differs from the headline by this fraction are reported beside it


class Summary:
    """A run with its figures, which every report reads; each figure is computed once, when it is first needed.

    `run` is the run with the labels that its clocks confirm, and `counters` its counters by device and measure."""

    def __init__(self, run: Run) -> None:
        """Prepare the counters and the peaks of a run; figures are computed when they are first asked for."""
        self.counters = counters.CounterTable.of_run(run)
        self.run = run = replace(run, results=tuple(self._with_earned_labels(run, result) for result in run.results))
        self._peaks = Peaks(run, self.counters, quantities.limited_median)
        self._reproducibilities: dict[tuple[str, tuple[str, ...]], Reproducibility | None] = {}
        # The keys are the ids of a result and a series, which stay unique as long as the dictionary holds both objects.
        self._figures: dict[tuple[int, int], tuple[Result, Series, Figure]] = {}
        self.points: dict[tuple[int, int], Any] = {}  # the points of views, by the same keys

    def _with_earned_labels(self, run: Run, result: Result) -> Result:
        """Return a result without the label `power-capped` unless the clock of one of its devices was lowered.

        The driver names the cap at every step of the clock, and for a while after a large product."""
        if POWER_CAPPED not in result.labels:
            return result
        for device in [device for device in run.manifest.facts.devices if device.id in result.devices]:
            if counters.is_slowed(self.core_clock(result, device.id), device):
                return result
        return replace(result, labels=tuple(label for label in result.labels if label != POWER_CAPPED))

    def core_clock(self, result: Result, device_id: str) -> float | None:
        """Return a device's mean core clock in the window of a result, in hertz.

        Where no counter was read, it is the clock after the samples of the headline, or None."""
        in_window = counters.Window(self.counters, device_id, [result.window]).clock(Measure.CORE_CLOCK)
        return in_window or next((series.clock_hz for series in result.series[:1]), None)

    @property
    def measured_devices(self) -> list[Device]:
        """The devices that have results, in the order of the inventory; all devices if no result names one."""
        used = {device for result in self.run.results for device in result.devices}
        devices = self.run.manifest.facts.devices
        return [device for device in devices if device.id in used] or list(devices)

    def device(self, device_id: str) -> Device:
        """Return the device of that id in the run's facts; raises KeyError for an id that they do not describe."""
        return self._peaks.device(device_id)

    def figure(self, result: Result, series: Series) -> Figure:
        """Return the figure of one series of a result of this run.

        It is computed once, because tables, charts and notices share it."""
        key = (id(result), id(series))
        if key not in self._figures:
            self._figures[key] = (result, series, self._figure(result, series))
        return self._figures[key][2]

    def _figure(self, result: Result, series: Series) -> Figure:
        values = quantities.judged_values(series).tolist()
        interval = stats.median_interval(values)
        return Figure(
            series.label,
            quantities.judged_unit(series),
            quantities.judged_better(series),
            interval,
            stats.noise(values),
            len(values),
            self._shares(result, series, interval.centre),
            series.stage,
            series.short,
        )

    def _shares(self, result: Result, series: Series, centre: float) -> tuple[Share, ...]:
        """Return the shares of peaks of a series whose figure is `centre`, in SI units; empty if it has no peak."""
        if not series.limit:
            return ()
        limited = quantities.limited_median(series)
        shares = self._peaks.shares(result, series, limited)
        if series.quantity != "items" or not limited:
            return shares
        return tuple(replace(share, peak=share.peak * centre / limited) for share in shares)

    def secondary_figures(self, spread: Spread) -> list[Figure]:
        """Return the figures of a case other than its headline (the first series), over its replicates.

        They are the first series of each other stage, the observed values, the sum over directions or devices, and
        early samples that differ from the headline by more than 1 %. Only replicates with the status of `spread.row`
        count."""
        status = spread.row.result.status
        results = [row.result for row in spread.rows if row.result.status == status]
        by_label: dict[str, list[Figure]] = {}
        for result in results:
            for series in _secondary_series(result):
                by_label.setdefault(series.label, []).append(self.figure(result, series))
        return [Figure.over_replicates(figures) for figures in by_label.values()]

    def energy(self, result: Result) -> Energy | NoEnergy:
        """Return the work per joule of a result's headline (its first series), or the reason why it has none."""
        series = quantities.headline(result)
        if series is None:
            return NoEnergy("nothing was timed")
        return energy_of(
            result, series, quantities.judged_median(series), quantities.judged_unit(series), self.counters
        )

    @cached_property
    def empty_kernels(self) -> EmptyKernels:
        """The times of empty kernels on the devices of this run."""
        return EmptyKernels.of_run(self.run)

    def rows(self) -> list[ResultRow]:
        """Return one row for each result, in the order measured."""
        return list(self._rows)

    @cached_property
    def _rows(self) -> tuple[ResultRow, ...]:
        headlines = ((result, quantities.headline(result)) for result in self.run.results)
        return tuple(
            ResultRow(result, self.figure(result, series) if series else None, tuple(self.impossible_shares(result)))
            for result, series in headlines
        )

    def impossible_shares(self, result: Result) -> Iterator[ImpossibleShare]:
        """Yield each share of an ok result that exceeds the peak of the device, with the label of its series.

        Early samples are left out, because their clock is unknown."""
        for series in result.series if result.status == "ok" else ():
            if series.limit and series.role != "early":
                share = peaks.impossible(self._peaks.shares(result, series, quantities.limited_median(series)))
                if share:
                    yield ImpossibleShare(series.label, share)

    def reproducibility(self, spread: Spread) -> Reproducibility | None:
        """Return the deviation of a case between processes, from replicates of this run or a recording.

        The result is None if there are fewer than three ok replicates and no recording."""
        key = spread.case.id, spread.devices
        if key not in self._reproducibilities:
            models = {self.device(device_id).name for device_id in spread.devices}
            self._reproducibilities[key] = reproducibility(spread.medians, spread.case.id, models)
        return self._reproducibilities[key]

    @cached_property
    def replicated(self) -> bool:
        """Whether this run holds more than one replicate."""
        return len({result.replicate for result in self.run.results}) > 1

    @property
    def recorded_sources_text(self) -> str:
        """The clause on the recordings from which deviations between processes come; empty if none does."""
        return recorded_sources_text(map(self.reproducibility, self.spreads()))

    @property
    def interval_name(self) -> str:
        """The coverage of intervals in tables: of the processes with replicates, else within the process."""
        return "95 % of processes" if self.replicated else WITHIN_PROCESS

    @cached_property
    def suite_infos(self) -> dict[str, SuiteInfo]:
        """The manifest's descriptions of suites, by name."""
        return {suite.name: suite for suite in reversed(self.run.manifest.suites)}

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
        """Return the spread of each case on each device set, in the order measured.

        If there are replicates, the spreads are sorted by suite, case name, parameters and devices."""
        return list(self._spreads)

    @cached_property
    def spreads_by_name(self) -> dict[tuple[str, str], list[Spread]]:
        """The spreads by suite and name of the case, each in the order of `spreads`."""
        by_name: dict[tuple[str, str], list[Spread]] = {}
        for spread in self._spreads:
            by_name.setdefault((spread.case.suite, spread.case.name), []).append(spread)
        return by_name

    @cached_property
    def _spreads(self) -> list[Spread]:
        """The spread of each case on each device set, in the order that `spreads` describes."""
        grouped: dict[tuple[str, tuple[str, ...]], list[ResultRow]] = {}
        for row in self.rows():
            grouped.setdefault(row.result.key[:2], []).append(row)
        spreads = [Spread(tuple(sorted(rows, key=lambda row: row.result.replicate))) for rows in grouped.values()]
        return sorted(spreads, key=self._sort_key) if self.replicated else spreads

    def _sort_key(self, spread: Spread) -> tuple[object, ...]:
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
        """Return the number of results by status, with the keys ok, skipped, failed and invalid in this order."""
        by_status = dict.fromkeys(("ok", "skipped", "failed", "invalid"), 0)
        for result in self.run.results:
            by_status[result.status] += 1
        return by_status

    def suites(self) -> list[tuple[str, list[Spread]]]:
        """Return pairs of a suite's name and its spreads, both in the order of `spreads`."""
        grouped: dict[str, list[Spread]] = {}
        for spread in self.spreads():
            grouped.setdefault(spread.case.suite, []).append(spread)
        return list(grouped.items())


def _secondary_series(result: Result) -> Iterator[Series]:
    stages = {series.stage for series in result.series[:1]}
    for series in list(quantities.slowest_series(result))[1:]:
        if series.role == "primary" and series.stage not in stages:
            stages.add(series.stage)
            yield series
        is_value = series.role == "observed" and series.quantity == "value"
        is_sum = series.role == "derived" and series.name == quantities.SUM
        if is_value or is_sum or (series.role == "early" and _differs(series, result.series[0])):
            yield series


def _differs(early: Series, settled: Series) -> bool:
    """Return whether the early samples of a stage differ by more than 1 % from its samples after the device settled."""
    return (
        early.stage == settled.stage
        and abs(quantities.judged_median(early) / quantities.judged_median(settled) - 1) > _EARLY_DIFFERS
    )


def exit_status(results: Sequence[Result]) -> int:
    """Return the exit status of a run: 3 if a case failed, else 0 (skipped and invalid cases only warn)."""
    return 3 if any(result.status == "failed" for result in results) else 0


@dataclass(frozen=True, slots=True)
class CaseCounters:
    """The bound of a case, its memory traffic, and the throttle reasons in its window; None for an unknown value."""

    bound: Bound | None
    traffic: counters.Traffic | None
    throttled: tuple[counters.Throttle, ...] = ()


def case_counters(summary: Summary, result: Result) -> CaseCounters:
    """Return what bounds a result, its memory traffic and its throttle reasons, from the counters of its first device.

    The first two are None and the last is empty if the status of the result is not ok, or if it has no series."""
    series = quantities.headline(result)
    if series is None or result.status != "ok":
        return CaseCounters(None, None)
    device = summary.device(result.devices[0])
    load = window_load(summary, result, series)
    window = counters.Window(summary.counters, device.id, [result.window], device)
    return CaseCounters(window.bound(load), window.traffic(load), window.throttling())


def window_load(summary: Summary, result: Result, series: Series) -> counters.WindowLoad:
    """Return the facts about a case that are not from counters, from `series`, the main series of the result."""
    alone = not shared_window_reason(result, series)
    shares = summary.figure(result, series).shares
    specified = [share for share in shares if share.basis in ("spec", "clock")]
    peaks = {share.basis: share.peak for share in shares}
    seconds = sum(series.values)
    sampled = quantities.rate(series.work.moved * len(series.values), seconds) if seconds else 0.0
    call_s = min(series.values, default=0.0)
    return counters.WindowLoad(
        limit=series.limit,
        of_peak=tuple(Use(share.fraction, f"share of {share.peak_text}") for share in specified[-1:]),
        clock=Use(peaks["clock"] / peaks["spec"], "clock over the data sheet clock") if len(specified) == 2 else None,
        call_s=call_s,
        launch_s=summary.empty_kernels.seconds(result.devices[0], series.mode),
        moved_rate=quantities.rate(series.work.moved, call_s) if call_s > 0 else 0.0,
        counted_rate=sampled * min(filled_fraction(result, series), 1.0) if alone else 0.0,
        is_capped=POWER_CAPPED in result.labels,
        is_dependent=series.quantity == "item",
        fills_window=alone,
    )
