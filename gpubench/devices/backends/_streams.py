"""Create further streams and events: for work beside the device's own stream, and events that processes can share."""

from collections.abc import Callable, Sequence
from typing import Any

from gpubench.base.errors import Skip
from gpubench.plugins.backend import SharedEvent


class SideStreams:
    """Streams in addition to a device's own stream; each is created when first needed, and kept.

    `current` is the stream on which copies are queued."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._cupy = cupy
        self._own = stream
        self._streams: dict[tuple[int, int], Any] = {}
        self.current = stream  # where copies are queued

    def together(self, device: int, calls: Sequence[Callable[[], object]]) -> None:
        """Queue `calls` so that they begin together.

        The first is queued on the device's own stream, and each other one on a further stream of `device`."""
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
        """Create an event that can be exported or, if `handle` is not empty, open the event of another process."""
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


def ipc_event(cupy: Any, stream: Any, handle: bytes = b"") -> SharedEvent:
    """Return a new event that can be exported, or the event of another process by its handle. Raises Skip on ROCm."""
    return IpcEvent(cupy, stream, handle)
