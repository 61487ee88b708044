"""Compute work per joule: the rate of a case over the device's mean power in its window, from the energy counter.

The counter advances only every few tens of milliseconds and is read twice per second. A window must therefore be long,
and one series must fill it; otherwise the case has a reason in place of an energy figure."""

from dataclasses import dataclass

from gpubench import stats
from gpubench.analysis.counters import CounterTable
from gpubench.analysis.window import Window
from gpubench.base import units
from gpubench.model import Measure, Result, Series

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
    same_load = [timed for timed in result.series if _runs_same_calls(series, timed)]
    seconds = sum(sum(timed.values) * timed.calls for timed in same_load)
    dropped = sum(count for _, count in result.discarded) - sum(len(timed.values) for timed in same_load[1:])
    seconds += max(dropped, 0) * stats.median(series.values) * series.calls  # a discarded sample ran the same calls
    return (seconds + series.warmup_s) / window if window > 0 else 0.0


def _runs_same_calls(series: Series, candidate: Series) -> bool:
    """Return whether `candidate` ran the same calls as `series`: it is `series` itself or has its early samples."""
    is_early = candidate.role == "early" and (candidate.stage, candidate.mode) == (series.stage, series.mode)
    return is_early or candidate.label == series.label
