"""Time calls on a CuPy stream by device events: the gate, hot and cold batches, and graph replays."""

import ctypes
import itertools
from collections.abc import Callable
from importlib import resources
from time import perf_counter, perf_counter_ns  # kept from import on: a case may replace them
from typing import Any

import numpy as np

from gpubench.base.errors import GateTimedOut, Untrustworthy
from gpubench.plugins.backend import Timing

_GATE_LIMIT_S = 0.5  # a batch is queued within milliseconds; beyond this the gate opens by itself
_SECONDS_OF_MS = 1e-3
_SLOW_CLOCK, _SLACK_S = 1.01, 1e-3  # the factor and the seconds by which events may exceed the host's time

Lead = Callable[[], object] | None


class KernelGate:
    """A kernel that blocks the stream until the host opens it, through mapped page-locked memory.

    With unified addressing (every 64-bit Linux) the host's pointer is also valid on the device."""

    def __init__(self, cupy: Any, clock_hz: float) -> None:
        """Allocate the gate's flags, compile its kernel for the current device, and launch it once, open."""
        runtime = cupy.cuda.runtime
        self._address = runtime.hostAlloc(64, runtime.hostAllocMapped)
        self._flags = (ctypes.c_uint32 * 16).from_address(self._address)
        self._limit = np.int64(_GATE_LIMIT_S * clock_hz)
        source = (resources.files("gpubench.devices.backends") / "gate.cu").read_text(encoding="utf-8")
        self._kernel = cupy.RawModule(code=source).get_function("gate")
        self._flags[0] = 1
        self._kernel((1,), (1,), (np.uint64(self._address), self._limit))  # loads the module before any gate closes

    def hold(self) -> None:
        """Queue the gate on the current stream: later work on it waits for `open`, for at most half a second."""
        self._flags[0] = 0
        self._flags[1] = 0
        self._kernel((1,), (1,), (np.uint64(self._address), self._limit))

    def open(self) -> None:
        """Open the gate, so that the stream continues."""
        self._flags[0] = 1

    @property
    def timed_out(self) -> bool:
        """Return whether the last gate opened by itself; read it after the stream has passed the gate."""
        return bool(self._flags[1])


class EventClock:
    """Times calls on one stream by device events; see docs/method.md."""

    def __init__(self, cupy: Any, stream: Any, gate: KernelGate, flush: Callable[[], None]) -> None:
        """Prepare to time calls on `stream`, a CuPy stream, behind `gate`."""
        self._cupy = cupy
        self._stream = stream
        self._gate = gate
        self._flush = flush
        self._graph: tuple[object, int, Any] | None = None

    def hot(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Time `calls` calls of `call` back to back between two events.

        If `gated`, the gate holds the stream until all calls are queued."""

        def batch() -> None:
            for _ in range(calls):
                call()

        device, host = self._time_batch(batch, gated, lead)
        return Timing((device / calls,), host / calls)

    def each(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Time `calls` calls of `call` back to back with an event between two calls.

        Like `hot`, but the Timing has a device time in seconds for each call."""
        events = [self._cupy.cuda.Event() for _ in range(calls + 1)]

        def batch() -> None:
            events[0].record(self._stream)
            for event in events[1:]:
                call()
                event.record(self._stream)

        _, host = self._time_batch(batch, gated, lead)
        return Timing(tuple(itertools.starmap(self._elapsed, itertools.pairwise(events))), host / calls)

    def graph(self, call: Callable[[], object], calls: int, lead: Lead = None) -> Timing:
        """Time one replay of a captured graph of `calls` calls of `call`.

        A new graph is captured and replayed once before. The timed replay is always gated."""
        graph = self._capture(call, calls)
        device, host = self._time_batch(lambda: graph.launch(self._stream), True, lead)
        return Timing((device / calls,), host / calls)

    def cold(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Time `calls` calls of `call`, each after a cache flush.

        The Timing has a device time in seconds for each call, without the flush."""
        pairs = [(self._cupy.cuda.Event(), self._cupy.cuda.Event()) for _ in range(calls)]

        def batch() -> None:
            """Queue each call between its two events, after a flush."""
            for before, after in pairs:
                self._flush()
                before.record(self._stream)
                call()
                after.record(self._stream)

        _, host = self._time_batch(batch, gated, lead)
        return Timing(tuple(self._elapsed(before, after) for before, after in pairs), host / calls)

    def _time_batch(self, batch: Callable[[], object], gated: bool, lead: Lead) -> tuple[float, float]:
        """Return the seconds of a batch by the device's events, and the seconds that the host took to queue it."""
        before, after = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        if gated:
            self._gate.hold()
        begin = perf_counter()
        try:
            if lead is not None:
                lead()
            before.record(self._stream)
            start = perf_counter_ns()
            batch()
            host = (perf_counter_ns() - start) * 1e-9
            after.record(self._stream)
        finally:
            self._gate.open()
        after.synchronize()
        waited = perf_counter() - begin
        if gated and self._gate.timed_out:
            raise GateTimedOut
        elapsed = self._elapsed(before, after)
        if elapsed > waited * _SLOW_CLOCK + _SLACK_S:
            message = f"the device's events count {elapsed:.3g} s in {waited:.3g} s of the host"
            raise Untrustworthy("device-clock", message)
        return elapsed, host

    def _elapsed(self, before: Any, after: Any) -> float:
        return float(self._cupy.cuda.get_elapsed_time(before, after)) * _SECONDS_OF_MS

    def _capture(self, call: Callable[[], object], calls: int) -> Any:
        """Return the CuPy graph of `calls` calls of `call`, which has been replayed once."""
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
        """Drop the captured graph and the memory it refers to."""
        self._graph = None
