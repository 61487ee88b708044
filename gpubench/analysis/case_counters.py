"""Derive from the counters of a case what bounds it, how much memory traffic it has, and why the device throttled."""

from dataclasses import dataclass

from gpubench.analysis.bound import Bound, Use
from gpubench.analysis.energy import filled_fraction, shared_window_reason
from gpubench.analysis.quantities import headline, rate
from gpubench.analysis.summary import Summary
from gpubench.analysis.window import Throttle, Traffic, Window, WindowLoad
from gpubench.model import Result, Series


@dataclass(frozen=True, slots=True)
class CaseCounters:
    """The bound of a case, its memory traffic, and the throttle reasons in its window; None for an unknown value."""

    bound: Bound | None
    traffic: Traffic | None
    throttled: tuple[Throttle, ...] = ()


def case_counters(summary: Summary, result: Result) -> CaseCounters:
    """Return what bounds a result, its memory traffic and its throttle reasons, from the counters of its first device.

    The first two are None and the last is empty if the status of the result is not ok, or if it has no series."""
    series = headline(result)
    if series is None or result.status != "ok":
        return CaseCounters(None, None)
    device = summary.device(result.devices[0])
    load = _load(summary, result, series)
    window = Window(summary.counters, device.id, [result.window], device)
    return CaseCounters(window.bound(load), window.traffic(load), window.throttling())


def _load(summary: Summary, result: Result, series: Series) -> WindowLoad:
    """Return the facts about a case that are not from counters, from `series`, the main series of the result."""
    alone = not shared_window_reason(result, series)
    shares = summary.figure(result, series).shares
    specified = [share for share in shares if share.basis != "best"]
    peaks = {share.basis: share.peak for share in shares}
    seconds = sum(series.values)
    sampled = rate(series.work.moved * len(series.values), seconds) if seconds else 0.0
    call_s = min(series.values, default=0.0)
    return WindowLoad(
        limit=series.limit,
        of_peak=tuple(Use(share.fraction, f"share of {share.peak_text}") for share in specified[-1:]),
        clock_of_spec=peaks["clock"] / peaks["spec"] if {"clock", "spec"} <= peaks.keys() else None,
        call_s=call_s,
        launch_s=summary.empty_kernels.seconds(result.devices[0], series.mode),
        moved_rate=rate(series.work.moved, call_s) if call_s > 0 else 0.0,
        counted_rate=sampled * min(filled_fraction(result, series), 1.0) if alone else 0.0,
        is_capped="power-capped" in result.labels,
        is_dependent=series.quantity == "item",
        fills_window=alone,
    )
