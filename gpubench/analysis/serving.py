"""Simulate how many queries a device can serve with continuous batching, from measured times of prefills and steps.

A query has a prompt and asks for a number of tokens. A prefill computes its prompt and its first token; a step computes
one further token for every sequence of the batch. Queries arrive at random, and no query waits for another to be sent:
a latency counts from the moment at which the query was scheduled to arrive. The scheduler is the simplest that keeps a
device busy: between two steps it prefills waiting queries one by one, in the order of their arrival, as long as the
batch has a free slot. With chunked prefill it prefills one chunk of a prompt between two steps (Sarathi, arXiv
2308.16369); a chunk costs what a measured step with a chunk takes longer than one without it, else a prefill."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gpubench.stats import queries

Floats = npt.NDArray[np.float64]

_RATE_STEP = 0.01  # relative width at which the bisection for the highest rate stops
_GROWTH = 0.01  # waiting queries that each arrival may add before the rate counts as not sustained
_ENOUGH = 1e-12  # in steps: a step that ends exactly at an arrival counts as ended within this tolerance


@dataclass(frozen=True, slots=True)
class StepLine:
    """The time of a step of one batch size: `base_s` plus `token_s` for each token of context of its sequences.

    `residual` is the largest relative distance of a measured time from this line."""

    base_s: float
    token_s: float
    residual: float = 0.0

    @classmethod
    def fitted(cls, tokens: Sequence[float], seconds: Sequence[float]) -> StepLine:
        """Return the line through measured times of steps that has the least sum of squared relative distances.

        Base and slope are at least 0; with a single number of tokens the slope is 0."""
        x, y = np.asarray(tokens, dtype=float), np.asarray(seconds, dtype=float)
        terms = np.stack([1 / y, x / y], axis=1)
        base, slope = _least_squares(terms) if len(set(tokens)) > 1 else (0.0, -1.0)
        if slope < 0:
            base, slope = _least_squares(terms[:, :1])[0], 0.0
        elif base < 0:
            base, slope = 0.0, _least_squares(terms[:, 1:])[0]
        return cls(base, slope, float(np.max(np.abs(base / y + slope * x / y - 1))))

    @classmethod
    def through(cls, tokens: float, seconds: float, token_s: float) -> StepLine:
        """Return the line through one measured time, with the slope of another batch size; its base is at least 0."""
        base = seconds - token_s * tokens
        return cls(base, token_s) if base >= 0 else cls(0.0, seconds / tokens)

    def seconds(self, batch: int, context: float, steps: float) -> float:
        """Return the seconds of `steps` steps of `batch` sequences that together hold `context` tokens at the start.

        Each step adds a token to each sequence."""
        return steps * (self.base_s + self.token_s * (context + batch * (steps + 1) / 2))

    def steps_within(self, batch: int, context: float, seconds: float) -> int:
        """Return the least number of steps, at least 1, that together take at least `seconds`.

        The `batch` sequences together hold `context` tokens before the first step."""
        linear, square = self.base_s + self.token_s * (context + batch / 2), self.token_s * batch / 2
        root = math.sqrt(linear * linear + 4 * square * seconds)
        return max(1, math.ceil(2 * seconds / (linear + root) - _ENOUGH))


def _least_squares(terms: Floats) -> tuple[float, ...]:
    """Return a factor for each column of `terms`, shape (rows, columns), such that the weighted row sums are near 1."""
    return tuple(float(factor) for factor in np.linalg.lstsq(terms, np.ones(len(terms)))[0])


@dataclass(frozen=True, slots=True)
class ServingTimes:
    """The measured times of a model on a device in seconds: prefills by tokens of the prompt, steps by batch size.

    A batch runs in the smallest measured size that holds it; the largest measured size is the number of slots. `fused`
    has by batch size how much longer a step takes that also prefills the first chunk of a prompt."""

    prefills: Mapping[int, float]
    steps: Mapping[int, StepLine]
    fused: Mapping[int, float] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """The most sequences of a batch."""
        return max(self.steps)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds of the prefill of a prompt of `tokens` tokens, interpolated between the measured lengths.

        Beyond them the time is proportional to the length, but no shorter than a step of the smallest batch."""
        lengths = sorted(self.prefills)
        if tokens > lengths[-1]:
            return self.prefills[lengths[-1]] * tokens / lengths[-1]
        if tokens < lengths[0]:
            shortest = self.prefills[lengths[0]]
            return max(shortest * tokens / lengths[0], min(shortest, self.steps[min(self.steps)].base_s))
        return float(np.interp(tokens, lengths, [self.prefills[length] for length in lengths]))

    def chunks_s(self, prompt: int, chunk: int, batch: int = 0) -> list[float]:
        """Return the seconds of each chunk of a prompt, beside a batch; 0 tokens of a `chunk` mean the whole prompt.

        A chunk takes as much longer as the prompt with it takes, but no shorter than it alone. In a step of a `batch`
        the first chunk takes what it adds to a measured step, and later ones as much longer as alone."""
        ends = [*range(chunk, prompt, chunk), prompt] if chunk else [prompt]
        times = [0.0, *map(self.prefill_s, ends)]
        sizes = np.diff([0, *ends]).tolist()
        alone = [
            max(after - before, self.prefill_s(size))
            for before, after, size in zip(times, times[1:], sizes, strict=False)
        ]
        fused = next((self.fused[size] for size in sorted(self.fused) if size >= batch), math.inf)
        return [min(time, fused + time - alone[0]) for time in alone] if chunk and batch else alone

    def lines(self) -> list[StepLine]:
        """Return the line for each number of sequences, from 0 to the number of slots."""
        sizes = sorted(self.steps)
        return [self.steps[next(size for size in sizes if size >= batch)] for batch in range(self.slots + 1)]


