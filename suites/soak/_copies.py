"""Copy fixed data again and again: between host and device in both directions, and within the memory of the device."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._identical import effort, expect_identical, invert

_ON_GPU = ("h2d", "d2h", "d2d")
_LOCAL = "local"

topic = gb.Topic(
    views=[gb.View("bars", "Soak: copy throughput", ("copy",), by=("direction",), series="self")],
)


def _directions(target: gb.Target) -> Any:
    return (_LOCAL,) if target.is_host else gb.points(_ON_GPU[:2], full=_ON_GPU)


def _sizes(target: gb.Target) -> Any:
    return gb.points((2**24,), (2**20,), (2**26,)) if target.is_host else gb.points((2**24,), (2**22,), (2**28,))


@topic.case(direction=_directions, size_bytes=_sizes)
def copy(bench: gb.Bench, direction: str, size_bytes: int) -> gb.Task:
    """Bandwidth of repeated copies of `size_bytes` random bytes, each compared in full with the source: payload.

    `direction` is `h2d` (host to device), `d2h`, `d2d` (within the device), or `local` on the host."""
    return _Copy(bench, direction, size_bytes).task()


class _Copy:
    """A repeated copy of `size_bytes` random bytes in one direction, and the bytes that each copy must give.

    Raises Skip without enough free memory."""

    def __init__(self, bench: gb.Bench, direction: str, size_bytes: int) -> None:
        self._bench, self._kernel = bench, f"copy {direction} of {size_bytes} bytes"
        bench.need(3 * size_bytes)
        data = bench.device.pinned(size_bytes)
        data[:] = np.frombuffer(bench.rng.bytes(size_bytes), np.uint8)
        from_host, to_host = direction in ("h2d", _LOCAL), direction in ("d2h", _LOCAL)
        on_device = bench.xp.asarray
        self._source = data if from_host else on_device(data)
        self._target = bench.device.pinned(size_bytes) if to_host else bench.xp.empty(size_bytes, np.uint8)
        self._expected = data.copy() if to_host else on_device(data).copy()
        bench.device.synchronize()

    def task(self) -> gb.Task:
        """Return the task; each call of its stage copies once and compares the copy."""
        work = gb.Work(payload=int(self._target.nbytes))
        stage = gb.Stage(self._call, work, "payload", clock="self", effort=effort(self._bench), checked=True)
        return gb.Task.of(stage, check=lambda: None, notes={"kernel": self._kernel})

    def _call(self) -> float:
        """Copy once into memory that was overwritten before, compare every byte, and return the seconds of the copy."""
        device = self._bench.device
        invert(self._target, self._expected, self._bench)
        timing = device.time(lambda: device.copy(self._target, self._source), 1, gated=False)
        device.synchronize()
        expect_identical(self._bench, self._kernel, self._target, self._expected)
        return timing.device[0]
