"""Create streams beside a device's own and events that processes share, and time calls by device events."""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from importlib import resources
from time import perf_counter, perf_counter_ns  # kept from import on: a case may replace them
from typing import Any

import numpy as np

from gpubench.base.errors import GateTimedOut, Skip, Untrustworthy
from gpubench.plugins.backend import Timing


class SideStreams:
    """Streams in addition to a device's own stream; each is created when first needed, and kept."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._cupy = cupy
        self._own = stream
        self._streams: dict[tuple[int, int], Any] = {}
        self.current = stream  # where copies are queued

    def together(self, device: int, calls: Sequence[Callable[[], object]]) -> None:
        """Queue `calls` so that they begin together, the first on the device's own stream."""
        first, *others = calls
        begin = self._recorded_event(self._own)
        side_streams = [self._side_stream(device, index) for index in range(len(others))]
        for side_stream, call in zip(side_streams, others, strict=True):
            with self._cupy.cuda.Device(device):
                side_stream.wait_event(begin)
                self._call_on(side_stream, call)
        first()
        for side_stream in side_streams:
            self._own.wait_event(self._recorded_event(side_stream))

    def _side_stream(self, device: int, index: int) -> Any:
        """Return the CuPy stream number `index` of the device with CUDA's index `device`."""
        if (device, index) not in self._streams:
            with self._cupy.cuda.Device(device):
                self._streams[device, index] = self._cupy.cuda.Stream(non_blocking=True)
        return self._streams[device, index]

    def _recorded_event(self, stream: Any) -> Any:
        """Return a new CuPy event without timing that is recorded on the CuPy stream `stream`."""
        with self._cupy.cuda.Device(stream.device_id):
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(stream)
        return event

    def _call_on(self, side_stream: Any, call: Callable[[], object]) -> None:
        """Call `call` while the CuPy stream `side_stream` is the current one, then restore the previous one."""
        before = self._cupy.cuda.get_current_stream()
        self.current = side_stream
        side_stream.use()  # not `with lane`: that restores the null stream, and never a stream made current by `use`
        try:
            call()
        finally:
            self.current = self._own
            before.use()


class IpcEvent:
    """An event of this process, or, with a `handle`, an event that another process shares. Raises Skip on ROCm."""

    def __init__(self, cupy: Any, stream: Any, handle: bytes = b"") -> None:
        self._runtime = cupy.cuda.runtime
        self._stream = stream
        if self._runtime.is_hip:
            raise Skip("CuPy on ROCm does not support events shared between processes")
        if handle:
            self._event = int(self._runtime.ipcOpenEventHandle(handle))
        else:
            flags = self._runtime.eventDisableTiming | self._runtime.eventInterprocess
            self._event = int(self._runtime.eventCreateWithFlags(flags))

    def export(self) -> bytes:
        return bytes(self._runtime.ipcGetEventHandle(self._event))

    def record(self) -> None:
        self._runtime.eventRecord(self._event, self._stream.ptr)

    def wait(self) -> None:
        self._runtime.streamWaitEvent(self._stream.ptr, self._event)

    def synchronize(self) -> None:
        self._runtime.eventSynchronize(self._event)

    def close(self) -> None:
        self._runtime.eventDestroy(self._event)


_GATE_LIMIT_S = 0.5  # a batch is queued within milliseconds; beyond this the gate opens by itself
_SECONDS_OF_MS = 1e-3
_SLOW_CLOCK, _SLACK_S = 1.01, 1e-3  # the factor and the seconds by which events may exceed the host's time

Lead = Callable[[], object] | None


class KernelGate:
    """A kernel that blocks the stream until the host opens it, through mapped page-locked memory.

    With unified addressing (every 64-bit Linux) the host's pointer is also valid on the device."""

    def __init__(self, cupy: Any, clock_hz: float) -> None:
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
        self._flags[0] = 1

    @property
    def timed_out(self) -> bool:
        """Return whether the last gate opened by itself; read it after the stream has passed the gate."""
        return bool(self._flags[1])


class EventClock:
    """Times calls on one stream by device events; see docs/method.md."""

    def __init__(self, cupy: Any, stream: Any, gate: KernelGate, flush: Callable[[], None]) -> None:
        self._cupy = cupy
        self._stream = stream
        self._gate = gate
        self._flush = flush
        self._graph: tuple[object, int, Any] | None = None

    def hot(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Time `calls` calls of `call` back to back between two events."""

        def batch() -> None:
            for _ in range(calls):
                call()

        device, host = self._time_batch(batch, gated, lead)
        return Timing((device / calls,), host / calls)

    def each(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Time `calls` calls back to back with an event between two, for a device time of each call."""
        events = [self._cupy.cuda.Event() for _ in range(calls + 1)]

        def batch() -> None:
            events[0].record(self._stream)
            for event in events[1:]:
                call()
                event.record(self._stream)

        _, host = self._time_batch(batch, gated, lead)
        return Timing(tuple(itertools.starmap(self._elapsed, itertools.pairwise(events))), host / calls)

    def graph(self, call: Callable[[], object], calls: int, lead: Lead = None) -> Timing:
        """Time one gated replay of a graph of `calls` calls, which is captured and replayed once before."""
        graph = self._capture(call, calls)
        device, host = self._time_batch(lambda: graph.launch(self._stream), True, lead)
        return Timing((device / calls,), host / calls)

    def cold(self, call: Callable[[], object], calls: int, gated: bool, lead: Lead = None) -> Timing:
        """Time `calls` calls of `call`, each after a cache flush, which no time includes."""
        pairs = [(self._cupy.cuda.Event(), self._cupy.cuda.Event()) for _ in range(calls)]

        def batch() -> None:
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
