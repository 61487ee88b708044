"""Compute the serving capacity of a run's models from measured times, and predict the latencies that LoadGen measured.

A view of the kind `serving` names cases of four kinds, distinguished by their axes: steps (`batch`, `context`), steps
with a chunk of a prompt (`prefilled` too), prefills (`tokens`) and sessions of LoadGen (`scenario`, `batch` and
`context`), whose first series has medians of the latency, `p99` the 99th percentiles, and `arrivals` the moments at
which samples arrive."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from gpubench import stats
from gpubench.analysis import figure, quantities, serving
from gpubench.analysis.serving import OBJECTIVES, Objectives, PredictedPercentile, RatePoint, ServingTimes, StepLine
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import Result, View

_LOAD = serving.Workload(prompt=512, output=128, queries=5000)  # a rate takes 0.015 s, and there are about 25
_CHUNK = 256  # tokens of a prompt between two steps with chunked prefill
_SHARES = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1)  # rates of the curve, as shares of the capacity
_MOST_BATCH, _MOST_TOKENS = 4096, 10**7  # limits for a run file: a simulation has a line for each batch size
_MOST_MODELS = 24  # the most models of a view: each takes a third of a second
_LEAST_S, _MOST_S = 1e-9, 1e5  # limits of a possible duration of a step, a prefill or a query, in seconds
_TIMES = tuple(f"{time} {share}" for time in ("first token", "per token", "last token") for share in ("p50", "p99"))
_KNEE_HEADS = ("model", "device", "batch", "prompt", "output", "objectives", "highest rate", "tokens", *_TIMES[:4])
_RATE_HEADS = ("model", "device", "rate", *_TIMES, "goodput server", "goodput interactive", "queue")
_SESSION_HEADS = (
    "case",
    *(f"{share}{suffix}" for share in ("p50", "p99") for suffix in ("", ", predicted", ", error")),
)
_SESSION_NOTE = "Predicted from the measured step alone; the error is the share by which that exceeds LoadGen's figure"
_BOUND_NOTE = (
    "By gpubench's kernels, and at the bound: from the rates of memory and of products. "
    "± is the largest difference between three draws of the arrivals."
)
_ENERGY_HEADS = ("case", "energy", "power")
_SERVING_NOTE = "LoadGen scenario Server, simulated from measured steps and prefills; not an MLPerf result"


@dataclass(frozen=True, slots=True)
class SessionCheck:
    """The latency of the queries of LoadGen's case `case` beside what the steps of the run predict."""

    case: str
    p50: PredictedPercentile
    p99: PredictedPercentile


@dataclass(frozen=True, slots=True)
class Serving:
    """The simulated capacity of one model on one device; `knees` has the highest rate within each objective, or None.

    `bound` is the same from the times that calls would take at their bounds, if all of these are known. `chunked` are
    knees with chunked prefill."""

    RECORD: ClassVar[str] = (
        "view=title label devices prompt=load.prompt output=load.output "
        "highest_rates chunked_rates bound_rates sessions"
    )
    title: str
    label: str
    devices: tuple[str, ...]
    times: ServingTimes
    load: serving.Workload
    points: tuple[RatePoint, ...]
    knees: tuple[tuple[Objectives, RatePoint | None], ...]
    chunked: tuple[tuple[Objectives, RatePoint | None], ...]
    sessions: tuple[SessionCheck, ...]
    bound: Serving | None = None

    @property
    def highest_rates(self) -> dict[str, float | None]:
        """The highest rate within each objective, queries per second; None if no rate meets it."""
        return {objectives.name: point.rate if point else None for objectives, point in self.knees}

    @property
    def chunked_rates(self) -> dict[str, float | None]:
        """The highest rates with chunked prefill."""
        return replace(self, knees=self.chunked).highest_rates

    @property
    def bound_rates(self) -> dict[str, float | None] | None:
        """The highest rates at the bound; None where that is unknown."""
        return self.bound.highest_rates if self.bound else None

    @property
    def curves(self) -> list[Serving]:
        """Itself, and the capacity at the bound."""
        return [self, self.bound] if self.bound else [self]

    @property
    def text(self) -> str:
        """The highest rate within each objective as text."""
        rates = [
            f"{name} up to {units.quantity(rate, 'query/s')}" if rate is not None else f"{name} never"
            for name, rate in self.highest_rates.items()
        ]
        return f"{self.label}: {', '.join(rates)}"


