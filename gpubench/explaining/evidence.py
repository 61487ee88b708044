"""Look up the cases and counters of a run that measure one effect on a figure by itself."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpubench import stats
from gpubench.analysis import quantities
from gpubench.analysis.counters import Window, bit_shares
from gpubench.analysis.figure import LEAST_BUSY, Figure, Spread, filled_fraction, shared_window_reason
from gpubench.analysis.summary import Summary, window_load
from gpubench.base import units
from gpubench.knowledge import alone, hardware
from gpubench.model import Device, EventClass, Measure, Result, Series

_CLOCK_STEP_HZ = 7.5e6  # half the step of an NVIDIA GPU's core clock
_STEADY = 0.95  # readings whose busy share is at least this part of the largest one saw only the case itself
_LEAST_READINGS = 3
_LARGE_BYTES = 2**26  # from which the start of a call takes less than a hundredth of it, on every link
_MOST_GATE = 0.05  # the largest part of a call that the gate kernel may add to the busy time
_LEAST_FILLED = 0.5  # the least share of the window that the samples fill: only steady readings are used
PIPES = {  # the counter of a unit's activity, by the beginning of the peak's id
    "tensor.": Measure.TENSOR_ACTIVITY,
    "float64": Measure.FP64_ACTIVITY,
    "float32": Measure.FP32_ACTIVITY,
    "float16": Measure.FP16_ACTIVITY,
}
_TILE = re.compile(r"tile (\d+)x(\d+).*split-K (-?\d+)")
_SHAPE = re.compile(r"(\d+)×(\d+)×(\d+)")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A measured ratio, its relative half width, and the case or counters that measured it."""

    value: float
    deviation: float
    by: str


@dataclass(frozen=True, slots=True)
class Held:
    """The peak of a unit at the clock that a case held (Hz), and the relative half width of the clock."""

    peak: float
    clock_hz: float
    deviation: float


@dataclass(frozen=True)
class Measured:
    """A case of the run: its device, headline, figure, rate in the unit of its peak, and the held clock's peak."""

    spread: Spread
    device: Device
    series: Series
    figure: Figure
    rate: float
    held: Held | None
    spec: hardware.Peak | None

    @property
    def name(self) -> str:
        """`gemm/square`."""
        return f"{self.spread.case.suite}/{self.spread.case.name}"

    @property
    def id(self) -> str:
        """The id of the case."""
        return self.spread.case.id

    @property
    def params(self) -> dict[str, str | int | float]:
        """The values on the axes of the case."""
        return dict(self.spread.case.params)

    @property
    def fraction(self) -> float:
        """The share of the peak at the held clock, or of the data sheet where no clock is known; NaN without a peak."""
        peak = self.held.peak if self.held else self.spec.value if self.spec else math.nan
        return self.rate / peak

    @property
    def call_s(self) -> float:
        """The seconds of one call."""
        return stats.median(self.series.values)

    @property
    def deviation(self) -> float:
        """The relative half width of the figure's interval, at least 0.1 %."""
        width = self.figure.interval.half_width
        return max(width, 0.001) if math.isfinite(width) else 0.01

    @cached_property
    def results(self) -> list[Result]:
        """The ok results of the case, one for each replicate."""
        return _timed(self.spread)

    @cached_property
    def counted_hz(self) -> float | None:
        """The clock during the calls as the SMs counted it; None unless the case observed it."""
        clocks = [stats.median(one.values) for result in self.results for one in result.series if one.name == "clock"]
        return stats.median(clocks) if clocks else None

    @property
    def notes(self) -> dict[str, str]:
        """The notes of the first ok result."""
        return dict(self.results[0].notes)


