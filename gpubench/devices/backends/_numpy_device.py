"""What every device has in common whose arrays are NumPy's: calls return when they are done, and nothing is queued."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.base.errors import Skip
from gpubench.model import Device
from gpubench.plugins.backend import SharedBuffer, SharedEvent, SharedMemory


class NumpyDevice:
    """An open device without queues, peers or shared memory; those that have some override the method."""

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
        raise Skip(f"{self.device.id} reaches host memory as it is: {array.nbytes} B need no registration")

    def together(self, *calls: Callable[[], object], peer: Device | None = None) -> None:
        del calls, peer
        raise Skip(f"{self.device.id} has no queues that work beside each other")

    def peer_memory(self, peer: Device, nbytes: int) -> Any:
        raise Skip(f"{self.device.id} has no peer whose memory it reaches ({nbytes} B of {peer.id} asked for)")

    def share(self, nbytes: int) -> SharedBuffer:
        raise Skip(f"{self.device.id} shares no memory ({nbytes} B asked for)")

    def open_shared(self, handle: bytes, nbytes: int) -> SharedBuffer:
        raise Skip(f"{self.device.id} shares no memory ({nbytes} B of {handle!r} asked for)")

    def shared_memory(self, kind: str) -> SharedMemory:
        raise Skip(f"{self.device.id} shares no memory (kind {kind} asked for)")

    def shared_event(self, handle: bytes = b"") -> SharedEvent:
        raise Skip(f"{self.device.id} has no events of a device ({handle!r} asked for)")