@dataclass(frozen=True, slots=True)
class Servings(Derived):
    """The models of one view, and its ok results, of which some have an energy per token in the `summary`."""

    KIND: ClassVar[str] = "serving"
    title: str
    models: tuple[Serving, ...]
    results: tuple[Result, ...] = ()
    summary: Summary | None = None

    @classmethod
    def of(cls, summary: Summary, suite: str, view: View) -> list[Servings]:
        """Return the serving capacity of each model on each device of a view, at most 24, and the energies.

        A model is a combination of values on the view's axes `by`. It needs a measured step and a measured prefill."""
        results = [item for item in summary.results_of(suite) if item.status == "ok" and item.case.name in view.cases]
        grouped: dict[tuple[str, tuple[str, ...]], _Measured] = {}
        for result in results:
            params = dict(result.case.params)
            label = ", ".join(str(params[axis]) for axis in view.by if axis in params)
            grouped.setdefault((label, result.devices), _Measured(summary)).add(result)
        timed = ((key, measured) for key, measured in grouped.items() if measured.times())
        models = tuple(_serving(view.title, *key, measured) for key, measured in itertools.islice(timed, _MOST_MODELS))
        return [cls(view.title, models, tuple(results), summary)]

    @property
    def tables(self) -> list[Table]:
        """The highest rates within the objectives, latencies by rate, measured sessions, and the energy per token."""
        energies = [(result.case.id, self.summary.energy(result)) for result in self.results if self.summary]
        rows = tuple(
            (case, energy.figure, units.quantity(energy.watts, "W"))
            for case, energy in energies
            if isinstance(energy, figure.Energy)
        )
        energy = [Table("Energy per token", _ENERGY_HEADS, rows, _ENERGY_HEADS[:1])] if rows else []
        if not self.models:
            return energy
        limits = ", ".join(f"{limit.name}: {limit.first_token_s:g} s and {limit.token_s:g} s" for limit in OBJECTIVES)
        curves = [capacity for model in self.models for capacity in model.curves]
        objectives = f"Objectives on p99, first token and per token: {limits}; batch: the largest one"
        note = f"{_SERVING_NOTE}. {_BOUND_NOTE} {objectives}"
        chunked = [replace(model, label=f"{model.label}, chunks of {_CHUNK}", knees=model.chunked) for model in curves]
        pairs = [pair for both in zip(curves, chunked, strict=True) for pair in both]
        knees = tuple(_knee_row(model, limit.name, point) for model in pairs for limit, point in model.knees)
        tables = [
            Table("Highest rate within the objectives", _KNEE_HEADS, knees, ("model", "device", "objectives"), note)
        ]
        rates = tuple(_rate_row(model, point) for model in curves for point in model.points)
        tables.append(Table(self.title, _RATE_HEADS, rates, ("model", "device", "queue"), _SERVING_NOTE))
        sessions = tuple(_session_row(session) for model in self.models for session in model.sessions)
        if sessions:
            title = "Latency by LoadGen beside its prediction, not an MLPerf result"
            tables.append(Table(title, _SESSION_HEADS, sessions, _SESSION_HEADS[:1], _SESSION_NOTE))
        return tables + energy


@dataclass(slots=True)
class _Measured:
    """The measured times of one model on one device in seconds, each the median of a replicate, and at the bound.

    `steps` has them by batch size and tokens of context, `fused` with a chunk, `prefills` by tokens of the prompt."""

    summary: Summary
    steps: dict[tuple[int, int], list[tuple[float, float]]] = field(default_factory=dict)
    fused: dict[tuple[int, int], list[tuple[float, float]]] = field(default_factory=dict)
    prefills: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    sessions: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        series = quantities.headline(result)
        seconds = stats.median(series.values) if series else math.nan
        if not _LEAST_S <= seconds <= _MOST_S:
            return
        batch, context, tokens = (_axis_count(result, axis) for axis in ("batch", "context", "tokens"))
        if batch and context and batch <= _MOST_BATCH:
            if "scenario" in dict(result.case.params):
                self.sessions.append(result)
            elif (chunk := _axis_count(result, "prefilled")) in (None, _CHUNK):
                times = self.fused if chunk else self.steps
                times.setdefault((batch, context), []).append(self._pair(result, seconds))
        elif tokens:
            self.prefills.setdefault(tokens, []).append(self._pair(result, seconds))

    def _pair(self, result: Result, seconds: float) -> tuple[float, float]:
        """Return the seconds, and the seconds at the bound by the run's rates of memory and products, or NaN."""
        series = quantities.headline(result)
        shares = {share.basis: share.fraction for share in self.summary.figure(result, series).shares} if series else {}
        best = shares.get("best", 1.0)
        share = max(shares["roof"], best if best < 1 else 0.0) if "roof" in shares else math.nan
        return seconds, share * seconds

    def times(self, which: int = 0) -> ServingTimes | None:
        """Return the times of calls in seconds, measured (0) or at the bound (1).

        The result is None without a step or a prefill, or if the bound of one is unknown."""
        seconds_of_all = [pair[which] for pairs in (*self.steps.values(), *self.prefills.values()) for pair in pairs]
        if not self.steps or not self.prefills or not all(map(math.isfinite, seconds_of_all)):
            return None
        steps, fused, prefills = (
            {key: stats.median([pair[which] for pair in pairs]) for key, pairs in sorted(cases.items())}
            for cases in (self.steps, self.fused, {(tokens, 0): pairs for tokens, pairs in self.prefills.items()})
        )
        points_by_batch: dict[int, list[tuple[float, float]]] = {}
        for (batch, context), middle in steps.items():
            points_by_batch.setdefault(batch, []).append((float(batch * context), middle))
        lines = {batch: StepLine.fitted(*zip(*points, strict=True)) for batch, points in points_by_batch.items()}
        slopes = [lines[batch].token_s for batch, points in points_by_batch.items() if len(points) > 1]
        if slopes:  # a token of context costs about the same in every batch; the largest batch shows the cost best
            for batch, points in points_by_batch.items():
                lines[batch] = StepLine.through(*points[0], slopes[-1]) if len(points) == 1 else lines[batch]
        longer = {key[0]: seconds - steps[key] for key, seconds in fused.items() if seconds > steps.get(key, math.inf)}
        return ServingTimes({tokens: seconds for (tokens, _), seconds in prefills.items()}, lines, longer)