class Evidence:
    """The cases of a run by name, each looked up once, and the counters in their windows."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self._spreads: dict[str, list[Spread]] = {}
        for spread in summary.spreads():
            if spread.figure is not None:
                self._spreads.setdefault(f"{spread.case.suite}/{spread.case.name}", []).append(spread)
        self._measured: dict[int, Measured] = {}

    def measured(self, spread: Spread) -> Measured | None:
        """Return what is known of a case; None if nothing was timed."""
        if id(spread) not in self._measured:
            figure, series = spread.figure, quantities.headline(spread.row.result)
            if figure is None or series is None:
                return None
            medians = [
                quantities.limited_median(headline)
                for row in spread.rows
                if row.result.status == "ok" and (headline := quantities.headline(row.result))
            ]
            device = self.summary.device(spread.devices[0])
            limit = series.limit
            self._measured[id(spread)] = Measured(
                spread,
                device,
                series,
                figure,
                stats.median(medians),
                self._held(spread, device, limit),
                self._peak(device, limit) if limit else None,
            )
        return self._measured[id(spread)]

    def _peak(self, device: Device, limit: str) -> hardware.Peak | None:
        """Return the data sheet's peak, or for a host without one what all its vector units reached in this run."""
        peak = hardware.peak(device, limit)
        if peak or device.backend != "host":
            return peak
        units_alone = (spread.row.result for spread in self._spreads.get(alone.HOST_UNITS, ()))
        wanted = {("dtype", limit), ("cores", device.units)}
        of_type = (one for one in units_alone if wanted <= set(one.case.params))
        reached = (hardware.Peak(quantities.limited_median(one.series[0]), one.case.id) for one in of_type)
        return max(reached, key=lambda peak: peak.value, default=None)

    def named(self, names: Sequence[str], device: str) -> Iterator[Measured]:
        """Yield the measured cases with one of these names whose first device is `device`."""
        for name in names:
            for spread in self._spreads.get(name, ()):
                if spread.devices[0] == device and (measured := self.measured(spread)):
                    yield measured

    def best(self, names: Sequence[str], case: Measured, limit: str = "") -> Measured | None:
        """Return the other large case with one of these names and the largest share of `limit`; None without one.

        The limit is the case's own if it is empty."""
        others = (
            other
            for other in self.named(names, case.device.id)
            if other.id != case.id and other.series.limit == (limit or case.series.limit) and _is_large(other)
        )
        return max((other for other in others if other.fraction > 0), key=lambda other: other.fraction, default=None)

    def instruction(self, case: Measured) -> Measured | None:
        """Return the fastest bare instruction of a case's unit, or of one with equally many operations per clock."""
        per_clock = case.held.peak / case.held.clock_hz if case.held else math.nan
        candidates = (
            other
            for other in self.named(alone.INSTRUCTIONS, case.device.id)
            if other.held and math.isclose(other.held.peak / other.held.clock_hz, per_clock)
            if pipe(other.series.limit) == pipe(case.series.limit) != ""
        )
        return max(candidates, key=lambda other: other.fraction, default=None)

    def product(self, case: Measured) -> Measured | None:
        """Return the vendor's product with the largest share of a unit with equally many operations per clock."""
        per_clock = case.held.peak / case.held.clock_hz if case.held else math.nan
        candidates = (
            other
            for other in self.named(alone.PRODUCTS, case.device.id)
            if other.held and math.isclose(other.held.peak / other.held.clock_hz, per_clock)
        )
        return max(candidates, key=lambda other: other.fraction, default=None)

    def product_of(self, data: str, case: Measured) -> Measured | None:
        """Return the run's product of `zeros` or of `normal` data, of the same type and size as a case of N(0,1)."""
        if not case.notes.get("data", "").startswith("N("):
            return None
        wanted = {**{key: case.params.get(key) for key in ("dtype", "n")}, "data": data}
        named = self.named((alone.DATA_CASE,), case.device.id)
        return next((other for other in named if other.params == wanted and other.held), None)

    def counted_clock(self, case: Measured) -> Ratio | None:
        """Return the clock that SMs count over the driver's, in the case or in the run's same product; None without."""
        twin = case if case.counted_hz else self.product_of("normal", case)
        if twin is None or not twin.counted_hz or not twin.held:
            return None
        counted, said = (units.quantity(hertz, "Hz") for hertz in (twin.counted_hz, twin.held.clock_hz))
        text = f"{twin.id}: SMs counted {counted}, the driver said {said}"
        return Ratio(twin.counted_hz / twin.held.clock_hz, twin.held.deviation, text)

    def siblings(self, case: Measured, axis: str) -> list[Measured]:
        """Return the other points of the same case that differ on this axis alone, with the same peak."""
        rest = {name: value for name, value in case.params.items() if name != axis}
        return [
            other
            for other in self.named((case.name,), case.device.id)
            if other.id != case.id
            and other.series.limit == case.series.limit
            and {name: value for name, value in other.params.items() if name != axis} == rest
        ]

    def _held(self, spread: Spread, device: Device, limit: str) -> Held | None:
        """Return the peak at the clock after the samples, else at the mean clock of the window; None if unknown."""
        results = _timed(spread)
        window = Window(self.summary.counters, device.id, [result.window for result in results])
        if limit == "dram":
            rate, clock = hardware.bytes_per_memory_clock(device), window.clock(Measure.MEMORY_CLOCK)
            return Held(rate.value * clock, clock, 0.001) if rate and clock else None
        rate = hardware.per_clock(device, limit) if limit else None
        if rate is None or not device.units:
            return None
        own = [result.series[0].clock_hz for result in results if result.series[0].clock_hz]
        mean = window.clock(Measure.CORE_CLOCK)
        clock = stats.median([hz for hz in own if hz]) if own else mean
        if not clock:
            return None
        alone = not shared_window_reason(results[0], results[0].series[0])
        apart = abs(mean / clock - 1) / 2 if mean and own and alone else 0.0
        return Held(rate.value * device.units * clock, clock, max(_CLOCK_STEP_HZ / clock, apart))

    def clock_reason(self, case: Measured) -> tuple[str, str]:
        """Return why the clock of a case was what it was, as a clause and as who could change it."""
        details = dict(case.device.details)
        shares: dict[EventClass, float] = {}
        for track in self.summary.counters.of(case.device.id, Measure.THROTTLE_REASONS):
            values = np.concatenate([track.during(*result.window).values for result in case.results])
            for bit, share in bit_shares(track, values):
                shares[bit.kind] = max(shares.get(bit.kind, 0.0), share)
        for kind, who in (
            (EventClass.THERMAL, "user"),
            (EventClass.HARDWARE_SLOWDOWN, "user"),
            (EventClass.POWER_CAP, "nobody"),
        ):
            if shares.get(kind, 0.0) >= 0.5:
                limit = f" of {float(details['power.limit_w']):.0f} W" if "power.limit_w" in details else ""
                return f"{kind}{limit if kind is EventClass.POWER_CAP else ''}", who
        own, most = details.get("clock.application_hz", ""), details.get("clock.sm_most_hz", "")
        if shares.get(EventClass.USER, 0.0) >= 0.5 or (own and most and own != most):
            return "the user has set the clocks", "user"
        return ("no throttle reason" if shares or self._has_reasons(case) else "reasons were not read"), "nobody"

    def _has_reasons(self, case: Measured) -> bool:
        return bool(self.summary.counters.of(case.device.id, Measure.THROTTLE_REASONS))

    def of_busy(self, case: Measured, measure: Measure, other: Measure = Measure.BUSY) -> Ratio | None:
        """Return one activity counter over another in a case's steady readings; None without three above zero.

        It is None too if other work shared the window, or if the device may have waited for the host in it. A share of
        the busy time is without the gate kernel's part of it."""
        tops: list[float] = []
        names = ""
        for result in case.results:
            if why_not_alone(result):
                continue
            tracks = [self.summary.counters.of(case.device.id, counted) for counted in (measure, other, Measure.BUSY)]
            if not all(tracks):
                continue
            upper, lower, busy = (track[0].during(*result.window).values for track in tracks)
            if not len(upper) == len(lower) == len(busy) >= _LEAST_READINGS:
                continue
            steady = (busy >= _STEADY * busy.max()) & (lower > 0)
            tops += (upper[steady] / lower[steady]).tolist()
            names = f"{tracks[0][0].counter.name} over {tracks[1][0].counter.name}"
        gate = _host_share(case)
        if len(tops) < _LEAST_READINGS or gate > _MOST_GATE or not stats.median(tops) > 0:
            return None
        gate *= other is Measure.BUSY
        spread = 2 * float(np.std(tops, ddof=1)) / math.sqrt(len(tops)) / stats.median(tops)
        return Ratio(min(stats.median(tops) * (1 + gate), 1.0), max(spread, 0.005) + gate / 2, names)

    def traffic(self, case: Measured) -> Ratio | None:
        """Return counted over seen bytes of device memory; None if a counter or the work of the calls is unknown."""
        ratios, names = [], ""
        for result in case.results:
            window = Window(self.summary.counters, case.device.id, [result.window], case.device)
            traffic = window.traffic(window_load(self.summary, result, result.series[0]))
            if traffic:
                ratios.append(1 / traffic.ratio)
                names = traffic.by
        seconds = sum(result.window[1] - result.window[0] for result in case.results)
        return Ratio(stats.median(ratios), max(0.03, 0.12 / seconds), names) if ratios else None

    def link_headers(self, case: Measured) -> Ratio | None:
        """Return the payload over the bytes that a link's counter saw; None if the samples do not fill the window."""
        measure = {"link.h2d": Measure.PCIE_RECEIVED, "link.d2h": Measure.PCIE_SENT}.get(case.series.limit)
        result = case.results[0]
        if measure is None or shared_window_reason(result, result.series[0]):
            return None
        seen = Window(self.summary.counters, case.device.id, [result.window]).rate(measure)
        counted = case.rate * min(filled_fraction(result, result.series[0]), 1.0)
        if seen is None or not seen.value > counted > 0:
            return None
        return Ratio(counted / seen.value, 0.03, seen.by)


