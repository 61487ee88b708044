"""Run LoadGen's four scenarios by our own generator: queries one by one, eight at once, all at once, or at random.

They have LoadGen's names and rules; nothing here is an MLPerf result."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._models import MODELS
from ._machine import GpuMachine
from ._scheduler import Batch, CallTimes, HostClock, Machine, Session, poisson, serve
from ._steps import toy_notes
from ._toy import TOY, Tokens, ToyModel, ToyWeights

_SIZES = (1, 2, 4, 8)  # batch sizes
_STREAMS = 8  # concurrent queries of MultiStream
_FOR_P90, _FOR_P99 = 64, 662  # queries that are needed for each percentile (gpubench.stats.queries)
_OFFLINE, _SERVER = 24, 32  # queries of a timed session
_LONGEST_S = 120.0  # longest session; a slower device answers fewer queries in it and has no such percentile
_GROUP = 8  # queries of SingleStream between two readings of the clock, on a GPU
# Sampling takes this many times longer than the queries for a 90th percentile need, because the engine may drop a group
_SPARE = 1.25
_CHECKED = 2  # answers of a session that are compared with double precision

topic = gb.Topic(
    views=[
        gb.View(
            "bars",
            "Time to the last token, in LoadGen scenarios (not MLPerf results)",
            ("single_stream", "multi_stream"),
        ),
        gb.View("bars", "Throughput: LoadGen scenario Offline, not an MLPerf result", ("offline",)),
        gb.View(
            "curve",
            "Time to the last token by load: LoadGen scenario Server, not an MLPerf result",
            ("server",),
            x="load",
            by=("model", "weights"),
        ),
    ]
)


def _models(target: gb.Target) -> Any:
    return ("toy",) if target.is_host else gb.points((), full=("llama-3-8b",))


def _weights(target: gb.Target) -> Any:
    return ("float32",) if target.is_host else ("float16", "int4")


def _prompts(target: gb.Target) -> Any:
    return gb.points((32,), (16,)) if target.is_host else (512,)


def _outputs(target: gb.Target) -> Any:
    return gb.points((8,), (4,)) if target.is_host else (64,)


_AXES: dict[str, Any] = {"model": _models, "weights": _weights, "prompt": _prompts, "output": _outputs}


class ToyMachine:
    """The toy model as the scheduler uses it (a Machine), for sequences of at most `capacity` tokens.

    Rows that only fill a batch append to one further slot. `device_s` are the seconds of all prefills and steps."""

    sizes: Sequence[int] = _SIZES
    tolerance = 1e-4  # tolerance of a logit
    vocabulary = TOY.head.rows
    description = toy_notes()["model"]

    def __init__(self, weights: ToyWeights, capacity: int) -> None:
        self._spare, self._weights, self.device_s = max(self.sizes), weights, 0.0
        self._model = ToyModel(weights, self._spare + 1, capacity)

    def shortfall(self, slot: int, sequence: Tokens, token: int) -> float:
        """Return how far the logit of `token` lies below the largest logit after `sequence`, in double precision.

        The sequence is computed anew, so that the slot does not matter."""
        del slot
        logits = ToyModel(self._weights, 1, len(sequence), np.float64).prefill(0, sequence)
        return float(logits.max() - logits[token])

    def prefill(self, slot: int, prompt: Tokens) -> int:
        """Replace the sequence in a slot by `prompt`, and return the most likely token that follows it."""
        start = time.perf_counter()
        token = int(self._model.prefill(slot, prompt).argmax())
        self.device_s += time.perf_counter() - start
        return token

    def step(self, slots: Tokens, tokens: Tokens) -> Tokens:
        """Append one of `tokens` to the sequence in each of `slots`, and return the tokens that follow.

        All are NumPy arrays, int64, of the same length, at most the largest batch size."""
        size = min(size for size in self.sizes if size >= len(slots))
        fill = [(0, size - len(slots))]
        self._model.lengths[self._spare] = 0
        rows, last = np.pad(slots, fill, constant_values=self._spare), np.pad(tokens, fill)
        start = time.perf_counter()
        following = self._model.step(rows, last).argmax(axis=1)
        self.device_s += time.perf_counter() - start
        return np.asarray(following[: len(slots)])


class Scenario:
    """`queries` seeded prompts of `prompt` tokens each, answered with `output` tokens, session by session.

    The check looks at the last session, `session`; None before the first."""

    def __init__(self, machine: Machine, rng: np.random.Generator, prompt: int, output: int, queries: int) -> None:
        self.rng, self._output, self._machine = rng, output, machine
        self.prompts = list(self.rng.integers(0, machine.vocabulary, (queries, prompt)))
        self._answered: Sequence[Tokens] = ()
        self.session: Session | None = None
        self._busy_s = self._device_s = 0.0  # seconds since the last probe
        self._calls: list[Mapping[int, CallTimes]] = []  # call times of each session

    def run(self, prompts: Sequence[Tokens], scheduled: Sequence[float]) -> Session:
        """Serve `prompts`, where prompt i arrives `scheduled[i]` seconds from now, and return the session.

        The check then looks at this session."""
        before_s = self._machine.device_s
        session = serve(self._machine, prompts, scheduled, self._output, HostClock())
        self._device_s += self._machine.device_s - before_s
        self._busy_s += session.busy_s
        self._calls.append(session.calls)
        return self.take(prompts, session)

    def batch(self) -> Batch:
        """Return an empty batch on the machine, for queries that someone else sends."""
        return Batch(self._machine, self._output, HostClock())

    def take(self, prompts: Sequence[Tokens], session: Session) -> Session:
        """Let the check look at this session, which answered `prompts`, and return it."""
        self._answered, self.session = prompts, session
        return session

    def poison(self) -> None:
        """Forget the last session."""
        self._answered, self.session = (), None

    def check(self) -> gb.Observation:
        """Compare the answers of the last session with double precision, and return observed values by name.

        The machine counts `batch sizes`; `_call_times` returns `call times` and `call contexts`."""
        session = self.session
        if session is None:
            raise gb.WrongAnswer("no session has ended")
        counts = {len(answer.tokens) for answer in session.answers}
        gb.expect(counts == {self._output}, f"answers have {sorted(counts)} tokens, not {self._output} each")
        last_of_slot = list({answer.slot: place for place, answer in enumerate(session.answers)}.values())
        shortfalls = [self._shortfall(int(place)) for place in self.rng.choice(last_of_slot, _CHECKED)]
        gb.expect(
            max(shortfalls) < self._machine.tolerance,
            f"the logit of a token of an answer is {max(shortfalls):.3g} below that of another one",
        )
        sizes = gb.Profile(tuple(map(float, self._machine.sizes)), "sequences")
        counted = {"late": gb.Observed(session.late, "queries"), "padded": gb.Observed(session.padded)}
        return {**counted, "batch sizes": sizes, **self._call_times()}

    def _call_times(self) -> gb.Observation:
        """Return the time and the context of a prefill, and then of a step of each batch size, as two profiles."""
        seconds, context = [], []
        for size in (0, *self._machine.sizes):
            ran = [calls[size] for calls in self._calls if size in calls]
            seconds.append(float(np.median([times.seconds / times.calls for times in ran])) if ran else 0.0)
            context.append(float(np.median([times.context / times.calls for times in ran])) if ran else 0.0)
        return {"call times": gb.Profile(tuple(seconds), "s"), "call contexts": gb.Profile(tuple(context), "tokens")}

    def _shortfall(self, place: int) -> float:
        """Return the largest gap between the best logit and the answer's logit."""
        assert self.session is not None
        answer, shortfalls = self.session.answers[place], []
        for count in (0, len(answer.tokens) - 1):
            sequence = np.concatenate([self._answered[place], np.array(answer.tokens[:count], np.int64)])
            shortfalls.append(self._machine.shortfall(answer.slot, sequence, answer.tokens[count]))
        return max(shortfalls)

    def probe(self) -> gb.Observation:
        """Return the medians of the last session: time to the first token, and time between tokens, in seconds.

        `host` is the share of the time with queries in which the device did not compute, since the last probe."""
        assert self.session is not None
        first, token = np.median(self.session.first_token_s), np.median(self.session.token_s)
        host = 1 - self._device_s / self._busy_s
        self._busy_s = self._device_s = 0.0
        medians = {"first_token": gb.Observed(float(first), "s"), "per_token": gb.Observed(float(token), "s")}
        return {**medians, "host": gb.Observed(host)}

    def latencies(self, call: Callable[[], object], effort: gb.Effort = gb.POINT) -> gb.Task:
        """Return sessions as a task whose samples are the latencies in seconds that `call` returns, one or several."""
        return self.task(gb.Stage(call, clock="self", probe=self.probe, effort=effort))

    def task(self, stage: gb.Stage, check: Callable[[], gb.Observation] | None = None) -> gb.Task:
        """Return sessions as a task with one stage; `check` replaces the scenario's own check."""
        notes = {"scenario": "LoadGen scenario, not an MLPerf result", "model": self._machine.description}
        return gb.Task.of(stage, check=check or self.check, poison=self.poison, notes=notes)


