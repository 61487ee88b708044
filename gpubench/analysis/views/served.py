"""Compute the serving capacity of a run's models from measured times, and compare simulations with measured sessions.

A view of the kind `serving` names cases of three kinds, distinguished by their axes: steps (`batch`, `context`),
prefills (`tokens`) and sessions (`prompt`, `output`), whose observed series `scheduled`, `first token` and `last token`
hold the moments of every query. A session without them shows by how much calls take longer in a session (series `call
times` and `call contexts`), because of the host, and of lower clocks where prefills make the device reach its power
limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from gpubench import stats
from gpubench.analysis import serving
from gpubench.analysis.energy import Energy
from gpubench.analysis.quantities import headline, judged_unit
from gpubench.analysis.serving import (
    OBJECTIVES,
    Objectives,
    RatePoint,
    Served,
    ServingTimes,
    SimulatedPercentile,
    StepLine,
    Workload,
    simulated_percentile,
)
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.table import NO_VALUE, Derived, Table
from gpubench.base import units
from gpubench.model import Result, View
from gpubench.stats import queries

_QUERIES = 5000  # queries per simulated rate: a rate takes 0.015 s, and there are about 25
_PROMPT, _OUTPUT = 512, 128  # tokens of a query, unless a session of the run has others
_SHARES = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1)  # rates of the curve, as shares of the capacity
_MOST_BATCH, _MOST_TOKENS = 4096, 10**7  # limits for a run file: a simulation has a line for each batch size
_MOST_MODELS = 24  # the most models of a view: each takes a third of a second
_LEAST_S, _MOST_S = 1e-9, 1e5  # limits of a possible duration of a step, a prefill or a query, in seconds
_AXES = ("batch", "context", "tokens", "prompt", "output")
_MOMENTS = ("scheduled", "first token", "last token")
_CALLS = ("call times", "call contexts")  # one value for a prefill, then one for each batch size; 0 if none ran
_SIZES = "batch sizes"  # the series of a session that names the sizes in which its machine runs a batch
_FOR_P99 = queries.queries_needed(0.99)
_TIMES = tuple(f"{time} {share}" for time in ("first token", "per token", "last token") for share in ("p50", "p99"))
_KNEE_HEADS = ("model", "device", "batch", "prompt", "output", "objectives", "highest rate", "tokens", *_TIMES[:4])
_RATE_HEADS = ("model", "device", "rate", *_TIMES, "goodput server", "goodput interactive", "queue")
_SESSION_HEADS = (
    "case",
    "queries",
    "time",
    *(f"p50{suffix}" for suffix in ("", ", simulated", ", error")),
    *(f"p99{suffix}" for suffix in ("", ", simulated", ", error", ", 95 % interval of the error")),
)
_ENERGY_HEADS = ("case", "energy", "power")
_LATENCY_HEADS = ("case", "queries", "median", "p90", "p99")
_SERVING_NOTE = "LoadGen scenario Server, simulated from measured steps and prefills; not an MLPerf result"


@dataclass(frozen=True, slots=True)
class SessionCheck:
    """One time of the queries of a measured session beside its simulation with the same arrivals.

    `case` is the id of the case, `queries` their number, and `time` is `first token`, `per token` or `last token`. The
    99th percentile is None if the queries are too few."""

    case: str
    queries: int
    time: str
    p50: SimulatedPercentile
    p99: SimulatedPercentile | None


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of the queries of a case in seconds; a percentile that needs more queries is None."""

    case: str
    queries: int
    median: float
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Serving:
    """The simulated capacity of one model on one device; `label` joins the values of the view's axes `by`.

    `times` are the measured times of calls, `load` the shape of the queries, and `points` the simulated latencies by
    rate. `knees` has the highest rate within each of the objectives, None if no rate meets them."""

    RECORD: ClassVar[str] = "view=title label devices prompt=load.prompt output=load.output highest_rates sessions"
    title: str
    label: str
    devices: tuple[str, ...]
    times: ServingTimes
    load: Workload
    points: tuple[RatePoint, ...]
    knees: tuple[tuple[Objectives, RatePoint | None], ...]
    sessions: tuple[SessionCheck, ...]
    latencies: tuple[Latencies, ...]

    @property
    def highest_rates(self) -> dict[str, float | None]:
        """The highest rate within each objective, queries per second; None if no rate meets it."""
        return {objectives.name: point.rate if point else None for objectives, point in self.knees}

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
            grouped.setdefault((label, result.devices), _Measured()).add(result)
        timed = ((*key, measured, times) for key, measured in grouped.items() if (times := measured.times()))
        models = tuple(_serving(view.title, *model) for model in itertools.islice(timed, _MOST_MODELS))
        return [cls(view.title, models, tuple(results), summary)]

    @property
    def tables(self) -> list[Table]:
        """The highest rates within the objectives, latencies by rate, measured sessions, and the energy per token."""
        energies = [(result.case.id, self.summary.energy(result)) for result in self.results if self.summary]
        rows = tuple(
            (case, energy.figure, units.quantity(energy.watts, "W"))
            for case, energy in energies
            if isinstance(energy, Energy)
        )
        energy = [Table("Energy per token", _ENERGY_HEADS, rows, _ENERGY_HEADS[:1])] if rows else []
        if not self.models:
            return energy
        limits = ", ".join(f"{limit.name}: {limit.first_token_s:g} s and {limit.token_s:g} s" for limit in OBJECTIVES)
        note = f"{_SERVING_NOTE}. Objectives on p99, first token and per token: {limits}; batch: the largest one"
        knees = tuple(
            _knee_row(model, objectives.name, point) for model in self.models for objectives, point in model.knees
        )
        tables = [
            Table("Highest rate within the objectives", _KNEE_HEADS, knees, ("model", "device", "objectives"), note)
        ]
        rates = tuple(_rate_row(model, point) for model in self.models for point in model.points)
        tables.append(Table(self.title, _RATE_HEADS, rates, ("model", "device", "queue"), _SERVING_NOTE))
        sessions = tuple(_session_row(session) for model in self.models for session in model.sessions)
        latencies = tuple(_latency_row(latency) for measured in self.models for latency in measured.latencies)
        if latencies:
            title, note = "LoadGen scenarios, not MLPerf results: time of a query", "p90 from 64 queries, p99 from 662"
            tables.append(Table(title, _LATENCY_HEADS, latencies, _LATENCY_HEADS[:1], note))
        if sessions:
            title = "Simulation beside measured sessions with the same arrivals"
            note = "The error is the share by which the simulation exceeds the measured time; p99 needs 662 queries"
            tables.append(Table(title, _SESSION_HEADS, sessions, ("case", "time"), note))
        return tables + energy


