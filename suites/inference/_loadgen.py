"""The same queries, sent and timed by MLCommons LoadGen itself: a cross-check of our generator, not an MLPerf result.

LoadGen runs in a thread of its own and hands its queries to the thread that computes. So a failure there costs the case
alone; an exception that passes through LoadGen would abort the process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from gpubench.api.suite import (
    POINT,
    Bench,
    Missing,
    Observation,
    Observed,
    Stage,
    Target,
    Task,
    Topic,
    View,
    expect,
    points,
)

from ._scenarios import Scenario, open_scenario
from ._scheduler import Answer, Session, Tokens

_FOR_P90 = 64  # queries: the fewest from which LoadGen estimates a 90th percentile

topic = Topic(
    views=[
        View("bars", "Time of a query by LoadGen: LoadGen scenarios, not MLPerf results", ("loadgen",), x="scenario")
    ]
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A scenario of LoadGen: its name there, its queries, the samples of each, and the figure that its log gives."""

    name: str
    queries: int
    samples: int
    record: str  # of mlperf_log_detail.txt, in nanoseconds
    figure: str


PATTERNS = {
    "single_stream": Pattern("SingleStream", _FOR_P90, 1, "result_90.00_percentile_latency_ns", "90th percentile"),
    "multi_stream": Pattern(
        "MultiStream", _FOR_P90, 8, "result_90.00_percentile_per_query_latency_ns", "90th percentile"
    ),
    "offline": Pattern("Offline", 24, 1, "result_max_latency_ns", "time until all queries are answered"),
}


def library() -> Any:
    """Return LoadGen's binding; raises Missing without it."""
    try:
        return importlib.import_module("mlperf_loadgen")
    except ImportError as error:
        raise Missing("LoadGen is not installed", "pip install 'gpubench-suite[loadgen]'") from error


@dataclass(frozen=True, slots=True)
class LoadGen:
    """LoadGen with one scenario; without `expected_s`, the time of a query, it would call its run INVALID."""

    library: Any
    pattern: Pattern
    expected_s: float

    def figure_s(self, answer: Callable[[list[int]], object]) -> float:
        """Let LoadGen send its queries, and return its figure in seconds.

        `answer` gets the numbers of the samples of a query, in this thread, and returns when all of them are answered.
        """
        issued: SimpleQueue[Any] = SimpleQueue()
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
            run = thread.submit(self._run, issued, folder)
            run.add_done_callback(lambda _: issued.put(None))
            queries = iter(issued.get, None)
            try:
                for query in queries:
                    try:
                        answer([sample for _, sample in query])
                    finally:
                        self._complete(query)
            finally:
                for query in queries:  # after a failure, LoadGen still waits for an answer to each of the others
                    self._complete(query)
            run.result()
            records = _records(Path(folder, "mlperf_log_detail.txt").read_text())
        verdict = records["result_validity"]
        expect(verdict == "VALID", f"LoadGen calls its run {verdict}: {records.get('result_invalid_reason')}")
        return float(records[self.pattern.record]) * 1e-9

    def _run(self, issued: SimpleQueue[Any], folder: str) -> None:
        """Run LoadGen, which writes its logs into a folder, until every query is answered."""

        def issue(samples: Any) -> None:
            issued.put([(sample.id, sample.index) for sample in samples])

        log = self.library.LogSettings()
        log.log_output.outdir = folder
        log.enable_trace = False
        system = self.library.ConstructSUT(issue, lambda: None)
        count = self.pattern.queries
        store = self.library.ConstructQSL(count, count, lambda _: None, lambda _: None)
        try:
            # LoadGen would obey an audit.config of the current directory
            self.library.StartTestWithLogSettings(system, store, self._settings(), log, f"{folder}/audit.config")
        finally:
            self.library.DestroyQSL(store)
            self.library.DestroySUT(system)

    def _settings(self) -> Any:
        settings, pattern = self.library.TestSettings(), self.pattern
        settings.scenario = getattr(self.library.TestScenario, pattern.name)
        settings.mode = self.library.TestMode.PerformanceOnly
        settings.min_duration_ms = 0
        settings.min_query_count = settings.max_query_count = pattern.queries
        settings.multi_stream_samples_per_query = pattern.samples
        settings.multi_stream_target_latency_percentile = 0.9
        expected_ns = max(1, round(self.expected_s * 1e9))
        settings.single_stream_expected_latency_ns = settings.multi_stream_expected_latency_ns = expected_ns
        settings.offline_expected_qps = pattern.queries / self.expected_s
        return settings

    def _complete(self, query: Sequence[tuple[int, int]]) -> None:
        self.library.QuerySamplesComplete([self.library.QuerySampleResponse(number, 0, 0) for number, _ in query])


