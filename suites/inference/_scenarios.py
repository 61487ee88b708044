"""The four scenarios of LoadGen by our own generator: one query after another, eight at once, all at once, at random.

They have LoadGen's names and rules; nothing here is an MLPerf result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpubench.api.suite import (
    POINT,
    Bench,
    Effort,
    Observation,
    Observed,
    Profile,
    Stage,
    Task,
    Topic,
    View,
    Work,
    WrongAnswer,
    expect,
    on_host,
    points,
)

from ._scheduler import HostClock, Session, poisson, serve
from ._steps import toy_notes
from ._toy import TOY, Tokens, ToyModel, ToyWeights

_SIZES = (1, 2, 4, 8)  # of batches
_STREAMS = 8  # queries of MultiStream at once
_FOR_P90 = 64  # queries (stats.queries)
_OFFLINE, _SERVER = 24, 32  # queries of a session
_CHECKED = 2  # answers of a session that are compared with double precision

topic = Topic(
    views=[
        View(
            "serving",
            "Time to the first token over rate: LoadGen scenario Server, simulated, not an MLPerf result",
            ("step", "prefill", "single_stream", "multi_stream", "server"),
            by=("model", "weights"),
        ),
        View(
            "bars",
            "Time to the last token, in LoadGen scenarios (not MLPerf results)",
            ("single_stream", "multi_stream"),
        ),
        View("bars", "Throughput: LoadGen scenario Offline, not an MLPerf result", ("offline",)),
        View(
            "curve",
            "Time to the last token by load: LoadGen scenario Server, not an MLPerf result",
            ("server",),
            x="load",
            by=("model", "weights"),
        ),
    ]
)
_AXES: dict[str, Any] = {
    "model": ("toy",),
    "weights": ("float32",),
    "prompt": points((32,), (16,)),
    "output": points((16,), (4,)),
}


class ToyMachine:
    """The toy model as the scheduler uses it; rows that only fill a batch append to a slot of their own."""

    sizes: Sequence[int] = _SIZES

    def __init__(self, weights: ToyWeights, capacity: int) -> None:
        self._spare = max(self.sizes)
        self._model = ToyModel(weights, self._spare + 1, capacity)

    def prefill(self, slot: int, prompt: Tokens) -> int:
        """Replace the sequence in a slot by a prompt, and return the token that follows it."""
        return int(self._model.prefill(slot, prompt).argmax())

    def step(self, slots: Tokens, tokens: Tokens) -> Tokens:
        """Append a token to the sequence in each of these slots, and return the tokens that follow."""
        size = min(size for size in self.sizes if size >= len(slots))
        fill = [(0, size - len(slots))]
        self._model.lengths[self._spare] = 0
        logits = self._model.step(np.pad(slots, fill, constant_values=self._spare), np.pad(tokens, fill))
        return np.asarray(logits[: len(slots)].argmax(axis=1))


class Scenario:
    """Seeded prompts, answered session by session; the last session is what the check looks at."""

    def __init__(self, bench: Bench, prompt: int, output: int, queries: int) -> None:
        self.rng, self._output = bench.rng, output
        self._weights = ToyWeights.drawn(TOY, self.rng)
        self._machine = ToyMachine(self._weights, prompt + output)
        self.prompts = list(self.rng.integers(0, TOY.head.rows, (queries, prompt)))
        self._answered: Sequence[Tokens] = ()
        self.session: Session | None = None

    def run(self, prompts: Sequence[Tokens], scheduled: Sequence[float]) -> Session:
        """Serve these prompts, from now on."""
        self._answered, self.session = prompts, serve(self._machine, prompts, scheduled, self._output, HostClock())
        return self.session

    def poison(self) -> None:
        """Forget the last session."""
        self._answered, self.session = (), None

    def check(self) -> Observation:
        """Compare answers with double precision: every query has its tokens, and each token follows those before it."""
        session = self.session
        if session is None:
            raise WrongAnswer("no session has ended")
        counts = {len(answer.tokens) for answer in session.answers}
        expect(counts == {self._output}, f"answers have {sorted(counts)} tokens, not {self._output} each")
        margins = [self._margin(int(place)) for place in self.rng.integers(0, len(session.answers), _CHECKED)]
        expect(max(margins) < 1e-4, f"a token of an answer is {max(margins):.3g} less likely than another one")
        return {"late": Observed(session.late, "queries"), "padded": Observed(session.padded)}

    def _margin(self, place: int) -> float:
        """Return by how much the logit of a token falls short of the largest one, for the first and the last token."""
        assert self.session is not None
        tokens = np.array(self.session.answers[place].tokens)
        found = []
        for count in (0, len(tokens) - 1):
            sequence = np.concatenate([self._answered[place], tokens[:count]])
            logits = ToyModel(self._weights, 1, len(sequence), np.float64).prefill(0, sequence)
            found.append(float(logits.max() - logits[tokens[count]]))
        return max(found)

    def probe(self) -> Observation:
        """Return the medians of the last session: time to the first token, and time between tokens."""
        assert self.session is not None
        first, token = np.median(self.session.first_token_s), np.median(self.session.token_s)
        return {"first_token": Observed(float(first), "s"), "per_token": Observed(float(token), "s")}

    def latencies(self, call: Callable[[], object], effort: Effort = POINT) -> Task:
        """Return sessions as a task whose samples are latencies in seconds."""
        return self.task(Stage(call, clock="self", probe=self.probe, effort=effort))

    def task(self, stage: Stage, check: Callable[[], Observation] | None = None) -> Task:
        """Return sessions as a task."""
        notes = {"scenario": "LoadGen scenario, not an MLPerf result", **toy_notes()}
        return Task.of(stage, check=check or self.check, poison=self.poison, notes=notes)


@topic.case(**_AXES, when=on_host)
def single_stream(bench: Bench, model: str, weights: str, prompt: int, output: int) -> Task:
    """SingleStream: each query is sent when the one before has its last token; the time of each query."""
    del model, weights
    scenario = Scenario(bench, prompt, output, _FOR_P90)
    turns = itertools.cycle(scenario.prompts)

    def call() -> list[float]:
        return scenario.run([next(turns)], [0.0]).whole_s

    return scenario.latencies(call, POINT.with_tail(_FOR_P90))


@topic.case(**_AXES, when=on_host)
def multi_stream(bench: Bench, model: str, weights: str, prompt: int, output: int) -> Task:
    """MultiStream: eight samples at once; the time of each query, until the last of its samples has its last token."""
    del model, weights
    scenario = Scenario(bench, prompt, output, _STREAMS)
    return scenario.latencies(lambda: scenario.run(scenario.prompts, [0.0] * _STREAMS).seconds)


@topic.case(**_AXES, when=on_host)
def offline(bench: Bench, model: str, weights: str, prompt: int, output: int) -> Task:
    """Offline: all queries are there from the start, in continuous batches; tokens of answers per second."""
    del model, weights
    scenario = Scenario(bench, prompt, output, _OFFLINE)

    def call() -> float:
        return scenario.run(scenario.prompts, [0.0] * _OFFLINE).seconds

    work = Work(items=_OFFLINE * output)
    stage = Stage(call, work, "items", clock="self", probe=scenario.probe, effort=POINT, item="token")
    return scenario.task(stage)


@topic.case(**_AXES, load=points((0.6,), full=(0.3, 0.6, 0.9)), when=on_host)
def server(bench: Bench, model: str, weights: str, prompt: int, output: int, load: float) -> Task:
    """Server: queries arrive at random (Poisson) at a share of the offline rate; each one's time from its schedule."""
    del model, weights
    scenario = Scenario(bench, prompt, output, _SERVER)
    rate = load * _SERVER / min(scenario.run(scenario.prompts, [0.0] * _SERVER).seconds for _ in range(2))
    scheduled = poisson(scenario.rng, rate, _SERVER)

    def check() -> Observation:
        observed = scenario.check()
        assert scenario.session is not None
        times = [(answer.scheduled, answer.first, answer.last) for answer in scenario.session.answers]
        columns = zip(("scheduled", "first token", "last token"), zip(*times, strict=True), strict=True)
        return {**observed, "rate": Observed(rate, "query/s", "more")} | {
            name: Profile(values, "s") for name, values in columns
        }

    def call() -> list[float]:
        return scenario.run(scenario.prompts, scheduled).whole_s

    return scenario.task(Stage(call, clock="self", probe=scenario.probe, effort=POINT), check)
