"""Compute after how many calls a compiler has earned back its cost, compared with the eager library.

A view of the kind `amortisation` names cases of two kinds, distinguished by their axes: operators by several providers
(axis `by`), and builds of an operator (axes `op`, `by` and `cache`) with the times `compile` and `first`. An operator
may have its own cost in a stage `tuning`. The note `eager` of an operator names the providers that it is compared with,
separated by commas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gpubench import stats
from gpubench.analysis.quantities import headline, series_labelled, slowest_series
from gpubench.analysis.records import record
from gpubench.analysis.summary import Summary
from gpubench.analysis.views import breakeven
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import Case, Result, Series, View
from gpubench.stats import Interval, Vector

STATES = {"process": "in a process that is up", "warm": "from a warm cache", "cold": "from a cold cache"}

_TUNING = "tuning"  # the stage of an operator with the seconds of its own tuning
_COSTS = {"process": "compile", "warm": "first", "cold": "first"}  # the time of a build that is paid
_DRAWS = 4000  # resamples: the ends of an interval are then accurate to a tenth of its width
_TAIL = 0.025  # probability on each side of a 95 % interval
_LEAST_S, _MOST_S = 1e-12, 1e6  # limits of a possible duration of a call or a build, in seconds
_MOST = 400  # the most comparisons of a view
_ROUNDED = 1 - 1e-9  # keeps a whole number with a rounding error from being rounded up
_MOST_DIGITS = 1e7  # a smaller number of calls is written in full
_PAID_HEADS = ("operator", "provider", "device", "compared with", "call", "call there", "speed-up", *STATES.values())
_PAID_NOTE = (
    "The number of calls after which a provider has earned back what its build costs more than that of the library "
    "beside it; in brackets that library's time for these calls, and the 95 % interval. At most: the run has no build "
    "by that library"
)

Key = tuple[tuple[str, ...], str, tuple[tuple[str, str | int | float], ...]]  # devices, case, parameters without `by`


@dataclass(frozen=True, slots=True)
class PaidAfter:
    """The number of calls after which a provider has earned back its cost from one state of its caches, `cache`.

    `cache` is a key of `STATES`."""

    RECORD: ClassVar[str] = "low=calls.low calls=calls.centre high=calls.high is_bound"
    cache: str
    calls: Interval
    is_bound: bool


@dataclass(frozen=True, slots=True)
class Amortised:
    """An operator by the provider `by`, compared with the eager library `eager`.

    `seconds` and `eager_seconds` are the medians of a call by each of the two. `paid` has the number of calls to pay
    for each state of the caches whose cost was measured."""

    RECORD: ClassVar[str] = "view case=case.id devices by eager seconds eager_seconds pays_after"
    view: str  # its title
    case: Case
    devices: tuple[str, ...]
    op: str  # the name of the operator in builds
    by: str
    eager: str
    seconds: float
    eager_seconds: float
    series: str  # the label of the series of both times
    paid: tuple[PaidAfter, ...]

    @property
    def operator(self) -> str:
        """The case with its parameters, without the provider."""
        inside = ",".join(f"{axis}={value}" for axis, value in self.case.params if axis != "by")
        return f"{self.case.name}[{inside}]"

    @property
    def speedup(self) -> float:
        """The eager time over the provider's."""
        return self.eager_seconds / self.seconds

    @property
    def name(self) -> str:
        """The provider, in brackets the eager library that it is compared with, and the operator as one text."""
        return f"{self.by} ({self.eager}) {self.operator}"

    @property
    def pays_after(self) -> dict[str, PaidAfter]:
        """The number of calls to pay by the state of the caches."""
        return {paid.cache: paid for paid in self.paid}

    @property
    def outcomes(self) -> list[tuple[int, Interval, str]]:
        """The place in `STATES`, the calls and a clause for each state whose cost is earned back, and not at once."""
        return [
            (list(STATES).index(paid.cache), paid.calls, f"{STATES[paid.cache]} {self.paid_text(paid)}")
            for paid in self.paid
            if 0 < paid.calls.centre < math.inf
        ]

    def paid_text(self, paid: PaidAfter) -> str:
        """Return when the cost is earned back, with the 95 % interval: `after 626 calls (0.4 s of work; 600 – 650)`.

        Also `never`, `at once`, or `at once (0 – 48 calls)` for a provider that may cost more, but not by its median.
        """
        calls = paid.calls
        if math.isinf(calls.centre):
            return "never"
        if calls.high == 0:
            return "at once"
        work = units.quantity(calls.centre * self.eager_seconds, "s", 2)
        low, high = _calls_text(calls.low), _calls_text(calls.high)
        if calls.centre == 0:
            return f"at once ({low} – {high} calls)"
        between = f"; {low} – {high}" if low != high else ""
        return f"after {'at most ' if paid.is_bound else ''}{_calls_text(calls.centre)} calls ({work} of work{between})"

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of the table: operator, providers, both times of a call, speed-up, and calls to pay."""
        paid = {payment.cache: self.paid_text(payment) for payment in self.paid}
        times = (units.quantity(seconds, "s") for seconds in (self.seconds, self.eager_seconds))
        states = (paid.get(cache, NO_VALUE) for cache in STATES)
        speedup = breakeven.times(self.speedup)
        return (self.operator, self.by, ", ".join(self.devices), self.eager, *times, speedup, *states)


@dataclass(frozen=True, slots=True)
class Amortisation(Derived):
    """The compared operators of a view."""

    KIND: ClassVar[str] = "amortisation"
    STATES: ClassVar[dict[str, str]] = STATES
    title: str
    operators: tuple[Amortised, ...]

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Amortisation]:
        """Return each operator by each provider, compared with each of its eager libraries; at most 400.

        The view's `x` is the axis that names operators; an operator whose case has no such axis is named by its
        case."""
        return [cls(view.title, tuple(_amortised(summary, suite, view)))]

    @property
    def paying(self) -> list[Amortised]:
        """The operators by providers that earn back a cost, but not at once."""
        return [operator for operator in self.operators if operator.outcomes]

    @property
    def tables(self) -> list[Table]:
        """A table with a row for each comparison, or none if no cost was measured."""
        rows = tuple(operator.row for operator in self.operators if operator.paid)
        text_heads = (*_PAID_HEADS[:4], *STATES.values())
        return [Table(self.title, _PAID_HEADS, rows, text_heads, _PAID_NOTE)] if rows else []

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the number of calls to pay for each state of the caches; None for a provider that never pays."""
        for operator in self.operators:
            line = {"case": operator.case.id, "suite": operator.case.suite, "params": "", "quantity": "derived"}
            for paid in operator.paid:
                series = f"pays after, {STATES[paid.cache]}, compared with {operator.eager}"
                yield {**line, "unit": "call", "series": series, **record(paid.calls)}