@dataclass(slots=True)
class _Measured:
    """The measured times of one model on one device in seconds, each the median of a replicate.

    `steps` has them by batch size and tokens of context, `prefills` by tokens of the prompt."""

    steps: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    prefills: dict[int, list[float]] = field(default_factory=dict)
    sessions: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Keep an ok result as a session, a step or a prefill, by the axes of its case."""
        series = headline(result)
        seconds = stats.median(series.values) if series else math.nan
        if not _LEAST_S <= seconds <= _MOST_S:
            return
        batch, context, tokens, prompt, output = (_axis_count(result, axis) for axis in _AXES)
        if prompt and output:
            self.sessions.append(result)
        elif batch and context and batch <= _MOST_BATCH:
            self.steps.setdefault((batch, context), []).append(seconds)
        elif tokens:
            self.prefills.setdefault(tokens, []).append(seconds)

    def times(self) -> ServingTimes | None:
        """Return the times of calls in seconds for the simulation; None without a step or without a prefill."""
        if not self.steps or not self.prefills:
            return None
        points_by_batch: dict[int, list[tuple[float, float]]] = {}
        for (batch, context), seconds in sorted(self.steps.items()):
            points_by_batch.setdefault(batch, []).append((float(batch * context), stats.median(seconds)))
        lines = {batch: StepLine.fitted(*zip(*points, strict=True)) for batch, points in points_by_batch.items()}
        slopes = [lines[batch].token_s for batch, points in points_by_batch.items() if len(points) > 1]
        if slopes:  # a token of context costs about the same in every batch; the largest batch shows the cost best
            for batch, points in points_by_batch.items():
                lines[batch] = StepLine.through(*points[0], slopes[-1]) if len(points) == 1 else lines[batch]
        prefills = {tokens: stats.median(values) for tokens, values in sorted(self.prefills.items())}
        return _times_in_sessions(ServingTimes(prefills, lines), self.sessions)

    def load(self) -> Workload:
        """Return the lengths of the queries: the sessions' lengths, if there are any."""
        params = dict(self.sessions[0].case.params) if self.sessions else {}
        return Workload(int(params.get("prompt", _PROMPT)), int(params.get("output", _OUTPUT)), _QUERIES)


def _times_in_sessions(times: ServingTimes, sessions: Sequence[Result]) -> ServingTimes:
    """Return `times` corrected by the median difference of calls in a session from the same calls alone."""
    prefill_s: list[float] = []
    step_s: dict[int, list[float]] = {}
    for result in sessions:
        values = {series.name: series.values for series in result.series}
        seconds, contexts = (values.get(name, ()) for name in _CALLS)
        sizes = (0, *map(int, values.get(_SIZES, ())))
        if _MOMENTS[0] in values or not len(seconds) == len(contexts) == len(sizes) > 1:
            continue
        for size, call_s, context in zip(sizes, seconds, contexts, strict=True):
            if not _LEAST_S <= call_s <= _MOST_S or not 0 <= size <= times.slots:
                continue
            if size:
                line = times.lines()[size]
                step_s.setdefault(size, []).append(call_s - line.base_s - line.token_s * context)
            else:
                prefill_s.append(call_s - times.prefill_s(int(dict(result.case.params)["prompt"])))
    medians = {size: stats.median(values) for size, values in step_s.items()}
    return times.longer(stats.median(prefill_s) if prefill_s else 0.0, medians)


