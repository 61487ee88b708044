"""Let MLCommons LoadGen send queries to steps of a fixed batch, by its own schedules; not an MLPerf result."""

import importlib
import importlib.metadata
import itertools
import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from gpubench.api import suite as gb

from .._checks import in_turn
from .._graphs import replayed
from .._models import MODELS
from . import _steps

_QUERIES = 662  # a 99th percentile needs these, by LoadGen's early stopping
_STREAMS = 8  # samples of a query of MultiStream
_LOAD = 0.8  # rate of Server as a share of the rate of full batches
_ANY_LATENCY_NS = 60_000_000_000  # so long that it is no objective: the latency is the figure
_SESSIONS = 3
_SCENARIOS = {
    "single_stream": "SingleStream",
    "multi_stream": "MultiStream",
    "server": "Server",
    "offline": "Offline",
}  # LoadGen's own names

topic = gb.Topic(
    views=[gb.View("bars", "Median latency of a query by LoadGen, not an MLPerf result", ("loadgen",), x="scenario")]
)


class Session:
    """LoadGen's queries of the scenario `scenario` to a queue, which `step` answers up to `batch` samples at a time.

    `library` is the module mlperf_loadgen, and `step_s` the seconds of a step. A call runs LoadGen and returns its
    median latency in seconds; `p99` is then its 99th percentile, and `arrivals` are the samples' moments in seconds."""

    def __init__(self, library: Any, scenario: str, step: Callable[[], object], batch: int, step_s: float) -> None:
        self._library, self._scenario, self._step, self._batch = library, scenario, step, batch
        self._rate = _LOAD * batch / step_s
        self.p99 = 0.0
        self.arrivals: list[float] = []

    def __call__(self) -> float:
        sent: SimpleQueue[Sequence[int] | None] = SimpleQueue()
        self.arrivals = []
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
            run = thread.submit(self._run, sent, folder)
            run.add_done_callback(lambda _: sent.put(None))
            self._answer(_batches(sent, self._batch))
            run.result()
            log = Path(folder, "mlperf_log_detail.txt").read_text(encoding="utf-8")
        records = {line["key"]: line["value"] for line in map(_record, log.splitlines())}
        verdict = records["result_validity"]
        gb.expect(verdict == "VALID", f"LoadGen calls its run {verdict}: {records.get('result_invalid_reason')}")
        of_query = "per_query_" if self._scenario == "multi_stream" else ""
        p50, self.p99 = (
            1e-9 * float(records[f"result_{share}.00_percentile_{of_query}latency_ns"]) for share in (50, 99)
        )
        return p50

    def _answer(self, batches: Iterator[Sequence[int]]) -> None:
        """Answer every batch by a step."""
        batch: Sequence[int] = ()
        try:
            for batch in batches:
                self._step()
                self._complete(batch)
                batch = ()
        finally:  # a failing step ends the session, but LoadGen waits for all answers
            for unanswered in itertools.chain([batch] if batch else [], batches):
                self._complete(unanswered)

    def _complete(self, samples: Sequence[int]) -> None:
        self._library.QuerySamplesComplete([self._library.QuerySampleResponse(number, 0, 0) for number in samples])

    def _run(self, sent: "SimpleQueue[Sequence[int] | None]", folder: str) -> None:
        """Run LoadGen until every query is answered; it sends queries to `sent`, and logs into `folder`."""
        library, log, settings = self._library, self._library.LogSettings(), self._library.TestSettings()
        log.log_output.outdir, log.enable_trace = folder, False
        settings.scenario = getattr(library.TestScenario, _SCENARIOS[self._scenario])
        settings.mode = library.TestMode.PerformanceOnly
        settings.min_duration_ms = 0
        settings.min_query_count = settings.max_query_count = _QUERIES
        settings.multi_stream_samples_per_query = _STREAMS
        settings.server_target_qps, settings.server_target_latency_ns = self._rate, _ANY_LATENCY_NS

        def send(samples: Any) -> None:
            self.arrivals += [time.perf_counter()] * len(samples)
            sent.put([sample.id for sample in samples])

        system = library.ConstructSUT(send, lambda: None)
        store = library.ConstructQSL(_QUERIES, _QUERIES, lambda _: None, lambda _: None)
        try:
            # LoadGen would follow an audit.config in the current directory
            library.StartTestWithLogSettings(system, store, settings, log, f"{folder}/audit.config")
        finally:
            library.DestroyQSL(store)
            library.DestroySUT(system)

    def observed(self) -> Mapping[str, gb.Profile]:
        """Return `arrivals`: when samples arrive, in seconds, from which a view predicts the latencies.

        In SingleStream and MultiStream they are the samples of one query, because the next one waits for the answer."""
        at_once = {"single_stream": 1, "multi_stream": _STREAMS, "offline": _QUERIES}.get(self._scenario)
        moments = (0.0,) * at_once if at_once else tuple(moment - self.arrivals[0] for moment in self.arrivals)
        return {"arrivals": gb.Profile(moments, "s")}


