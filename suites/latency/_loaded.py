"""The latency of memory while other units stream: what a walk meets when it is not alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Observation, Observed, Skip, Stage, Target, Task, Work, expect, points

from ._chase import memory_bytes
from ._ring import LIMIT_S, GpuRing, Walk, cycles_of, drawn_words
from ._slices import alone_bytes

_STREAM_BYTES = 2**31
_STREAM_THREADS = 1024  # WIDTH of units.cu
_VECTOR_BYTES, _BYTES_A_TURN = 16, 4 * 8 * 16  # ROUNDS · VECTORS vectors of a lane
_LOADED_STEPS = 2**12


def streams(target: Target) -> Any:
    """How many units stream: none to all but the one that walks, in eighths; in full more between."""
    most = max(target.device.units - 1, 1)
    doublings = {2**exponent for exponent in range(most.bit_length())}
    eighths = {round(most * eighth / 8) for eighth in range(9)}
    return points(smoke=(0, most), quick=sorted(eighths), full=sorted({0, *doublings, *range(0, most, 8), *eighths}))


class Loaded:
    """A walk through memory while other units read as fast as they can."""

    def __init__(self, bench: Bench, units: int) -> None:
        ring_bytes, data_bytes = memory_bytes(bench.target), max(_STREAM_BYTES, memory_bytes(bench.target))
        data_bytes = min(data_bytes, 1 << (bench.target.device.memory_bytes // 4 or 2**62).bit_length() - 1)
        bench.need(ring_bytes + data_bytes)
        xp = bench.xp
        self._bench, self._units, self._seed = bench, units, np.uint64(bench.rng.integers(2**64, dtype=np.uint64))
        self._ring = GpuRing.linked(bench, xp.empty(ring_bytes, xp.uint8), ring_bytes)
        self._vectors, data = np.uint64(data_bytes // _VECTOR_BYTES), drawn_words(bench, data_bytes, int(self._seed))
        self._turns = xp.zeros((max(units, 1) * _STREAM_THREADS, 3), xp.uint64)
        self._found = xp.zeros(max(units, 1) * _STREAM_THREADS, xp.uint64)
        self._flag = xp.zeros(4, xp.uint32)
        self._grid, self._expected = (units + 1,), bench.kernel("units.cu", "expected")
        kernel, state = bench.kernel("units.cu", "loaded"), self._ring.state()
        args = (self._ring.memory, np.uint64(_LOADED_STEPS), state, data, self._vectors, cycles_of(bench, LIMIT_S))
        results = (self._flag, self._turns, self._found)

        def run() -> None:
            self._flag.fill(0)
            kernel(self._grid, (_STREAM_THREADS,), (*args, *results), alone_bytes(bench))

        self._walk = Walk(bench, run, self._ring.offset, state, _LOADED_STEPS)
        bench.device.flush()

    def seconds(self) -> float:
        """Seconds of the walk, by the device's clock over the same loads: the kernel has to wait for the others."""
        self._walk.call()
        return self._walk.read(4) * 1e-9

    def beside(self) -> Observation:
        """Cycles a load, and what the others read meanwhile."""
        return {**self._walk.cycles(), "streamed": Observed(self._rate(), "B/s", "more")}

    def _rate(self) -> float:
        """The sum of the rates of all streaming lanes, each over its own time."""
        if not self._units:
            return 0.0
        turns = self._bench.device.to_host(self._turns).astype(float)
        return float((turns[:, 0] * _BYTES_A_TURN / (turns[:, 2] - turns[:, 1])).sum() * 1e9)

    def check(self) -> Observation:
        """The walk stands where it should, no wait was given up, and every lane read what its places hold."""
        expect(not int(self._bench.device.to_host(self._flag)[2]), f"not all {self._units + 1} blocks ran at once")
        if self._units:
            expected = self._bench.xp.zeros_like(self._found)
            self._expected(self._grid, (_STREAM_THREADS,), (self._seed, self._vectors, self._turns, expected))
            to_host = self._bench.device.to_host
            wrong = int(np.count_nonzero(to_host(expected) != to_host(self._found)))
            expect(wrong == 0, f"{wrong} of {expected.size} lanes did not read what the memory holds")
        return self._walk.check()

    def poison(self) -> None:
        """Forget what the others found."""
        self._found.fill(0)
        self._turns.fill(0)


def loaded(bench: Bench, units: int) -> Task:
    """The latency of memory while so many units stream."""
    if units >= bench.target.device.units:
        raise Skip(f"needs {units + 1} units; there are {bench.target.device.units}")
    case = Loaded(bench, units)
    stage = Stage(case.seconds, Work(items=_LOADED_STEPS), "item", clock="self", probe=case.beside, effort=POINT)
    return Task.of(stage, check=case.check, poison=case.poison)