@dataclass(slots=True)
class _Operator:
    """The ok results of one operator at one shape on one device set, by provider, in the order measured."""

    results: dict[str, list[Result]] = field(default_factory=dict)

    def seconds(self, by: str, timed: Series) -> list[float]:
        """Return the times of a call by the provider `by` in seconds: medians of replicates, or the samples of one."""
        return _joined([_values(result, timed) for result in self.results.get(by, ())])


@dataclass(slots=True)
class _Costs:
    """The costs of builds: the samples of each replicate in seconds.

    The key is (device ids, operator, provider, state of the cache)."""

    samples: dict[tuple[tuple[str, ...], str, str, str], list[list[float]]] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        """Keep the seconds of the build that a result measured."""
        params = {axis: str(value) for axis, value in result.case.params}
        cost = _COSTS.get(params["cache"])
        for series in slowest_series(result) if cost else ():
            if series.short == cost and series.unit == "s":
                key = (result.devices, params["op"], params["by"], params["cache"])
                self.samples.setdefault(key, []).append(_possible(series.values))

    def add_own(self, result: Result, op: str, by: str) -> None:
        """Keep the seconds that a result spent on tuning its own operator, from empty caches."""
        for series in slowest_series(result):
            if series.short == _TUNING and series.unit == "s":
                self.samples.setdefault((result.devices, op, by, "cold"), []).append(_possible(series.values))

    def of(self, devices: tuple[str, ...], op: str, by: str, cache: str) -> list[float]:
        return _joined(self.samples.get((devices, op, by, cache), []))