def _records(log: str) -> dict[str, Any]:
    """Return the records of LoadGen's detailed log, which has `:::MLLOG` and a JSON document on each line."""
    lines = (json.loads(line.removeprefix(":::MLLOG")) for line in log.splitlines())
    return {line["key"]: line["value"] for line in lines}


class CrossCheck:
    """A scenario by LoadGen and by our generator, in turn, with the same machine, scheduler and prompts.

    `scenario` has one prompt for each query of the pattern.
    """

    def __init__(self, loadgen: Any, pattern: Pattern, scenario: Scenario) -> None:
        self._pattern, self._scenario = pattern, scenario
        self._prompts: list[Tokens] = []
        self._answers: list[Answer] = []
        self._loadgen = LoadGen(loadgen, pattern, self.ours_s())

    def __call__(self) -> float:
        """Return LoadGen's figure in seconds."""
        self.poison()
        return self._loadgen.figure_s(self._answer)

    def _answer(self, samples: list[int]) -> None:
        prompts = [self._scenario.prompts[sample] for sample in samples]
        self._answers += self._scenario.run(prompts, [0.0] * len(prompts)).answers
        self._prompts += prompts

    def ours_s(self) -> float:
        """Return our figure for the same scenario in seconds, from our own times of its queries."""
        prompts = self._scenario.prompts
        if self._pattern.name == "Offline":
            return self._scenario.run(prompts, [0.0] * len(prompts)).seconds
        queries = [np.roll(np.arange(len(prompts)), -first)[: self._pattern.samples] for first in range(len(prompts))]
        times = [self._scenario.run([prompts[i] for i in query], [0.0] * len(query)).seconds for query in queries]
        return sorted(times)[int(0.9 * len(times))]  # the element that LoadGen takes (results.cc)

    def probe(self) -> Observation:
        """Return our figure, measured after LoadGen's."""
        return {"ours": Observed(self.ours_s(), "s")}

    def poison(self) -> None:
        """Forget the last answers."""
        self._prompts, self._answers = [], []
        self._scenario.poison()

    def check(self) -> Observation:
        """Check that every sample is answered, random ones in double precision; observe what LoadGen takes alone."""
        expected = self._pattern.queries * self._pattern.samples
        expect(len(self._answers) == expected, f"{len(self._answers)} of {expected} samples are answered")
        self._scenario.take(self._prompts, Session(self._answers, 0.0))
        self._scenario.check()
        return {"floor": Observed(self._loadgen.figure_s(lambda _: None), "s")}


def _patterns(target: Target) -> Any:
    return points((), full=tuple(PATTERNS) if target.is_host else ("single_stream",))


@topic.case(
    scenario=_patterns,
    model=lambda target: ("toy",) if target.is_host else ("llama-3-8b",),
    weights=lambda target: ("float32",) if target.is_host else ("int4",),
    prompt=lambda target: (32,) if target.is_host else (512,),
    output=(8,),
)
def loadgen(bench: Bench, scenario: str, model: str, weights: str, prompt: int, output: int) -> Task:
    """LoadGen's own figure of a scenario; `ours` is that of our generator, `floor` that of queries without work."""
    pattern, binding = PATTERNS[scenario], library()
    measured = CrossCheck(binding, pattern, open_scenario(bench, model, weights, prompt, output, pattern.queries))
    notes = {
        "scenario": "LoadGen scenario, not an MLPerf result",
        "figure": f"{pattern.figure}; {pattern.queries} queries of {pattern.samples}",
        "LoadGen": importlib.metadata.version("mlcommons-loadgen"),
    }
    stage = Stage(measured, clock="self", probe=measured.probe, effort=POINT)
    return Task.of(stage, check=measured.check, poison=measured.poison, notes=notes)