def open_scenario(bench: gb.Bench, model: str, weights: str, prompt: int, output: int, queries: int) -> Scenario:
    """Return a scenario of `queries` prompts by a language model on a GPU, or by the toy model on the host.

    The toy is taken if `model` is no key of MODELS. A prompt has `prompt` tokens and its answer `output`."""
    rng = bench.rng
    machine: Machine = (
        GpuMachine(bench, MODELS[model], weights, prompt, output)
        if model in MODELS
        else ToyMachine(ToyWeights.drawn(TOY, rng), prompt + output)
    )
    return Scenario(machine, rng, prompt, output, queries)


@topic.case(**_AXES)
def single_stream(bench: gb.Bench, model: str, weights: str, prompt: int, output: int) -> gb.Task:
    """SingleStream: seconds of each query, which is sent when the query before it has its last token.

    A query has a prompt of `prompt` tokens, and its answer has `output` tokens."""
    scenario = open_scenario(bench, model, weights, prompt, output, _FOR_P90)
    count, effort = _FOR_P90, gb.POINT
    # A query takes long, so groups of queries are timed until there are enough for the percentile.
    if bench.traits.is_gpu:
        query_s = min(scenario.run(scenario.prompts[:1], [0.0]).seconds for _ in range(2))
        count, effort = _GROUP, gb.Effort.sustained(min(_LONGEST_S, _SPARE * _FOR_P90 * query_s))
    groups = itertools.cycle(range(0, _FOR_P90, count))

    def call() -> list[float]:
        """Answer the next group of queries one after another, and return the seconds of each."""
        first = next(groups)
        prompts = scenario.prompts[first : first + count]
        answers = [scenario.run([tokens], [0.0]).answers[0] for tokens in prompts]
        return scenario.take(prompts, Session(answers, 0.0)).whole_s

    return scenario.latencies(call, effort)


