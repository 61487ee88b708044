"""Measure DRAM latency under load: one lane walks through memory while other SMs or CUs stream."""

from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_equal
from ._ring import LIMIT_S, GpuRing, Walk, cycles_of, memory_bytes
from ._slices import alone_bytes

_STREAM_BYTES = 2**31
_STREAM_THREADS = 1024  # WIDTH in units.cu
_VECTOR_BYTES, _BYTES_A_TURN = 16, 4 * 8 * 16  # ROUNDS · VECTORS vectors of a lane, as in units.cu
_LOADED_STEPS = 2**12

topic = gb.Topic(
    views=[
        gb.View("curve", "DRAM latency under load", ("loaded",), "units", series="self"),
        gb.View("pareto", "DRAM latency by streamed bandwidth", ("loaded",), "streamed", "self"),
    ]
)


def _streams(target: gb.Target) -> Any:
    """Return the axis of numbers of streaming SMs or CUs: from 0 to all except the SM or CU that walks."""
    most = max(target.device.units - 1, 1)
    doublings = {2**exponent for exponent in range(most.bit_length())}
    eighths = {round(most * eighth / 8) for eighth in range(9)}
    return gb.points(smoke=(0, most), quick=sorted(eighths), full=sorted({0, *doublings, *range(0, most, 8), *eighths}))


class LoadedWalk:
    """A walk of one lane through memory while `units` other SMs or CUs read memory as fast as they can.

    The ring of the walk and the data of the streams each exceed the last-level cache."""

    def __init__(self, bench: gb.Bench, units: int) -> None:
        ring_bytes, data_bytes = memory_bytes(bench.target), max(_STREAM_BYTES, memory_bytes(bench.target))
        data_bytes = min(data_bytes, 1 << (bench.target.device.memory_bytes // 4 or 2**62).bit_length() - 1)
        bench.need(ring_bytes + data_bytes)
        xp = bench.xp
        self._bench, self._units = bench, units
        ring = GpuRing.linked(bench, ring_bytes)
        self._vectors = np.uint64(data_bytes // _VECTOR_BYTES)
        self._words = bench.words(data_bytes // 8, int(bench.rng.integers(2**64, dtype=np.uint64)))
        data = self._words.array
        self.redraw = partial(self._words.redraw, data)
        self._turns = xp.zeros((max(units, 1) * _STREAM_THREADS, 3), xp.uint64)
        self._sums = xp.zeros(max(units, 1) * _STREAM_THREADS, xp.uint64)
        self._flag = xp.zeros(4, xp.uint32)
        self._grid, self._expected = (units + 1,), bench.kernel("units.cu", "expected")
        kernel, state = bench.kernel("units.cu", "loaded"), ring.state()
        args = (ring.memory, np.uint64(_LOADED_STEPS), state, data, self._vectors, cycles_of(bench, LIMIT_S))
        results = (self._flag, self._turns, self._sums)

        def run() -> None:
            self._flag.fill(0)
            kernel(self._grid, (_STREAM_THREADS,), (*args, *results), alone_bytes(bench))

        self._walk = Walk(bench, run, ring.offset, state, _LOADED_STEPS)
        bench.device.flush()

    def seconds(self) -> float:
        """Walk 4096 loads in one launch; return the seconds of these loads by the device's clock.

        The time in which the kernel waits for the streaming blocks is not part of them."""
        self._walk.call()
        return self._walk.read(4) * 1e-9

    def observed(self) -> gb.Observation:
        """Return the cycles per load of the last launch, and as `streamed` the bytes per second of all streams."""
        return {**self._walk.cycles(), "streamed": gb.Observed(self._rate(), "B/s", "more")}

    def _rate(self) -> float:
        """Return the bytes per second of all streaming lanes in the last launch; 0 if none streams."""
        if not self._units:
            return 0.0
        turns = self._bench.device.to_host(self._turns).astype(float)
        return float((turns[:, 0] * _BYTES_A_TURN / (turns[:, 2] - turns[:, 1])).sum() * 1e9)

    def check(self) -> gb.Observation:
        """Raise WrongAnswer if not all blocks ran at once, if a stream read wrong words, or if the walk ended wrongly.

        Returns no observations."""
        to_host = self._bench.device.to_host
        gb.expect(not int(to_host(self._flag)[2]), f"not all {self._units + 1} blocks ran at once")
        if self._units:
            expected = self._bench.xp.zeros_like(self._sums)
            args = (np.uint64(self._words.seed), self._vectors, self._turns, expected)
            self._expected(self._grid, (_STREAM_THREADS,), args)
            expect_equal(to_host(self._sums), to_host(expected), "sums of lanes")
        return self._walk.check()

    def poison(self) -> None:
        """Overwrite the results of the streaming lanes with zeros."""
        self._sums.fill(0)
        self._turns.fill(0)


@topic.case(when=gb.on_gpu, units=_streams)
def loaded(bench: gb.Bench, units: int) -> gb.Task:
    """Seconds of a dependent load from memory while `units` other SMs or CUs read memory as fast as they can.

    The series `streamed` is the bandwidth of the others. Raises Skip on a device with too few compute units."""
    if units >= bench.target.device.units:
        raise gb.Skip(f"needs {units + 1} compute units; the device has {bench.target.device.units}")
    walk = LoadedWalk(bench, units)
    work, inputs = gb.Work(items=_LOADED_STEPS), walk.redraw if units else None
    stage = gb.Stage(walk.seconds, work, "item", clock="self", probe=walk.observed, effort=gb.POINT, inputs=inputs)
    return gb.Task.of(stage, check=walk.check, poison=walk.poison)