def _amortised(summary: Summary, suite: str, view: View) -> list[Amortised]:
    operators: dict[Key, _Operator] = {}
    costs = _Costs()
    for result in summary.results_of(suite):
        params = dict(result.case.params)
        if result.status != "ok" or result.case.name not in view.cases or "by" not in params:
            continue
        if {"op", "cache"} <= params.keys():
            costs.add(result)
        else:
            by = str(params.pop("by"))
            costs.add_own(result, str(params.get(view.x, result.case.name)), by)
            key = (result.devices, result.case.name, tuple(params.items()))
            operators.setdefault(key, _Operator()).results.setdefault(by, []).append(result)
    return list(_comparisons(operators, costs, view))[:_MOST]


def _comparisons(operators: dict[Key, _Operator], costs: _Costs, view: View) -> Iterator[Amortised]:
    for (devices, name, params), operator in operators.items():
        op = str(dict(params).get(view.x, name))
        for by, results in operator.results.items():
            series = headline(results[0])
            libraries = (name.strip() for name in dict(results[0].notes).get("eager", "").split(","))
            for eager in dict.fromkeys(library for library in libraries if library and library != by):
                times = [operator.seconds(provider, series) if series else [] for provider in (by, eager)]
                if series and all(times):
                    paid = tuple(_payments(costs, devices, op, (by, eager), times))
                    seconds, eager_seconds = map(stats.median, times)
                    yield Amortised(
                        view.title, results[0].case, devices, op, by, eager, seconds, eager_seconds, series.label, paid
                    )


def _payments(
    costs: _Costs, devices: tuple[str, ...], op: str, pair: tuple[str, str], times: Sequence[list[float]]
) -> Iterator[PaidAfter]:
    for cache in STATES:
        cost, eager_cost = (costs.of(devices, op, by, cache) for by in pair)
        if cost:
            yield PaidAfter(cache, calls_to_pay(cost, eager_cost or [0.0], *times), not eager_cost)


def calls_to_pay(
    cost: Sequence[float], eager_cost: Sequence[float], seconds: Sequence[float], eager_seconds: Sequence[float]
) -> Interval:
    """Return the calls to pay: (cost − eager cost) / (eager time − time) of the medians, with a 95 % interval.

    All arguments are samples in seconds, at least one each. The interval comes from resampled medians."""
    samples = (cost, eager_cost, seconds, eager_seconds)
    centre = float(_calls(*(np.array([stats.median(values)]) for values in samples))[0])
    rng = np.random.default_rng(0)
    drawn = np.sort(_calls(*(stats.resampled_medians(values, _DRAWS, rng) for values in samples)))
    last = len(drawn) - 1
    low, high = float(drawn[math.floor(_TAIL * last)]), float(drawn[math.ceil((1 - _TAIL) * last)])
    return Interval(min(low, centre), centre, max(high, centre))


def _calls(cost: Vector, eager_cost: Vector, seconds: Vector, eager_seconds: Vector) -> Vector:
    paid, gained = np.maximum(cost - eager_cost, 0.0), eager_seconds - seconds
    return np.where(gained > 0, paid / np.where(gained > 0, gained, 1.0), np.inf)


def _values(result: Result, timed: Series) -> list[float]:
    """Return the samples of a result's series with the label of `timed`, in seconds."""
    same_stage = [series.label for series in slowest_series(result) if series.stage and series.stage == timed.stage]
    labelled = (series_labelled(result, label) for label in (timed.label, *same_stage))
    series = next((series for series in labelled if series and series.unit == "s"), None)
    return _possible(series.values) if series else []


def _possible(values: Sequence[float]) -> list[float]:
    """Return the samples; an empty list if one of them is outside 1 ps to 1e6 s, so that it cannot be a time."""
    return list(values) if all(_LEAST_S <= value <= _MOST_S for value in values) else []


def _joined(replicates: Sequence[list[float]]) -> list[float]:
    measured = [values for values in replicates if values]
    return [stats.median(values) for values in measured] if len(measured) > 1 else [*measured[0]] if measured else []


def _calls_text(calls: float) -> str:
    """Return a number of calls as text, rounded up; `never` if it is infinite."""
    if math.isinf(calls):
        return "never"
    return str(math.ceil(calls * _ROUNDED)) if calls < _MOST_DIGITS else units.significant(calls, 3)
