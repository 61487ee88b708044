"""Timing on a CuPy stream: the gate, hot and cold batches, graph replays."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np

from gpubench.base.errors import GateTimedOut, Untrustworthy
from gpubench.plugins.backend import Timing

_GATE_LIMIT_S = 0.5  # a batch is queued within milliseconds; beyond this the gate opens by itself
_SECONDS_OF_MS = 1e-3
_SLOW_CLOCK, _SLACK_S = 1.01, 1e-3  # by which the device's clock may differ from the host's, and its ticks

Lead = Callable[[], object] | None


class Gate:
    """A kernel that holds the stream until the host opens it, in mapped page-locked memory.

    With unified addressing (every 64-bit Linux) the host's pointer is the device's too.
    """

    def __init__(self, cupy: Any, clock_hz: float) -> None:
        runtime = cupy.cuda.runtime
        self._address = runtime.hostAlloc(64, runtime.hostAllocMapped)
        self._words = (ctypes.c_uint32 * 16).from_address(self._address)
        self._limit = np.int64(_GATE_LIMIT_S * clock_hz)
        source = (resources.files("gpubench.devices.backends") / "gate.cu").read_text(encoding="utf-8")
        self._kernel = cupy.RawModule(code=source).get_function("gate")
        self._words[0] = 1
        self._kernel((1,), (1,), (np.uint64(self._address), self._limit))  # loads the module before any gate closes

    def close(self) -> None:
        """Queue the gate, shut."""
        self._words[0] = 0
        self._words[1] = 0
        self._kernel((1,), (1,), (np.uint64(self._address), self._limit))

    def open(self) -> None:
        """Let the stream go on."""
        self._words[0] = 1

    @property
    def timed_out(self) -> bool:
        """Whether the last gate opened by itself; read after the stream has passed it."""
        return bool(self._words[1])


class EventClock:
    """Times calls on one stream by device events; see docs/method.md."""

    def __init__(self, cupy: Any, stream: Any, gate: Gate, flush: Callable[[], None]) -> None:
        self._cupy = cupy
        self._stream = stream
        self._gate = gate
        self._flush = flush
        self._graph: tuple[object, int, Any] | None = None

    def hot(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Back to back: the total over the number of calls."""

        def batch() -> None:
            for _ in range(calls):
                call()

        device, host = self._between_events(batch, gated, lead)
        return Timing((device / calls,), host / calls)

    def each(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Back to back with an event between two calls: a time for each."""
        events = [self._cupy.cuda.Event() for _ in range(calls + 1)]

        def batch() -> None:
            events[0].record(self._stream)
            for event in events[1:]:
                call()
                event.record(self._stream)

        _, host = self._between_events(batch, gated, lead)
        return Timing(tuple(itertools.starmap(self._elapsed, itertools.pairwise(events))), host / calls)

    def graph(self, call: Callable[[], object], calls: int, lead: Lead = None) -> Timing:
        """A replay of a captured graph of the calls; the capture and a first replay come before."""
        graph = self._captured(call, calls)
        device, host = self._between_events(lambda: graph.launch(self._stream), True, lead)
        return Timing((device / calls,), host / calls)

    def cold(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Each call after a flush that stands outside its events."""
        pairs = [(self._cupy.cuda.Event(), self._cupy.cuda.Event()) for _ in range(calls)]

        def batch() -> None:
            for before, after in pairs:
                self._flush()
                before.record(self._stream)
                call()
                after.record(self._stream)

        _, host = self._between_events(batch, gated, lead)
        return Timing(tuple(self._elapsed(before, after) for before, after in pairs), host / calls)

    def _between_events(self, batch: Callable[[], object], gated: bool, lead: Lead) -> tuple[float, float]:
        before, after = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        if gated:
            self._gate.close()
        begun = time.perf_counter()
        try:
            if lead is not None:
                lead()
            before.record(self._stream)
            start = time.perf_counter_ns()
            batch()
            host = (time.perf_counter_ns() - start) * 1e-9
            after.record(self._stream)
        finally:
            self._gate.open()
        after.synchronize()
        waited = time.perf_counter() - begun
        if gated and self._gate.timed_out:
            raise GateTimedOut
        elapsed = self._elapsed(before, after)
        if elapsed > waited * _SLOW_CLOCK + _SLACK_S:
            words = f"the device's events count {elapsed:.3g} s in {waited:.3g} s of the host"
            raise Untrustworthy("device-clock", words)
        return elapsed, host

    def _elapsed(self, before: Any, after: Any) -> float:
        return float(self._cupy.cuda.get_elapsed_time(before, after)) * _SECONDS_OF_MS

    def _captured(self, call: Callable[[], object], calls: int) -> Any:
        if self._graph is None or self._graph[:2] != (call, calls):
            self._stream.begin_capture()
            for _ in range(calls):
                call()
            graph = self._stream.end_capture()
            graph.launch(self._stream)
            self._stream.synchronize()
            self._graph = (call, calls, graph)
        return self._graph[2]

    def forget(self) -> None:
        """Drop the captured graph and what it holds."""
        self._graph = None
