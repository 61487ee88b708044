"""A result and the counters of its own window: what they say of it beside its figure. Pure functions of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpubench.analysis.bound import Activity, Bound, Use, bound_by
from gpubench.analysis.counters import CounterTable, figure_of
from gpubench.analysis.energy import filled, mixed
from gpubench.analysis.peaks import BASIS_WORDS, Share
from gpubench.analysis.summary import Summary, headline
from gpubench.base import units
from gpubench.knowledge import hardware as data
from gpubench.model import Device, Result, Series

# An empty kernel from the queue to its end, behind the gate: 1.3 to 1.4 µs on an H200 (`latency/launch`), and 2.5 µs
# where it is queued alone.
_EMPTY_KERNEL_S = 2.5e-6
_CAP = "power cap"  # data.event_names
_HARMLESS = ("idle", "application clocks", "sync boost", "display clocks")  # they slow nothing down that works
_PIPES = ("tensor", "fp64", "fp32", "fp16")  # what GPM calls arithmetic; integers are addresses too


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
class Joined:
    """What the counters of a window say: what bounds it, the memory's traffic, and what held the clock down how long.

    `throttled` are pairs of a reason and the seconds in the window that it held.
    """

    bound: Bound | None
    traffic: Traffic | None
    throttled: tuple[tuple[str, float], ...] = ()


def joined(summary: Summary, result: Result) -> Joined:
    """Join a result's headline to the counters of its first device over its window; empty where it is not ok.

    Counters of a window that one load does not fill are left out: shares of peaks then speak alone.
    """
    series = headline(result)
    device = summary.device(result.devices[0]) if result.devices else None
    if series is None or device is None or result.status != "ok":
        return Joined(None, None)
    window = _Window(result, device, summary.counters)
    alone = not mixed(result, series)
    throttled = tuple(window.throttled())
    traffic = _traffic(result, series, window) if alone else None
    shares = summary.figure(result, series).shares
    activity = _activity(result, series, shares, device, window if alone else None, throttled)
    return Joined(bound_by(activity), traffic, throttled)


class _Window:
    """The counters of one device over one result's window, by the ends of their names."""

    def __init__(self, result: Result, device: Device, counters: CounterTable) -> None:
        self.start, self.end = result.window
        self._device = device
        self._counters = counters
        self._known: dict[tuple[str, ...], Use | None] = {}

    def mean(self, *ends: str) -> float | None:
        """The mean of the counter whose name ends so, of what was read in the window; None of nothing."""
        use = self._read(ends)
        return use.fraction if use else None

    def use(self, *ends: str) -> Use | None:
        """A counter of per cent as a share."""
        use = self._read(ends)
        return Use(use.fraction / 100, use.by) if use else None

    def _read(self, ends: tuple[str, ...]) -> Use | None:
        if ends not in self._known:
            track = self._counters.of(self._device.id, *ends)
            part = track.during(self.start, self.end) if track else None
            self._known[ends] = Use(float(part.values.mean()), part.counter.name) if part and len(part.values) else None
        return self._known[ends]

    def peak_dram(self) -> float | None:
        """The memory's bytes a second at the clock that it had; None where clock or bus are not known."""
        per_clock, clock_hz = data.bytes_per_memory_clock(self._device), self.mean(".clock.memory")
        return per_clock.value * clock_hz if per_clock and clock_hz else None

    def dram(self) -> tuple[float, str] | None:
        """Bytes a second that the memory moved, and by which counter."""
        sides = [self.mean("cupti.dram.read"), self.mean("cupti.dram.write")]
        if sides[0] is not None and sides[1] is not None:
            return sides[0] + sides[1], "cupti.dram"
        share, peak = self.mean("gpm.dram"), self.peak_dram()
        return (share / 100 * peak, "gpm.dram") if share is not None and peak else None

    def throttled(self) -> Iterable[tuple[str, float]]:
        """Each reason that held the clock down, and for how many seconds of the window by the share of the readings."""
        for track in self._counters.by_device.get(self._device.id, ()):
            part = track.during(self.start, self.end) if track.counter.kind == "event" else None
            if part and len(part.values):
                every = int(figure.mean) if (figure := figure_of(part)) else 0
                for place in range(every.bit_length()):
                    (name, *_) = data.event_names(track.counter.name, 1 << place)
                    share = float(((part.values.astype("int64") >> place) & 1).mean())
                    if share and name not in _HARMLESS:
                        yield name, share * (self.end - self.start)


