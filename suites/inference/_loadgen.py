"""Send and time the same queries by MLCommons LoadGen itself: a cross-check of our generator, not an MLPerf result.

LoadGen runs in its own thread and hands its queries to the thread that computes. So a failure there costs the case
alone; an exception that passes through LoadGen would abort the process."""

import contextlib
import importlib
import importlib.metadata
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._scenarios import Scenario, open_scenario
from ._scheduler import QueryAnswer, Session, Tokens

# Python's switch interval: with the default of 5 ms, a tenth of Server's queries are sent 3 ms late; shorter intervals
# slow down the toy model
_TURN_S = 1e-3
_LOAD = 0.6  # rate of Server as a share of the offline rate
_ANY_LATENCY_NS = 60_000_000_000  # so long that it is no objective: the latency is the figure
_FOR_P90 = 64  # the fewest queries from which LoadGen estimates a 90th percentile

topic = gb.Topic(
    views=[
        gb.View(
            "bars", "Query time measured by LoadGen: LoadGen scenarios, not MLPerf results", ("loadgen",), x="scenario"
        )
    ]
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A scenario of LoadGen: its name there, the number of its queries, and the samples of each query.

    `record` names the record of LoadGen's log with the figure, and `figure` describes the figure for the notes."""

    name: str
    queries: int
    samples: int
    record: str  # in nanoseconds; the name of the record in mlperf_log_detail.txt
    figure: str


PATTERNS = {
    "single_stream": Pattern("SingleStream", _FOR_P90, 1, "result_90.00_percentile_latency_ns", "90th percentile"),
    "multi_stream": Pattern(
        "MultiStream", _FOR_P90, 8, "result_90.00_percentile_per_query_latency_ns", "90th percentile"
    ),
    "server": Pattern("Server", _FOR_P90, 1, "result_90.00_percentile_latency_ns", "90th percentile"),
    "offline": Pattern("Offline", 24, 1, "result_max_latency_ns", "time until all queries are answered"),
}


def library() -> Any:
    """Return LoadGen's Python module, mlperf_loadgen; raises Unavailable if it is not installed."""
    try:
        return importlib.import_module("mlperf_loadgen")
    except ImportError as error:
        raise gb.Unavailable("LoadGen is not installed", "pip install 'gpubench-suite[loadgen]'") from error


Query = Sequence[tuple[int, int]]
"""The samples of a query: LoadGen's number for the answer, and the sample's place in the store."""


class Issued:
    """The queries that LoadGen's thread has sent, until the thread that computes has answered them."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._sent: SimpleQueue[Query | None] = SimpleQueue()
        self._arriving = iter(self._sent.get, None)
        self._taken: list[Query] = []

    def send(self, samples: Any) -> None:
        """Add a query, in LoadGen's thread."""
        self._sent.put([(sample.id, sample.index) for sample in samples])

    def end(self) -> None:
        """Say that LoadGen has ended."""
        self._sent.put(None)

    @property
    def is_waiting(self) -> bool:
        """Whether `take` returns at once."""
        return not self._sent.empty()

    def take(self) -> Query | None:
        """Wait for the next query of LoadGen and return it; None once LoadGen has ended."""
        query = next(self._arriving, None)
        if query is not None:
            self._taken.append(query)
        return query

    def complete(self, query: Query) -> None:
        """Tell LoadGen that a query is answered."""
        self._taken.remove(query)
        self._library.QuerySamplesComplete([self._library.QuerySampleResponse(number, 0, 0) for number, _ in query])

    def abandon(self) -> None:
        """Complete all queries until LoadGen has ended, because LoadGen waits for an answer to each of them."""
        for query in [*self._taken]:
            self.complete(query)
        while (late := self.take()) is not None:
            self.complete(late)


@dataclass(frozen=True, slots=True)
class LoadGen:
    """LoadGen with one scenario; `library` is the module mlperf_loadgen.

    `expected_s` is the time of a query in seconds, and in the scenario Server the mean time between two arrivals."""

    library: Any
    pattern: Pattern
    expected_s: float

    def figure_s(self, serve: Callable[[Issued], object]) -> float:
        """Let LoadGen send its queries, and return the figure that it reports, in seconds.

        `serve` answers all queries of the Issued that it is given, in this thread."""
        issued = Issued(self.library)
        with _short_turns(), tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
            run = thread.submit(self._run, issued, folder)
            run.add_done_callback(lambda _: issued.end())
            try:
                serve(issued)
            finally:
                issued.abandon()
            run.result()
            records = _records(Path(folder, "mlperf_log_detail.txt").read_text(encoding="utf-8"))
        verdict = records["result_validity"]
        gb.expect(verdict == "VALID", f"LoadGen calls its run {verdict}: {records.get('result_invalid_reason')}")
        return float(records[self.pattern.record]) * 1e-9

    def _run(self, issued: Issued, folder: str) -> None:
        """Run LoadGen until every query is answered; it sends queries to `issued`, and logs into `folder`."""
        log = self.library.LogSettings()
        log.log_output.outdir = folder
        log.enable_trace = False
        system = self.library.ConstructSUT(issued.send, lambda: None)
        count = self.pattern.queries
        store = self.library.ConstructQSL(count, count, lambda _: None, lambda _: None)
        try:
            # LoadGen would follow an audit.config in the current directory
            self.library.StartTestWithLogSettings(system, store, self._settings(), log, f"{folder}/audit.config")
        finally:
            self.library.DestroyQSL(store)
            self.library.DestroySUT(system)

    def _settings(self) -> Any:
        """Return LoadGen's TestSettings for the scenario: its queries, and the rate that follows from `expected_s`."""
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
        settings.server_target_qps = 1 / self.expected_s
        settings.server_target_latency_percentile = 0.9
        settings.server_target_latency_ns = _ANY_LATENCY_NS
        return settings


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Switch between Python's threads after 1 ms instead of 5 ms inside the `with` block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _records(log: str) -> dict[str, Any]:
    """Return the records of LoadGen's detailed log by name."""
    lines = (json.loads(line.removeprefix(":::MLLOG")) for line in log.splitlines())
    return {line["key"]: line["value"] for line in lines}


class CrossCheck:
    """A scenario by LoadGen and by our generator, in turn, with the same machine, scheduler and prompts.

    A call runs LoadGen and returns its figure. `scenario` has one prompt for each query of the pattern."""

    def __init__(self, loadgen: Any, pattern: Pattern, scenario: Scenario) -> None:
        self._pattern, self._scenario = pattern, scenario
        self._prompts: list[Tokens] = []
        self._answers: list[QueryAnswer] = []
        self._loadgen = LoadGen(loadgen, pattern, self._expected_s())

    def __call__(self) -> float:
        """Forget the last answers, run LoadGen, and return the figure that LoadGen reports, in seconds."""
        self.poison()
        return self._loadgen.figure_s(self._serve)

    def _serve(self, issued: Issued) -> None:
        """Answer every query that LoadGen sends, one after another, and keep prompts and answers for the check."""
        while (query := issued.take()) is not None:
            prompts = [self._scenario.prompts[sample] for _, sample in query]
            self._answers += self._scenario.run(prompts, [0.0] * len(prompts)).answers
            self._prompts += prompts
            issued.complete(query)

    def _expected_s(self) -> float:
        """Return the seconds that LoadGen should expect of a query."""
        return self.ours_s()

    def _offline_s(self) -> float:
        """Return the seconds in which our generator answers all queries at once."""
        return self._scenario.run(self._scenario.prompts, [0.0] * self._pattern.queries).seconds

    def ours_s(self) -> float:
        """Return the figure of our generator for the same scenario in seconds.

        It is the time until all queries of Offline are answered, else the 90th percentile of the times of queries."""
        if self._pattern.name == "Offline":
            return self._offline_s()
        prompts = self._scenario.prompts
        queries = [np.roll(np.arange(len(prompts)), -first)[: self._pattern.samples] for first in range(len(prompts))]
        return _p90([self._scenario.run([prompts[i] for i in query], [0.0] * len(query)).seconds for query in queries])

    def probe(self) -> gb.Observation:
        """Return our figure, measured after LoadGen's."""
        return {"ours": gb.Observed(self.ours_s(), "s")}

    def poison(self) -> None:
        """Forget the last answers."""
        self._prompts, self._answers = [], []
        self._scenario.poison()

    def check(self) -> gb.Observation:
        """Check that every sample is answered, and random answers in double precision; raises WrongAnswer otherwise.

        Returns `floor`, LoadGen's figure for queries that are completed at once."""
        expected = self._pattern.queries * self._pattern.samples
        gb.expect(len(self._answers) == expected, f"{len(self._answers)} of {expected} samples are answered")
        self._scenario.take(self._prompts, Session(self._answers, 0.0))
        self._scenario.check()
        return {"floor": gb.Observed(self._loadgen.figure_s(_complete_all), "s")}


class ServerCrossCheck(CrossCheck):
    """The scenario Server, whose queries arrive at random: our generator repeats the arrivals of LoadGen."""

    def __init__(self, loadgen: Any, pattern: Pattern, scenario: Scenario) -> None:
        super().__init__(loadgen, pattern, scenario)
        moments: list[float] = []
        self._loadgen.figure_s(lambda issued: moments.extend(_complete_all(issued)))
        self._schedule = [moment - moments[0] for moment in moments]

    def _expected_s(self) -> float:
        """Return the mean seconds between two arrivals, with which the rate is 60 % of our offline rate."""
        return self._offline_s() / self._pattern.queries / _LOAD

    def ours_s(self) -> float:
        """Return our figure in seconds, from our own times of queries that arrive when LoadGen's do."""
        return _p90(self._scenario.run(self._scenario.prompts, self._schedule).whole_s)

    def _serve(self, issued: Issued) -> None:
        """Answer the queries of LoadGen in continuous batches, which a query joins as soon as a slot is free."""
        batch, queries = self._scenario.batch(), dict[int, Query]()
        while True:
            if batch.has_room and (batch.is_empty or issued.is_waiting):
                if (query := issued.take()) is None:
                    return
                self._answers.append(QueryAnswer(0.0))
                self._prompts.append(self._scenario.prompts[query[0][1]])
                batch.join(self._answers[-1], self._prompts[-1])
                queries[self._answers[-1].slot] = query
            else:
                batch.step()
            for answer in batch.leave():
                issued.complete(queries.pop(answer.slot))


def _complete_all(issued: Issued) -> list[float]:
    """Complete each query as soon as it comes, and return the queries' arrival times in seconds."""
    moments = []
    while (query := issued.take()) is not None:
        moments.append(time.perf_counter())
        issued.complete(query)
    return moments


def _p90(seconds: Sequence[float]) -> float:
    """Return the 90th percentile of `seconds` as LoadGen takes it (results.cc): an element, without interpolation."""
    return sorted(seconds)[int(0.9 * len(seconds))]


def cross_check(loadgen: Any, pattern: Pattern, scenario: Scenario) -> CrossCheck:
    """Return the cross-check of `scenario`, which has one prompt for each query of `pattern`.

    `loadgen` is the module mlperf_loadgen. The scenario Server runs LoadGen once for its arrivals."""
    kind = ServerCrossCheck if pattern.name == "Server" else CrossCheck
    return kind(loadgen, pattern, scenario)


def _patterns(target: gb.Target) -> Any:
    return gb.points((), full=tuple(PATTERNS) if target.is_host else ("single_stream",))


@topic.case(
    scenario=_patterns,
    model=lambda target: ("toy",) if target.is_host else ("llama-3-8b",),
    weights=lambda target: ("float32",) if target.is_host else ("int4",),
    prompt=lambda target: (32,) if target.is_host else (512,),
    output=(8,),
)
def loadgen(bench: gb.Bench, scenario: str, model: str, weights: str, prompt: int, output: int) -> gb.Task:
    """Seconds that LoadGen itself reports in a scenario; `ours` is our generator's figure for the same queries.

    A prompt has `prompt` tokens and its answer `output`. `floor` is LoadGen's figure for queries that are completed at
    once. Raises Unavailable without LoadGen."""
    pattern, binding = PATTERNS[scenario], library()
    measured = cross_check(binding, pattern, open_scenario(bench, model, weights, prompt, output, pattern.queries))
    notes = {
        "scenario": "LoadGen scenario, not an MLPerf result",
        "figure": f"{pattern.figure}; {pattern.queries} queries of {pattern.samples}",
        "LoadGen": importlib.metadata.version("mlcommons-loadgen"),
    }
    stage = gb.Stage(measured, clock="self", probe=measured.probe, effort=gb.POINT)
    return gb.Task.of(stage, check=measured.check, poison=measured.poison, notes=notes)
