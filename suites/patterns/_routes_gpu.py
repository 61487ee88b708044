"""Send messages to a GPU in several ways: from ordinary host memory, or into the memory of a peer."""

import time
from collections.abc import Callable

import numpy as np

from gpubench.api import suite as gb

from .._between import POISON, pattern
from .._copies import Call, call_of
from ._path_model import WayToSend

_PAGEABLE, _STAGED = "pageable", "staged"
_CHUNKS = (2**18, 2**20, 2**22)
_DEPTHS = (1, 4)
_PEER_WAYS = {"engine": "push", "kernel": "store", "bulk": "bulk-store"}


class HostToDeviceRoutes:
    """Ways to send a message of at most `most_bytes` from ordinary host memory to a GPU.

    The driver copies it whole, or chunks pass through page-locked slots. `ways` are the ways that `send` accepts."""

    def __init__(self, bench: gb.Bench, most_bytes: int) -> None:
        bench.need(2 * most_bytes)
        self._bench, self._last_bytes = bench, 0
        self._source = pattern(most_bytes, bench.seed)
        self._poison = np.full(most_bytes, POISON, np.uint8)
        self._target = bench.xp.empty(most_bytes, bench.xp.uint8)
        self._slots = bench.device.pinned(max(_CHUNKS) * max(_DEPTHS))
        self._taken = [bench.xp.cuda.Event(disable_timing=True) for _ in range(max(_DEPTHS))]
        staged = [WayToSend(_STAGED, chunk, depth) for chunk in _CHUNKS for depth in _DEPTHS]
        self.ways = [WayToSend(_PAGEABLE), *staged]
        self.notes = {"timed": "from ordinary memory to the device, by the host's clock, with the wait for the device"}

    def send(self, way: WayToSend, nbytes: int) -> float:
        """Send the first `nbytes` of the message in the way `way` and wait for the device; return the seconds.

        `way` is one of `ways`."""
        self._last_bytes = nbytes
        device = self._bench.device
        start = time.perf_counter()
        if way.path == _PAGEABLE:
            device.copy(self._target[:nbytes], self._source[:nbytes])
        else:
            self._through_slots(nbytes, way.chunk_bytes, way.depth)
        device.synchronize()
        return time.perf_counter() - start

    def _through_slots(self, nbytes: int, chunk_bytes: int, depth: int) -> None:
        """Copy each chunk of `chunk_bytes` into a page-locked slot once it is free."""
        for index, first in enumerate(range(0, nbytes, chunk_bytes)):
            part = self._source[first : min(first + chunk_bytes, nbytes)]
            slot = self._slots[index % depth * chunk_bytes :][: part.size]
            slot_copied = self._taken[index % depth]
            if index >= depth:
                slot_copied.synchronize()
            np.copyto(slot, part)
            self._bench.device.copy(self._target[first : first + part.size], slot)
            slot_copied.record()  # recorded on the current stream, which is the device's own

    def poison(self) -> None:
        """Overwrite the target."""
        self._bench.device.copy(self._target, self._poison)
        self._bench.device.synchronize()

    def wrong_bytes(self) -> int:
        """Return how many bytes of the last message differ on the device from what was sent."""
        arrived = self._bench.device.to_host(self._target[: self._last_bytes])
        return int(np.count_nonzero(arrived != self._source[: self._last_bytes]))

    def close(self) -> None:
        """Wait until nothing uses the page-locked slots."""
        self._bench.device.synchronize()


class PeerRoutes:
    """Ways to write a message of at most `most_bytes` from this GPU's memory into a peer's, one per engine.

    `ways` are the ways that `send` accepts."""

    def __init__(self, bench: gb.Bench, most_bytes: int) -> None:
        bench.need(3 * most_bytes)
        self._bench, self._last_bytes = bench, 0
        self._near = bench.xp.empty(most_bytes, bench.xp.uint8)
        self._far = bench.device.peer_memory(bench.devices[1], most_bytes)
        self._poison = bench.xp.full(most_bytes, POISON, bench.xp.uint8)
        self._source = pattern(most_bytes, bench.seed)
        bench.device.copy(self._near, self._source)
        bench.device.synchronize()
        has_bulk = "bulk_copy" in bench.traits.features
        self.ways = [WayToSend(path) for path in _PEER_WAYS if path != "bulk" or has_bulk]
        self._calls: dict[tuple[WayToSend, int], Call] = {}
        self.notes = {"timed": "from one device's memory to the other's, by the host's clock, with the wait"}

    def send(self, way: WayToSend, nbytes: int) -> float:
        """Send the first `nbytes` of the message in the way `way` and wait for the device; return the seconds.

        `way` is one of `ways`."""
        self._last_bytes = nbytes
        call = self._calls.get((way, nbytes)) or self._bound(way, nbytes)
        start = time.perf_counter()
        call()
        self._bench.device.synchronize()
        return time.perf_counter() - start

    def _bound(self, way: WayToSend, nbytes: int) -> Call:
        """Return the call that copies the first `nbytes` in the way `way`, and keep it for the next `send`."""
        near, far = self._near[:nbytes], self._far[:nbytes]
        call = self._calls[way, nbytes] = call_of(self._bench, _PEER_WAYS[way.path], near, far)
        return call

    def poison(self) -> None:
        """Overwrite the peer's memory."""
        self._bench.device.copy(self._far, self._poison)

    def wrong_bytes(self) -> int:
        """Return how many bytes of the last message differ at the peer from what was sent.

        The copy engine copies the message back to compare it."""
        arrived = self._bench.xp.empty(self._last_bytes, self._bench.xp.uint8)
        self._bench.device.copy(arrived, self._far[: self._last_bytes])
        return int(np.count_nonzero(self._bench.device.to_host(arrived) != self._source[: self._last_bytes]))

    def close(self) -> None:
        """Wait for the device and release the peer's memory."""
        self._bench.device.synchronize()
        self._calls.clear()


GPU_ROUTES: dict[str, Callable[[gb.Bench, int], HostToDeviceRoutes | PeerRoutes]] = {
    "h2d": HostToDeviceRoutes,
    "peer": PeerRoutes,
}