def _batches(sent: "SimpleQueue[Sequence[int] | None]", most: int) -> Iterator[Sequence[int]]:
    """Yield the samples that wait, up to `most`, in the order of their arrival, until None is sent."""
    waiting: deque[int] = deque()
    while True:
        while not waiting or not sent.empty():
            query = sent.get()
            if query is None:
                return
            waiting.extend(query)
        yield [waiting.popleft() for _ in range(min(most, len(waiting)))]


def _record(line: str) -> Any:
    """Return a record of LoadGen's detailed log."""
    return json.loads(line.removeprefix(":::MLLOG"))


def _is_measured(_target: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: a query of SingleStream has one sample, and a query of MultiStream eight."""
    return (params["scenario"], params["batch"]) not in (("single_stream", 16), ("multi_stream", 1))


@topic.case(
    scenario=gb.points((), full=tuple(_SCENARIOS)),
    model=("llama-3-8b",),
    weights=("float16",),
    batch=(1, 16),
    context=(2048,),
    when=gb.on_gpu,
    where=_is_measured,
)
def loadgen(bench: gb.Bench, scenario: str, model: str, weights: str, batch: int, context: int) -> gb.Task:
    """Median latency of a query as MLCommons LoadGen itself reports it in one of its four scenarios.

    A sample asks for the next token of a sequence of `context` tokens. Samples wait in a queue, and a step of a fixed
    batch answers up to `batch` of them. LoadGen's 99th percentile and the arrivals are observed too; the view `serving`
    predicts both figures from the arrivals. Raises Unavailable without LoadGen."""
    try:
        library = importlib.import_module("mlperf_loadgen")
    except ImportError as error:
        raise gb.Unavailable("LoadGen is not installed", gb.installation.with_extra("loadgen")) from error
    return session_task(
        bench, library, scenario, batch, _steps.decode_step(bench, MODELS[model], weights, batch, context)
    )


def session_task(bench: gb.Bench, library: Any, scenario: str, batch: int, step: Any) -> gb.Task:
    """Return LoadGen's sessions with a DecodeChain of the batch size `batch` as a task."""
    replay = replayed(bench, in_turn(*step.calls))

    def answer() -> float:
        """Run a step, wait for its tokens, and return its seconds."""
        start = time.perf_counter()
        replay()
        bench.device.synchronize()
        return time.perf_counter() - start

    session = Session(library, scenario, answer, batch, min(answer() for _ in range(3)))
    notes = {
        "scenario": f"LoadGen's {_SCENARIOS[scenario]}, {_QUERIES} queries; not an MLPerf result",
        "LoadGen": importlib.metadata.version("mlcommons-loadgen"),
        **step.chain.notes("as in step"),
    }
    stage = gb.Stage(
        session,
        clock="self",
        probe=lambda: {"p99": gb.Observed(session.p99, "s")},
        effort=gb.Effort.exactly(_SESSIONS),
        outputs=step.outputs,
        inputs=step.chain.redraw,
    )
    return gb.Task.of(stage, check=lambda: {**step.check(), **session.observed()}, notes=notes)
