"""Measure green contexts by their number of SMs: time to create, throughput, and whether two of them share an SM.

The SMs of a GPU are split once into groups that share no SM; a green context is created over each."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from ._loads import gemm, launch_queue, steps_of, triad

_TRIAD_BYTES, _N = 2**28, 4096
_ROUNDS = 100
_CREATED = 20
_MOST_UNITS = 1024  # the highest number of an SM that a kernel can report, plus one
_BLOCKS_PER_UNIT, _THREADS = 8, 64
_LINGER_S = 20e-6
_NANO = 1e-9
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

topic = gb.Topic(
    views=[
        gb.View("curve", "Triad bandwidth of a green context by SMs", ("green",), "units", series="triad.self"),
        gb.View("curve", "GEMM throughput of a green context by SMs", ("green",), "units", series="gemm.self"),
        gb.View("curve", "Creation time of a green context by SMs", ("green",), "units", series="create.self"),
    ],
)


class GreenContext:
    """A green context over a CUdevResource of SMs, and a stream in it; `created_s` is the time to create both."""

    def __init__(self, driver: lib.Driver, device: Any, group: Any) -> None:
        self._driver = driver
        flag = driver.bindings.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        begin = time.perf_counter()
        description = driver("cuDevResourceGenerateDesc", [group], 1)
        self._context = driver("cuGreenCtxCreate", description, device, int(flag))
        self._stream = driver("cuGreenCtxStreamCreate", self._context, _NON_BLOCKING, 0)
        self.created_s = time.perf_counter() - begin
        self.units = int(group.sm.smCount)

    def stream(self, bench: gb.Bench) -> Any:
        """Return the context's stream as a `cupy.cuda.ExternalStream`."""
        return bench.xp.cuda.ExternalStream(int(self._stream))

    def close(self) -> None:
        """Destroy the stream and the context; all queued work must have ended."""
        self._driver("cuStreamDestroy", self._stream)
        self._driver("cuGreenCtxDestroy", self._context)