def _traffic(result: Result, series: Series, window: _Window) -> Traffic | None:
    """What the memory moved beside what was counted, of work that counts bytes moved and was sampled in its window."""
    seen = window.dram()
    if not seen or not seen[0] or not series.work.moved or not sum(series.values):
        return None
    counted = series.work.moved * len(series.values) / sum(series.values) * min(filled(result, series), 1.0)
    return Traffic(seen[0], counted, seen[1])


def _activity(
    result: Result,
    series: Series,
    shares: Sequence[Share],
    device: Device,
    window: _Window | None,
    throttled: Sequence[tuple[str, float]],
) -> Activity:
    known = [share for share in shares if share.basis != "best"]
    of_peak = [Use(share.fraction, f"share of {BASIS_WORDS[share.basis]} {share.limit}") for share in known[-1:]]
    limit = series.limit
    seconds = result.window[1] - result.window[0]
    capped = dict(throttled).get(_CAP, 0.0) / seconds if seconds > 0 else 0.0
    capped = max(capped, 1.0 if "power-capped" in result.labels else 0.0)
    is_gpu = device.backend != "host"
    a_call_s = min(series.values, default=0.0)
    return Activity(
        compute=(*(of_peak if limit.startswith(("tensor.", "float")) else ()), *_pipes(window)),
        dram=(*(of_peak if limit == "dram" else ()), *_memory(window)),
        l2=(*(of_peak if limit == "l2" else ()), *_from_cache(series, a_call_s, window)),
        link=(*(of_peak if limit.startswith("link.") else ()), *_links(device, window)),
        busy=window.use("gpm.gpu") or window.use(".utilization.gpu", ".utilization.gfx") if window and is_gpu else None,
        capped=Use(capped, "readings under the power cap") if is_gpu else None,
        clock=_clock(device, window) if window else _clock_of_shares(shares),
        launch=Use(_EMPTY_KERNEL_S / a_call_s, "an empty kernel beside a call") if is_gpu and a_call_s > 0 else None,
        dependent=series.quantity == "item",
    )


def _pipes(window: _Window | None) -> list[Use]:
    return [use for pipe in _PIPES if (use := window.use(f"gpm.{pipe}"))] if window else []


def _memory(window: _Window | None) -> list[Use]:
    if window is None:
        return []
    found, seen, peak = [window.use("gpm.dram")], window.dram(), window.peak_dram()
    if seen and seen[1] != "gpm.dram" and peak:
        found.append(Use(seen[0] / peak, seen[1]))
    return [use for use in found if use]


def _from_cache(series: Series, a_call_s: float, window: _Window | None) -> list[Use]:
    """Where more is counted than the memory moved, and than half of what it could: caches served it."""
    peak, seen = (window.peak_dram(), window.dram()) if window else (None, None)
    moved = series.work.moved / a_call_s if a_call_s > 0 else 0.0
    if not peak or not seen or moved < peak / 2 or seen[0] > moved / 2:
        return []
    return [Use(1 - seen[0] / moved, f"of the bytes counted {seen[1]} did not see")]


def _links(device: Device, window: _Window | None) -> list[Use]:
    found = []
    for name, limit in (("pcie", "link.h2d"), ("nvlink", "link.peer")):
        peak = data.peak(device, limit)
        for way in ("tx", "rx") if window and peak else ():
            mean = window.mean(f"gpm.{name}.{way}") if window else None
            if peak and mean:
                found.append(Use(mean / peak.value, f"gpm.{name}.{way}"))
    return found


def _clock(device: Device, window: _Window) -> Use | None:
    mean, own = window.mean(".clock.sm", ".clock.gfx"), dict(device.details).get("clock.sm_hz")
    return Use(mean / float(own), "clock of its own") if mean and own else None


def _clock_of_shares(shares: Sequence[Share]) -> Use | None:
    """The clock over the specification's, from the two shares that differ by it."""
    by_basis = {share.basis: share.peak for share in shares}
    if "clock" not in by_basis or "spec" not in by_basis:
        return None
    return Use(by_basis["clock"] / by_basis["spec"], "clock-corrected peak of spec")
