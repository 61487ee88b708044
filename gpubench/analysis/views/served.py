"""Compute the serving capacity of a run's models from measured times, and compare simulations with measured sessions.

A view of the kind `serving` names cases of three kinds, distinguished by their axes: steps (`batch`, `context`),
prefills (`tokens`) and sessions (`prompt`, `output`), whose observed series `scheduled`, `first token` and `last token`
hold the moments of every query. A session without them shows what a call takes longer in a session (series `call times`
and `call contexts`): the host's share of it, and lower clocks where prefills make the device reach its power limit."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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

    title: str
    label: str
    devices: tuple[str, ...]
    times: ServingTimes
    load: Workload
    points: tuple[RatePoint, ...]
    knees: tuple[tuple[Objectives, RatePoint | None], ...]
    sessions: tuple[SessionCheck, ...]
    latencies: tuple[Latencies, ...]


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
        """Return the lengths of the queries: those of the sessions, if there are any."""
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


def servings(summary: Summary) -> list[Serving]:
    """Return the serving capacity of each model of a run, view by view."""
    views = ((info.name, view) for info in summary.run.manifest.suites for view in info.views if view.kind == "serving")
    return [model for suite, view in views for model in served_of(summary, suite, view)]


def served_of(summary: Summary, suite: str, view: View) -> list[Serving]:
    """Return the serving capacity of each model on each device of a suite's view, at most 24.

    A model is a combination of values on the view's axes `by`. It needs a measured step and a measured prefill."""
    grouped: dict[tuple[str, tuple[str, ...]], _Measured] = {}
    for result in summary.results_of(suite):
        params = dict(result.case.params)
        if result.status == "ok" and result.case.name in view.cases:
            label = ", ".join(str(params[axis]) for axis in view.by if axis in params)
            grouped.setdefault((label, result.devices), _Measured()).add(result)
    timed = ((*key, measured, times) for key, measured in grouped.items() if (times := measured.times()))
    return [_serving(view.title, *model) for model in itertools.islice(timed, _MOST_MODELS)]


def energies_of(summary: Summary, suite: str, view: View) -> list[tuple[str, Energy]]:
    """Return the case id and the energy per token of each ok result of a suite's view that has an energy figure."""
    cases = (result for result in summary.results_of(suite) if result.status == "ok" and result.case.name in view.cases)
    energies = ((result.case.id, summary.energy(result)) for result in cases)
    return [(case, energy) for case, energy in energies if isinstance(energy, Energy)]


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
    """Yield the checks of each session that recorded the moments of its queries."""
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
    """Yield the percentiles of a measured session beside those of its simulation with the same arrivals."""
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
