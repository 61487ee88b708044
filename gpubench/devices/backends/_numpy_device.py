"""Provide the common base of devices with NumPy arrays: a call returns when its work is done, and nothing is queued."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.base.errors import Skip
from gpubench.model import Device
from gpubench.plugins.backend import Mode, SharedBuffer, SharedEvent, SharedMemory, Timing


class NumpyDevice:
    """An open device without queues, peers or shared memory; a subclass adds `now` and `flush`."""

    xp = np
    stream = 0

    def __init__(self, device: Device) -> None:
        self.device = device

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def ranged(self, name: str) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext(name)

    def elsewhere(self) -> float:
        return 0.0

    def time(
        self,
        call: Callable[[], object],
        calls: int,
        mode: Mode = "hot",
        gated: bool = True,
        lead: Callable[[], object] | None = None,
    ) -> Timing:
        del gated  # the host has no launch queue
        if lead is not None:
            lead()
        if mode in ("each", "cold"):
            values = tuple(self._timed_call(call, mode == "cold") for _ in range(calls))
            return Timing(values, sum(values) / calls)
        seconds = self._mean_seconds(call, calls)
        return Timing((seconds,), seconds)

    def launches_of(self, _call: Callable[[], object]) -> int | None:
        return None

    def _timed_call(self, call: Callable[[], object], cold: bool) -> float:
        """Return the seconds of one call of `call`; if `cold`, the caches are flushed before, outside the time."""
        if cold:
            self.flush()
        start = self.now()
        call()
        return self.now() - start

    def _mean_seconds(self, call: Callable[[], object], calls: int) -> float:
        return sum(self._timed_call(call, False) for _ in range(calls)) / calls

    def now(self) -> float:
        """Return the time in seconds. Raises NotImplementedError unless a subclass overrides it."""
        raise NotImplementedError

    def flush(self) -> None:
        """Flush the caches. Raises NotImplementedError unless a subclass overrides it."""
        raise NotImplementedError

    def synchronize(self) -> None:
        pass

    def release(self) -> None:
        pass

    def to_host(self, array: Any) -> Any:
        return np.array(array)

    def pinned(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    def copy(self, target: Any, source: Any) -> None:
        np.copyto(target, source)

    def register(self, array: Any) -> Callable[[], None]:
        raise Skip(f"{self.device.id} accesses host memory directly: {array.nbytes} B need no registration")

    def together(self, *calls: Callable[[], object], peer: Device | None = None) -> None:
        del calls, peer
        raise Skip(f"{self.device.id} does not support concurrent queues")

    def peer_memory(self, peer: Device, nbytes: int) -> Any:
        raise Skip(f"{self.device.id} has no peer access ({nbytes} B of {peer.id} were asked for)")

    def share(self, nbytes: int) -> SharedBuffer:
        raise Skip(f"{self.device.id} does not support shared memory ({nbytes} B were asked for)")

    def open_shared(self, handle: bytes, nbytes: int) -> SharedBuffer:
        raise Skip(f"{self.device.id} does not support shared memory ({nbytes} B of {handle!r} were asked for)")

    def shared_memory(self, kind: str) -> SharedMemory:
        raise Skip(f"{self.device.id} does not support shared memory (kind {kind} was asked for)")

    def shared_event(self, handle: bytes = b"") -> SharedEvent:
        raise Skip(f"{self.device.id} does not support events shared between processes ({handle!r} was asked for)")