def _axis_count(result: Result, axis: str) -> int | None:
    """Return the number of sequences or tokens on an axis of a case; None for a missing or impossible value."""
    value = dict(result.case.params).get(axis)
    return value if isinstance(value, int) and 1 <= value <= _MOST_TOKENS else None


def _serving(title: str, label: str, devices: tuple[str, ...], measured: _Measured, times: ServingTimes) -> Serving:
    """Return the simulated capacity of one model: its latencies at nine rates, its highest rates, and its sessions."""
    load = measured.load()
    most = serving.capacity(times, load)
    points = tuple(serving.at_rate(times, load, share * most) for share in _SHARES)
    knees = tuple((objectives, serving.knee(times, load, objectives)) for objectives in OBJECTIVES)
    sessions = tuple(_session_checks(measured.sessions, times))
    return Serving(title, label, devices, times, load, points, knees, sessions, tuple(_latencies(measured.sessions)))


def _latencies(results: Sequence[Result]) -> Iterator[Latencies]:
    """Yield median, p90 and p99 of each result whose first series holds the seconds of single queries."""
    for result in results:
        series = headline(result)
        if series and judged_unit(series) == "s":
            p90, p99 = (queries.tail_estimate(series.values, fraction) for fraction in (0.9, 0.99))
            yield Latencies(result.case.id, len(series.values), stats.median(series.values), p90, p99)


def _session_checks(results: Sequence[Result], times: ServingTimes) -> Iterator[SessionCheck]:
    for result in results:
        wanted = (series for series in result.series if series.name in (*_MOMENTS, _SIZES))
        values = {series.name: np.asarray(series.values) for series in wanted}
        sizes = values.pop(_SIZES, None)
        of_sizes = times if sizes is None else times.of_sizes([int(size) for size in sizes])
        if of_sizes is None or len(values) < len(_MOMENTS) or len({moments.size for moments in values.values()}) > 1:
            continue
        scheduled, first, last = (values[name] for name in _MOMENTS)
        if np.any(np.diff(scheduled) < 0) or np.any(first <= scheduled) or np.any(last < first):
            continue
        params = dict(result.case.params)
        measured = Served(int(params["output"]), scheduled, first, last)
        yield from _percentile_checks(
            result.case.id, measured, serving.simulate(of_sizes, scheduled, int(params["prompt"]), measured.output)
        )


def _percentile_checks(case: str, measured: Served, simulated: Served) -> Iterator[SessionCheck]:
    """Yield the percentiles of a measured session and of its simulation with the same arrivals."""
    times = {
        "first token": (measured.first_token_s, simulated.first_token_s),
        "per token": (measured.token_s, simulated.token_s),
        "last token": (measured.whole_s, simulated.whole_s),
    }
    count = len(measured.scheduled)
    for name, pair in times.items():
        if np.all(pair[0] > 0):
            p99 = simulated_percentile(*pair, 0.99) if count >= _FOR_P99 else None
            yield SessionCheck(case, count, name, simulated_percentile(*pair, 0.5), p99)


def _latency_row(latencies: Latencies) -> tuple[str, ...]:
    times = (
        NO_VALUE if value is None else units.quantity(value, "s")
        for value in (latencies.median, latencies.p90, latencies.p99)
    )
    return (latencies.case, str(latencies.queries), *times)


def _knee_row(served: Serving, objectives: str, point: RatePoint | None) -> tuple[str, ...]:
    sizes = map(str, (served.times.slots, served.load.prompt, served.load.output))
    start = served.label, ", ".join(served.devices), *sizes, objectives
    if point is None:
        return (*start, "none meets them", *(NO_VALUE for _ in _KNEE_HEADS[7:]))
    rates = units.quantity(point.rate, "query/s"), units.quantity(point.rate * served.load.output, "token/s")
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
    p99 = session.p99
    cells = (*_percentile_cells(session.p50), *(_percentile_cells(p99) if p99 else (NO_VALUE,) * 3))
    errors = p99.errors if p99 else None
    interval = f"{100 * errors[0]:+.1f} to {100 * errors[1]:+.1f} %" if errors else NO_VALUE
    return (session.case, str(session.queries), session.time, *cells, interval)


def _percentile_cells(percentile: SimulatedPercentile) -> tuple[str, ...]:
    times = (units.quantity(seconds, "s") for seconds in (percentile.measured, percentile.simulated))
    return (*times, f"{100 * percentile.error:+.1f} %")
