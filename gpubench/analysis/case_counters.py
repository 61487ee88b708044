"""What the counters of a case's window say beside its figure: what bounds it, the memory's traffic, throttling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubench.analysis.bound import Activity, Bound, Use, bound_by
from gpubench.analysis.energy import filled, mixed
from gpubench.analysis.peaks import BASIS_WORDS, Share
from gpubench.analysis.quantities import headline, rate
from gpubench.analysis.summary import Summary
from gpubench.analysis.window import CounterReading, Throttle, Window
from gpubench.base import units
from gpubench.knowledge import hardware
from gpubench.model import Device, EventClass, Measure, Result, Series

# An empty kernel from the queue to its end, behind the gate: 1.3 to 1.4 µs on an H200 (`latency/launch`), and 2.5 µs
# where it is queued alone.
_EMPTY_KERNEL_S = 2.5e-6
# Arithmetic of the matrix and vector units; integers are addresses too.
_PIPES = (Measure.TENSOR_ACTIVITY, Measure.FP64_ACTIVITY, Measure.FP32_ACTIVITY, Measure.FP16_ACTIVITY)
_LINKS = (
    ("link.h2d", (Measure.PCIE_SENT, Measure.PCIE_RECEIVED)),
    ("link.peer", (Measure.NVLINK_SENT, Measure.NVLINK_RECEIVED)),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes a second of the device's memory over a window: those that a counter saw, and those that the suite counted.

    `counted` is the work of the calls over the whole window, gaps between them included, as the counter sees it.
    """

    seen: float
    counted: float
    by: str

    @property
    def ratio(self) -> float:
        """Seen over counted: below 1 caches served some, above 1 more was moved than the method counts."""
        return self.seen / self.counted

    @property
    def text(self) -> str:
        """`4213 GB/s seen (gpm.dram), 4198 GB/s counted: 100.4 %`."""
        seen, counted = units.quantity(self.seen, "B/s"), units.quantity(self.counted, "B/s")
        return f"{seen} seen ({self.by}), {counted} counted: {units.percent(self.ratio)}"


@dataclass(frozen=True, slots=True)
class CaseCounters:
    """What the counters of a case say: what bounds it, the memory's traffic, what held the clock down and how long."""

    bound: Bound | None
    traffic: Traffic | None
    throttled: tuple[Throttle, ...] = ()


def case_counters(summary: Summary, result: Result) -> CaseCounters:
    """Join a result's headline to the counters of its first device over its window; empty where it is not ok.

    Counters of a window that one load does not fill are left out: shares of peaks then speak alone.
    """
    series = headline(result)
    device = summary.device(result.devices[0]) if result.devices else None
    if series is None or device is None or result.status != "ok":
        return CaseCounters(None, None)
    window = Window(summary.counters, device.id, [result.window], device)
    alone = window if not mixed(result, series) else None
    traffic = _traffic(result, series, alone) if alone else None
    shares = summary.figure(result, series).shares
    activity = _activity(result, series, shares, device, alone, window)
    return CaseCounters(bound_by(activity), traffic, window.throttling())


def _traffic(result: Result, series: Series, window: Window) -> Traffic | None:
    """What the memory moved beside what was counted, of work that counts bytes moved and was sampled in its window."""
    seen = window.dram()
    if not seen or not seen.value or not series.work.moved or not sum(series.values):
        return None
    sampled = rate(series.work.moved * len(series.values), sum(series.values))
    counted = sampled * min(filled(result, series), 1.0)
    return Traffic(seen.value, counted, seen.by)


def _activity(
    result: Result, series: Series, shares: Sequence[Share], device: Device, alone: Window | None, window: Window
) -> Activity:
    """How much of each resource a case used; of counters the throttle reasons alone where `alone` is None."""
    known = [share for share in shares if share.basis != "best"]
    of_peak = [Use(share.fraction, f"share of {BASIS_WORDS[share.basis]} {share.limit}") for share in known[-1:]]
    limit = series.limit
    is_gpu = device.backend != "host"
    capped = max(window.throttled(EventClass.POWER_CAP) or 0.0, 1.0 if "power-capped" in result.labels else 0.0)
    a_call_s = min(series.values, default=0.0)
    return Activity(
        compute=(*(of_peak if limit.startswith(("tensor.", "float")) else ()), *_pipes(alone)),
        dram=(*(of_peak if limit == "dram" else ()), *_memory(alone)),
        l2=(*(of_peak if limit == "l2" else ()), *_from_cache(series, a_call_s, alone)),
        link=(*(of_peak if limit.startswith("link.") else ()), *_links(device, alone)),
        busy=_use(alone.share(Measure.BUSY)) if alone and is_gpu else None,
        capped=Use(capped, "readings under the power cap") if is_gpu else None,
        clock=_clock(device, alone) if alone else _clock_of_shares(shares),
        launch=Use(_EMPTY_KERNEL_S / a_call_s, "an empty kernel beside a call") if is_gpu and a_call_s > 0 else None,
        dependent=series.quantity == "item",
    )


def _use(reading: CounterReading | None) -> Use | None:
    return Use(reading.value, reading.by) if reading else None


def _pipes(window: Window | None) -> list[Use]:
    return [use for pipe in _PIPES if (use := _use(window.share(pipe)))] if window else []


def _memory(window: Window | None) -> list[Use]:
    if window is None:
        return []
    share, seen, peak = window.share(Measure.DRAM_SHARE), window.dram(), window.peak_dram()
    found = [_use(share)]
    if seen and peak and not (share and seen.by == share.by):
        found.append(Use(seen.value / peak, seen.by))
    return [use for use in found if use]


def _from_cache(series: Series, a_call_s: float, window: Window | None) -> list[Use]:
    """Where more is counted than the memory moved, and than half of what it could: caches served it."""
    peak, seen = (window.peak_dram(), window.dram()) if window else (None, None)
    moved = rate(series.work.moved, a_call_s) if a_call_s > 0 else 0.0
    if not peak or not seen or moved < peak / 2 or seen.value > moved / 2:
        return []
    return [Use(1 - seen.value / moved, f"of the bytes counted {seen.by} did not see")]


def _links(device: Device, window: Window | None) -> list[Use]:
    found = []
    for limit, ways in _LINKS if window else ():
        peak = hardware.peak(device, limit)
        for way in ways if peak else ():
            rate = window.rate(way) if window else None
            if peak and rate and rate.value:
                found.append(Use(rate.value / peak.value, rate.by))
    return found


def _clock(device: Device, window: Window) -> Use | None:
    mean, own = window.mean(Measure.CORE_CLOCK), dict(device.details).get("clock.sm_hz")
    return Use(mean.value / float(own), "clock of its own") if mean and own else None


def _clock_of_shares(shares: Sequence[Share]) -> Use | None:
    """The clock over the specification's, from the two shares that differ by it."""
    by_basis = {share.basis: share.peak for share in shares}
    if "clock" not in by_basis or "spec" not in by_basis:
        return None
    return Use(by_basis["clock"] / by_basis["spec"], "clock-corrected peak of spec")