@topic.case(**_AXES)
def multi_stream(bench: gb.Bench, model: str, weights: str, prompt: int, output: int) -> gb.Task:
    """MultiStream: seconds of each query of eight samples, until the last of the samples has its last token.

    A sample has a prompt of `prompt` tokens, and its answer has `output` tokens."""
    scenario = open_scenario(bench, model, weights, prompt, output, _STREAMS)
    return scenario.latencies(lambda: scenario.run(scenario.prompts, [0.0] * _STREAMS).seconds)


@topic.case(**_AXES)
def offline(bench: gb.Bench, model: str, weights: str, prompt: int, output: int) -> gb.Task:
    """Offline: tokens of answers per second; all queries are there from the start, in continuous batches.

    A query has a prompt of `prompt` tokens, and its answer has `output` tokens."""
    scenario = open_scenario(bench, model, weights, prompt, output, _OFFLINE)

    def call() -> float:
        return scenario.run(scenario.prompts, [0.0] * _OFFLINE).seconds

    work = gb.Work(items=_OFFLINE * output)
    stage = gb.Stage(call, work, "items", clock="self", probe=scenario.probe, effort=gb.POINT, item="token")
    return scenario.task(stage)


class Server:
    """Sessions whose queries arrive by the schedule `scheduled`, in seconds.

    The first session has all queries, and later sessions have the first 32."""

    def __init__(self, scenario: Scenario, scheduled: Sequence[float]) -> None:
        self._scenario, self._scheduled = scenario, scheduled
        self._recorded: Session | None = None

    def __call__(self) -> list[float]:
        """Run a session, and return the seconds of each query, from its arrival by the schedule to its last token."""
        count = _SERVER if self._recorded else len(self._scheduled)
        session = self._scenario.run(self._scenario.prompts[:count], self._scheduled[:count])
        self._recorded = self._recorded or session
        return session.whole_s

    def check(self) -> gb.Observation:
        """Check the last session as the scenario does, and add the moments of every query of the first session.

        They are the profiles `scheduled`, `first token` and `last token`, in seconds."""
        observed = self._scenario.check()
        assert self._recorded is not None
        times = [(answer.scheduled, answer.first, answer.last) for answer in self._recorded.answers]
        columns = zip(("scheduled", "first token", "last token"), zip(*times, strict=True), strict=True)
        return {**observed, **{name: gb.Profile(values, "s") for name, values in columns}}


def _loads(target: gb.Target) -> Any:
    return gb.points((0.6,), full=(0.3, 0.6, 0.9) if target.is_host else (0.6, 0.9))


def _server_points(target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: all but a second rate of int4 on a GPU, where a session takes long."""
    return target.is_host or params["weights"] == "float16" or params["load"] == 0.6


@topic.case(**_AXES, load=_loads, where=_server_points)
def server(bench: gb.Bench, model: str, weights: str, prompt: int, output: int, load: float) -> gb.Task:
    """Server: seconds of each query from its scheduled arrival to its last token; queries arrive at random (Poisson).

    A query has a prompt of `prompt` tokens, and its answer has `output` tokens. `load` is the rate of queries as a
    share of the offline rate. In full the first session has enough queries for a 99th percentile; the report compares
    it with a simulation."""
    queries = _FOR_P99 if bench.target.tier == "full" else _SERVER
    scenario = open_scenario(bench, model, weights, prompt, output, queries)
    few = scenario.prompts[:_SERVER]
    rate = load * _SERVER / min(scenario.run(few, [0.0] * _SERVER).seconds for _ in range(2))
    count = max(_SERVER, min(queries, int(_LONGEST_S * rate)))
    sessions = Server(scenario, poisson(scenario.rng, rate, count))

    def check() -> gb.Observation:
        return {**sessions.check(), "rate": gb.Observed(rate, "query/s", "more")}

    return scenario.task(gb.Stage(sessions, clock="self", probe=scenario.probe, effort=gb.POINT), check)