class SmPool:
    """The SMs of the current GPU: `units` in all, and `granularity` in the smallest group (8 on Hopper)."""

    def __init__(self, bench: gb.Bench) -> None:
        if bench.traits.vendor != "nvidia":
            raise gb.Skip("CuPy on ROCm does not bind HIP's green contexts (hipGreenCtxCreate); HIP itself has them")
        self._driver = lib.Driver()
        kind = self._driver.bindings.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        self._device = self._driver("cuCtxGetDevice")
        self._whole = self._driver("cuDeviceGetDevResource", self._device, kind)
        self.units = int(self._whole.sm.smCount)
        self.granularity = int(self._split(1, 1)[0].sm.smCount)

    def groups(self, units: int, count: int) -> list[Any]:
        """Return `count` groups of exactly `units` SMs from one split, as cuda-bindings' CUdevResource objects.

        Raises Skip if `units` is no multiple of `granularity`, or the driver gives other groups."""
        if units % self.granularity:
            raise gb.Skip(f"groups of this GPU are multiples of {self.granularity} SMs; {units} is no such multiple")
        groups = self._split(count, units)
        sizes = [int(group.sm.smCount) for group in groups]
        if sizes != [units] * count:
            raise gb.Skip(f"the driver gives groups of {sizes} SMs, not {count} of {units}")
        return groups

    def halves(self) -> list[Any]:
        """Return two groups, each with half of the SMs, rounded down to a multiple of `granularity`."""
        return self.groups(self.units // 2 // self.granularity * self.granularity, 2)

    def context(self, group: Any) -> GreenContext:
        return GreenContext(self._driver, self._device, group)

    def _split(self, count: int, units: int) -> list[Any]:
        groups, granted, _ = self._driver("cuDevSmResourceSplitByCount", count, self._whole, 0, units)
        return list(groups[: int(granted)])


def _units(target: gb.Target) -> Any:
    """Return the points of the axis `units`: 8, 16, 32 and 64 SMs, if the device has room for two such groups."""
    counts = tuple(count for count in (8, 16, 32, 64) if 2 * count <= target.device.units)
    return gb.points((), smoke=counts[1:2], full=counts)


class GreenPair:
    """Two green contexts of `units` SMs each, from one split; the first context runs the timed work."""

    def __init__(self, bench: gb.Bench, units: int) -> None:
        self._bench, self._units, self._pool = bench, units, SmPool(bench)
        self._groups = self._pool.groups(units, 2)
        self.contexts = [self._pool.context(group) for group in self._groups]
        self._streams = [context.stream(bench) for context in self.contexts]
        self._home = launch_queue(bench)
        self._mark = bench.kernel("sharing.cu", "mark_unit")
        self._now, self._times = bench.kernel("sharing.cu", "now"), bench.xp.zeros(2, np.uint64)
        self.note = f"groups are multiples of {self._pool.granularity} of {self._pool.units} SMs"

    def creation_s(self) -> float:
        """Return the seconds to create another context and stream over the first group; destroying is not timed."""
        context = self._pool.context(self._groups[0])
        context.close()
        return context.created_s

    def timing(self, call: Callable[[], object]) -> Callable[[], float]:
        """Return a function that calls `call` twice in the first context, and returns the second call's seconds."""
        stream = self._streams[0]

        def seconds() -> float:
            self._home.wait()
            stream.use()
            call()  # hides the launch time of the next calls
            self._now((1,), (1,), (self._times[:1],))
            call()
            self._now((1,), (1,), (self._times[1:],))
            stream.synchronize()
            self._home.enter()
            begun, ended = (int(time) for time in self._bench.device.to_host(self._times))
            return (ended - begun) * _NANO

        return seconds

    def units_of_both(self) -> tuple[frozenset[int], frozenset[int]]:
        """Run a kernel in both contexts at the same time; return the numbers of the SMs that each kernel ran on."""
        blocks, steps = _BLOCKS_PER_UNIT * self._units, np.uint32(steps_of(self._bench, _LINGER_S))
        marks = self._bench.xp.zeros((2, _MOST_UNITS), np.uint32)
        ends = self._bench.xp.zeros((2, blocks * _THREADS), np.uint32)
        self._home.wait()
        for index, stream in enumerate(self._streams):
            stream.use()
            self._mark((blocks,), (_THREADS,), (marks[index], steps, ends[index]))
        for stream in self._streams:
            stream.synchronize()
        self._home.enter()
        first, second = (frozenset(np.flatnonzero(row).tolist()) for row in self._bench.device.to_host(marks))
        return first, second

    def close(self) -> None:
        """Destroy both contexts."""
        for context in self.contexts:
            context.close()


def expect_apart(first: frozenset[int], second: frozenset[int], units: int, index: int) -> None:
    """Raise WrongAnswer if two contexts ran on one SM in the round `index`, or one on more than its `units` SMs."""
    both = first & second
    gb.expect(not both, f"in round {index} both contexts ran on the SMs {sorted(both)}")
    most_used = max(len(first), len(second))
    gb.expect(most_used <= units, f"in round {index} a context of {units} SMs ran on {most_used} SMs")


@topic.case(when=gb.on_gpu, units=_units)
def green(bench: gb.Bench, units: int) -> gb.Task:
    """A green context over `units` SMs: bytes moved per second by triad, a matrix product, and seconds to create it.

    Blocks of two such contexts report their SMs 100 times; no SM may be in both contexts."""
    pair = GreenPair(bench, units)
    streamed, product = triad(bench, _TRIAD_BYTES), gemm(bench, _N)
    rounds = math.nan

    def check() -> gb.Observation:
        """Check both workloads, and once that the contexts share no SM; return the rounds that showed it."""
        nonlocal rounds
        streamed.check()
        product.check()
        if math.isnan(rounds):
            for index in range(_ROUNDS):
                expect_apart(*pair.units_of_both(), units, index)
            rounds = float(_ROUNDS)
        return {"disjoint": gb.Observed(rounds, "rounds", "more")}

    def stage(
        call: Callable[[], float], work: gb.Work, quantity: Any, outputs: Any = (), effort: gb.Effort = gb.POINT
    ) -> gb.Stage:
        return gb.Stage(call, work, quantity, clock="self", effort=effort, outputs=outputs)

    stages = {
        "triad": stage(pair.timing(streamed.call), gb.Work(moved=3 * _TRIAD_BYTES), "moved", streamed.outputs),
        "gemm": stage(pair.timing(product.call), gb.Work(flops=2.0 * _N**3), "flops", product.outputs),
        "create": stage(pair.creation_s, gb.Work(items=1), "item", effort=gb.Effort.exactly(_CREATED)),
    }
    return gb.Task(stages, check, close=pair.close, notes={"groups": pair.note})