def _axis_count(result: Result, axis: str) -> int | None:
    value = dict(result.case.params).get(axis)
    return value if isinstance(value, int) and 1 <= value <= _MOST_TOKENS else None


def _serving(title: str, label: str, devices: tuple[str, ...], measured: _Measured) -> Serving:
    times, at_bound = measured.times(), measured.times(1)
    assert times is not None
    sessions = tuple(check for result in measured.sessions if (check := _session_check(result, times)))
    bound = _simulated(title, f"{label}, at the bound", devices, at_bound) if at_bound else None
    return replace(_simulated(title, label, devices, times), sessions=sessions, bound=bound)


def _simulated(title: str, label: str, devices: tuple[str, ...], times: ServingTimes) -> Serving:
    most = serving.capacity(times, _LOAD)
    points = tuple(serving.at_rate(times, _LOAD, share * most) for share in _SHARES)
    knees, chunked = (
        tuple((objectives, serving.knee(times, load, objectives)) for objectives in OBJECTIVES)
        for load in (_LOAD, replace(_LOAD, chunk=_CHUNK))
    )
    return Serving(title, label, devices, times, _LOAD, points, knees, chunked, ())


def _session_check(result: Result, times: ServingTimes) -> SessionCheck | None:
    """Return LoadGen's percentiles beside their prediction for the same arrivals; None for a damaged session."""
    params, values = dict(result.case.params), {series.name: series.values for series in result.series}
    batch, arrivals = int(params["batch"]), np.asarray(values.get("arrivals", ()))
    measured = [stats.median(values[name]) if values.get(name) else 0.0 for name in ("", "p99")]
    if min(measured) <= 0 or not arrivals.size or not np.all(np.diff(arrivals) >= 0) or batch > times.slots:
        return None
    step_s = times.lines()[batch].seconds(0, batch * int(params["context"]), 1)
    latencies = serving.fixed_batches(arrivals, batch, step_s)
    if params["scenario"] == "multi_stream":  # a query takes as long as its last sample
        latencies = latencies[-1:]
    ordered = np.sort(latencies)  # LoadGen takes an element as percentile, without interpolation
    p50, p99 = (
        PredictedPercentile(seconds, float(ordered[int(share * len(ordered))]))
        for seconds, share in zip(measured, (0.5, 0.99), strict=True)
    )
    return SessionCheck(result.case.id, p50, p99)


def _knee_row(served: Serving, objectives: str, point: RatePoint | None) -> tuple[str, ...]:
    sizes = map(str, (served.times.slots, served.load.prompt, served.load.output))
    start = served.label, ", ".join(served.devices), *sizes, objectives
    if point is None:
        return (*start, "none meets them", *(NO_VALUE for _ in _KNEE_HEADS[7:]))
    spread = f"{units.quantity(point.rate, 'query/s')} ± {100 * point.spread:.1f} %"
    rates = spread, units.quantity(point.rate * served.load.output, "token/s")
    return (*start, *rates, *_median_and_p99(point.first_token_s, point.token_s))


def _rate_row(served: Serving, point: RatePoint) -> tuple[str, ...]:
    goodput = (units.quantity(rate, "query/s") for rate in point.goodput)
    return (
        served.label,
        ", ".join(served.devices),
        units.quantity(point.rate, "query/s"),
        *_median_and_p99(point.first_token_s, point.token_s, point.whole_s),
        *goodput,
        "sustained" if point.is_sustained else "not sustained",
    )


def _median_and_p99(*pairs: tuple[float, float | None]) -> Iterator[str]:
    """Yield the two values of each pair, a median and a 99th percentile in seconds, as texts; `NO_VALUE` for None."""
    return (NO_VALUE if value is None else units.quantity(value, "s") for pair in pairs for value in pair)


def _session_row(session: SessionCheck) -> tuple[str, ...]:
    cells = (
        (units.quantity(of.measured, "s"), units.quantity(of.predicted, "s"), f"{100 * of.error:+.1f} %")
        for of in (session.p50, session.p99)
    )
    return (session.case, *itertools.chain(*cells))