@dataclass(frozen=True, slots=True)
class Served:
    """The moments in seconds at which each query was scheduled, had its first and had its last token; shape (queries,).

    The queries are in the order of their arrivals. `output` is the number of tokens of each answer."""

    output: int
    scheduled: Floats
    first: Floats
    last: Floats

    @property
    def first_token_s(self) -> Floats:
        """The time to the first token (TTFT) of each query."""
        return self.first - self.scheduled

    @property
    def token_s(self) -> Floats:
        """The mean time of each token after the first (TPOT) of each query; 0 if there is one token."""
        return (self.last - self.first) / max(1, self.output - 1)

    @property
    def whole_s(self) -> Floats:
        """The time to the last token of each query."""
        return self.last - self.scheduled

    @property
    def waiting(self) -> Floats:
        """The number of earlier queries that had no first token when each query was scheduled."""
        started = np.searchsorted(self.first, self.scheduled, side="right")
        return np.asarray(np.arange(len(self.scheduled)) - started, dtype=float)

    def is_sustained(self, slots: int) -> bool:
        """Return whether the mean queue stays level from the third to the last quarter of the queries.

        At least four queries are needed."""
        quarter = len(self.scheduled) // 4
        waiting = self.waiting
        growth = waiting[-quarter:].mean() - waiting[-2 * quarter : -quarter].mean()
        return bool(growth <= max(slots, _GROWTH * quarter))


def poisson(rate: float, count: int, seed: int) -> Floats:
    """Return the times in seconds of `count` random arrivals (a Poisson process) at `rate` per second, ascending.

    With the same `seed`, another rate gives the same arrivals on another scale of time."""
    if not rate > 0:
        raise ValueError(f"the rate of arrivals is {rate}; it must be above 0")
    return np.cumsum(np.random.default_rng(seed).exponential(size=count)) / rate


def simulate(times: ServingTimes, scheduled: Floats, prompt: int, output: int, chunk: int = 0) -> Served:
    """Return the moments at which queries that arrive at the times `scheduled` (s, ascending) are served.

    All queries have `prompt` tokens, prefilled `chunk` at a time (0: at once), and ask for `output` tokens."""
    if np.any(np.diff(scheduled) < 0):
        raise ValueError("the arrivals are not in the order of their times; sort them first")
    count, slots, lines = len(scheduled), times.slots, times.lines()
    arrivals, alone = scheduled.tolist(), times.chunks_s(prompt, chunk)
    chunks = [times.chunks_s(prompt, chunk, batch) if times.fused else alone for batch in range(slots)]
    first, last = [0.0] * count, [0.0] * count
    ends: list[tuple[int, int]] = []  # the step after which each running query ends
    now, step, context, upcoming = 0.0, 0, 0, 0
    done, is_step_due = 0, False  # chunks of the upcoming query; whether a step comes before the next chunk
    while upcoming < count or ends:
        batch = len(ends)
        is_waiting = upcoming < count and batch < slots and arrivals[upcoming] <= now
        if is_waiting and not (is_step_due and batch):
            now += chunks[batch][done]
            done, is_step_due = (done + 1) % len(alone), chunk > 0
            if done:
                continue
            first[upcoming] = last[upcoming] = now
            if output > 1:
                heapq.heappush(ends, (step + output - 1, upcoming))
                context += prompt
            upcoming += 1
        elif not batch:
            now = arrivals[upcoming]
        else:
            line, steps = lines[batch], 1 if is_waiting else ends[0][0] - step
            is_step_due = False
            if not is_waiting and upcoming < count and batch < slots:
                steps = min(steps, line.steps_within(batch, context, arrivals[upcoming] - now))
            now += line.seconds(batch, context, steps)
            step, context = step + steps, context + steps * batch
            while ends and ends[0][0] == step:
                last[heapq.heappop(ends)[1]] = now
                context -= prompt + output - 1
    return Served(output, scheduled, np.array(first), np.array(last))


@dataclass(frozen=True, slots=True)
class Objectives:
    """The limits in seconds on the 99th percentiles of the time to the first token and of the time per token."""

    name: str
    first_token_s: float
    token_s: float


# Llama 3.1 8B, MLPerf Inference 5.1: https://github.com/mlcommons/inference_policies, "Benchmarks"
OBJECTIVES = (Objectives("server", 2.0, 0.1), Objectives("interactive", 0.5, 0.03))