def why_not_alone(result: Result) -> str:
    """Return why steady readings in a result's window do not show its headline alone, as a clause; empty if they do."""
    series = result.series[0]
    filled = filled_fraction(result, series)
    if filled >= LEAST_BUSY or filled < _LEAST_FILLED:
        return shared_window_reason(result, series)
    return shared_window_reason(replace(result, window=(0.0, (result.window[1] - result.window[0]) * filled)), series)


def _timed(spread: Spread) -> list[Result]:
    return [row.result for row in spread.rows if row.result.status == "ok" and row.result.series]


def _is_large(case: Measured) -> bool:
    """Return whether a call moves enough for the rate of its link or memory alone."""
    return max(case.series.work.payload, case.series.work.moved) >= _LARGE_BYTES


def pipe(limit: str) -> str:
    """Return the key in PIPES of a peak; empty for a peak of memory or of a link."""
    return next((prefix for prefix in PIPES if limit.startswith(prefix)), "")


def tiles(case: Measured) -> tuple[float, float] | None:
    """Return the filled share of a product's waves of tiles and of its tiles' edges, by the library's note of its tile.

    The result is None if the note names no tile or split the inner dimension."""
    tile, shape = _TILE.search(case.notes.get("algorithm", "")), _SHAPE.search(case.notes.get("shape", ""))
    if not (tile and shape and case.device.units) or int(tile[3]) > 1:
        return None
    rows, columns = int(shape[1]), int(shape[2])
    high, wide = (int(tile[2]), int(tile[1])) if rows < columns else (int(tile[1]), int(tile[2]))
    across, down = math.ceil(rows / high), math.ceil(columns / wide)
    tiles_a_unit = across * down / case.device.units
    return tiles_a_unit / math.ceil(tiles_a_unit), rows / high / across * (columns / wide / down)


def _host_share(case: Measured) -> float:
    """Return the part of a call's time in which the device may only wait for the host to queue it."""
    host = next((series for series in case.results[0].series if series.mode == "host"), None)
    return min(stats.median(host.values) / case.call_s, 0.5) if host and case.call_s else 0.0
