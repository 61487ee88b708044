"""After how many calls a compiler has earned back what it costs, compared with the eager library.

A view of the kind `amortisation` names cases of two kinds, told apart by their axes: operators by several providers
(axis `by`), and builds of an operator (axes `op`, `by` and `cache`) with the times `compile` and `first`. The note
`eager` of an operator names the providers that it is compared with, separated by commas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpubench import stats
from gpubench.analysis.quantities import headline, series_labelled, speaking
from gpubench.analysis.summary import Summary
from gpubench.model import Case, Result, View
from gpubench.stats import Interval, Vector

STATES = {"process": "in a process that is up", "warm": "from a warm cache", "cold": "from a cold cache"}

_COSTS = {"process": "compile", "warm": "first", "cold": "first"}  # the time of a build that is paid
_DRAWS = 4000  # resamples: the ends of an interval are then known to a tenth of its width
_TAIL = 0.025  # on each side of an interval of 95 %
_LEAST_S, _MOST_S = 1e-12, 1e6  # of a call or a build
_MOST = 400  # comparisons of a view

Key = tuple[tuple[str, ...], str, tuple[tuple[str, str | int | float], ...]]  # devices, case, parameters without `by`


@dataclass(frozen=True, slots=True)
class PaidAfter:
    """The number of calls after which a provider has earned back its cost from one state of its caches.

    It is infinite where the provider is not faster, and 0 where it costs no more than the eager library. `is_bound`
    says that nobody measured the cost of the eager library: it counts as nothing, so the number is an upper bound.
    """

    cache: str
    calls: Interval
    is_bound: bool


@dataclass(frozen=True, slots=True)
class Amortised:
    """An operator by one provider beside the eager library: the times of a call in seconds, and what pays when."""

    case: Case
    devices: tuple[str, ...]
    op: str  # as builds name the operator
    by: str
    eager: str
    seconds: float
    eager_seconds: float
    series: str  # which both times are of
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

    def work_s(self, paid: PaidAfter) -> float:
        """Return the time that the eager library takes for so many calls, in seconds."""
        return paid.calls.centre * self.eager_seconds


@dataclass(slots=True)
class _Operator:
    """The results of one operator at one shape, by provider and in the order measured."""

    results: dict[str, list[Result]] = field(default_factory=dict)

    def seconds(self, by: str, label: str) -> list[float]:
        """Return the times of a call: each replicate's median, of one replicate its samples."""
        return _joined([_values(result, label) for result in self.results.get(by, ())])


@dataclass(slots=True)
class _Costs:
    """The costs of builds in seconds, each replicate's samples, by devices, operator, provider and cache."""

    found: dict[tuple[tuple[str, ...], str, str, str], list[list[float]]] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        """Keep the cost of a build, unless its cache is no state that is known."""
        params = {axis: str(value) for axis, value in result.case.params}
        cost = _COSTS.get(params["cache"])
        for series in speaking(result) if cost else ():
            if series.short == cost and series.unit == "s":
                key = (result.devices, params["op"], params["by"], params["cache"])
                self.found.setdefault(key, []).append(_possible(series.values))

    def of(self, devices: tuple[str, ...], op: str, by: str, cache: str) -> list[float]:
        """Return the costs of an operator by one provider; empty where nobody measured them."""
        return _joined(self.found.get((devices, op, by, cache), []))


def amortisations(summary: Summary) -> list[tuple[View, list[Amortised]]]:
    """Return what the compilers of a run earn back, view by view."""
    named = ((info.name, view) for info in summary.run.manifest.suites for view in info.views)
    return [(view, amortised_of(summary, suite, view)) for suite, view in named if view.kind == "amortisation"]


def amortised_of(summary: Summary, suite: str, view: View) -> list[Amortised]:
    """Return each operator of a view by each provider beside its eager ones; the view's `x` is an axis of operators.

    An operator whose case has no such axis is named by its case.
    """
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
            key = (result.devices, result.case.name, tuple(params.items()))
            operators.setdefault(key, _Operator()).results.setdefault(by, []).append(result)
    return list(_compared(operators, costs, view.x))[:_MOST]


def _compared(operators: dict[Key, _Operator], costs: _Costs, axis: str) -> Iterator[Amortised]:
    for (devices, name, params), operator in operators.items():
        op = str(dict(params).get(axis, name))
        for by, results in operator.results.items():
            spoken = headline(results[0])
            named = (each.strip() for each in dict(results[0].notes).get("eager", "").split(","))
            for eager in dict.fromkeys(each for each in named if each and each != by):
                times = [operator.seconds(who, spoken.label) if spoken else [] for who in (by, eager)]
                if spoken and all(times):
                    paid = tuple(_paid(costs, devices, op, (by, eager), times))
                    seconds, eager_seconds = map(stats.median, times)
                    yield Amortised(results[0].case, devices, op, by, eager, seconds, eager_seconds, spoken.label, paid)


def _paid(
    costs: _Costs, devices: tuple[str, ...], op: str, pair: tuple[str, str], times: Sequence[list[float]]
) -> Iterator[PaidAfter]:
    for cache in STATES:
        cost, eager_cost = (costs.of(devices, op, by, cache) for by in pair)
        if cost:
            yield PaidAfter(cache, calls_to_pay(cost, eager_cost or [0.0], *times), not eager_cost)


def calls_to_pay(
    cost: Sequence[float], eager_cost: Sequence[float], seconds: Sequence[float], eager_seconds: Sequence[float]
) -> Interval:
    """Return (cost − eager cost) / (eager time − time) of the medians, with the 95 % interval of their resamples.

    It is infinite where the time is not below the eager one, and 0 where the cost is not above the eager one.
    """
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


def _values(result: Result, label: str) -> list[float]:
    series = series_labelled(result, label)
    return _possible(series.values) if series and series.unit == "s" else []


def _possible(values: Sequence[float]) -> list[float]:
    """Return the samples; none if one of them cannot be the time of a call or a build."""
    return list(values) if all(_LEAST_S <= value <= _MOST_S for value in values) else []


def _joined(replicates: Sequence[list[float]]) -> list[float]:
    """Return the medians of several replicates, of one its samples."""
    known = [values for values in replicates if values]
    return [stats.median(values) for values in known] if len(known) > 1 else [*known[0]] if known else []