@dataclass(frozen=True, slots=True)
class Workload:
    """The queries of a simulation: `prompt` and `output` are the tokens of each, `queries` is their number.

    `seed` is the seed of the random arrivals, and `chunk` the tokens of a prompt between two steps (0: all)."""

    prompt: int
    output: int
    queries: int
    seed: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The latencies in seconds of queries that arrive at `rate` per second, each as median and 99th percentile.

    The percentile is None if there are too few queries for it. `spread` is the share by which the rate of other random
    arrivals differs at most, if there were others."""

    rate: float
    first_token_s: tuple[float, float | None]  # the median and the 99th percentile
    token_s: tuple[float, float | None]
    whole_s: tuple[float, float | None]
    goodput: tuple[float, ...]
    is_sustained: bool
    spread: float = 0.0

    def meets(self, objectives: Objectives) -> bool:
        """Return whether the rate is sustained and both 99th percentiles are known and within the objectives."""
        first, token = self.first_token_s[1], self.token_s[1]
        if first is None or token is None:
            return False
        return self.is_sustained and first <= objectives.first_token_s and token <= objectives.token_s


def rate_point(served: Served, rate: float, slots: int) -> RatePoint:
    """Return the latencies, the goodput and the state of the queue of queries that arrived at `rate` per second.

    `slots` is the number of sequences in a full batch; the queue state says whether the rate is sustained."""
    first, token = served.first_token_s, served.token_s
    met = [np.mean((first <= limit.first_token_s) & (token <= limit.token_s)) for limit in OBJECTIVES]
    return RatePoint(
        rate,
        _percentiles(first),
        _percentiles(token),
        _percentiles(served.whole_s),
        tuple(rate * float(share) for share in met),
        served.is_sustained(slots),
    )


def _percentiles(seconds: Floats) -> tuple[float, float | None]:
    """Return the median and an upper estimate of the 99th percentile, None for too few queries (`tail_estimate`)."""
    return float(np.median(seconds)), queries.tail_estimate(seconds.tolist(), 0.99)


def fixed_batches(arrivals: Floats, batch: int, seconds: float) -> Floats:
    """Return the latency of each sample that arrives at the moments `arrivals` (s, ascending).

    Samples wait in a queue, and each call answers up to `batch` of them in `seconds` seconds."""
    ends, now, first = np.empty(len(arrivals)), 0.0, 0
    while first < len(arrivals):
        now = max(now, float(arrivals[first]))
        last = min(first + batch, int(np.searchsorted(arrivals, now, side="right")))
        now += seconds
        ends[first:last] = now
        first = last
    return ends - arrivals


@dataclass(frozen=True, slots=True)
class PredictedPercentile:
    """A percentile of the latency of queries in seconds, as it was measured and as it is predicted."""

    RECORD: ClassVar[str] = "measured predicted error"
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The fraction by which the prediction exceeds the measured percentile; negative if it falls short of it."""
        return self.predicted / self.measured - 1


def at_rate(times: ServingTimes, load: Workload, rate: float) -> RatePoint:
    """Return the simulated latencies at one rate of queries per second."""
    scheduled = poisson(rate, load.queries, load.seed)
    return rate_point(simulate(times, scheduled, load.prompt, load.output, load.chunk), rate, times.slots)


def capacity(times: ServingTimes, load: Workload) -> float:
    """Return the rate in queries per second at which every slot is always busy: above it, every queue grows."""
    slots, steps = times.slots, load.output - 1
    in_steps = times.lines()[slots].seconds(slots, slots * load.prompt, steps) if steps else 0.0
    return slots / (slots * sum(times.chunks_s(load.prompt, load.chunk, slots)) + in_steps)


def knee(times: ServingTimes, load: Workload, objectives: Objectives, seeds: int = 3) -> RatePoint | None:
    """Return the highest rate that meets the objectives, to one per cent, with its latencies.

    It is the median of `seeds` draws of the random arrivals, each found by bisection, and never above the capacity. The
    result is None if for most draws no rate above a thousandth of the capacity meets them."""
    most = capacity(times, load)
    points: list[RatePoint] = []
    for seed in range(load.seed, load.seed + seeds):
        # Later draws are looked for around the first one.
        around = (0.95 * points[0].rate, 1.05 * points[0].rate) if points else (0.0, most)
        point = _highest(times, replace(load, seed=seed), objectives, around[0], min(most, around[1]))
        if point:
            points.append(point)
    if len(points) <= seeds // 2:
        return None
    points.sort(key=lambda point: point.rate)
    middle = points[len(points) // 2]
    return replace(middle, spread=max(points[-1].rate - middle.rate, middle.rate - points[0].rate) / middle.rate)


def _highest(times: ServingTimes, load: Workload, objectives: Objectives, low: float, high: float) -> RatePoint | None:
    best: RatePoint | None = None
    while high - low > _RATE_STEP * high:
        point = at_rate(times, load, (low + high) / 2)
        if point.meets(objectives):
            best, low = point, point.rate
        elif not best and low and point.rate < 1.02 * low:
            low = 0.0  # the rate lies below the range
        else:
            high = point.rate
        if not best and high < 1e-3 * capacity(times, load):
            return None
    return best
