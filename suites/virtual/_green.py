"""Measure green contexts by their number of SMs: time to create, throughput, and whether two of them share an SM."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._green_contexts import GreenContext, SmPool
from ._loads import gemm, launch_queue, steps_of, triad

_TRIAD_BYTES, _N = 2**28, 4096
_ROUNDS = 100
_CREATED = 20
_MOST_UNITS = 1024  # the highest number of an SM that a kernel can report, plus one
_BLOCKS_PER_UNIT, _THREADS = 8, 64
_LINGER_S = 20e-6
_NANO = 1e-9

topic = gb.Topic(
    views=[
        gb.View("curve", "Triad bandwidth of a green context by SMs", ("green",), "units", series="triad.self"),
        gb.View("curve", "GEMM throughput of a green context by SMs", ("green",), "units", series="gemm.self"),
        gb.View("curve", "Creation time of a green context by SMs", ("green",), "units", series="create.self"),
    ],
)


def _units(target: gb.Target) -> Any:
    """Return the points of the axis `units`: 8, 16, 32 and 64 SMs, if the device has room for two such groups."""
    counts = tuple(count for count in (8, 16, 32, 64) if 2 * count <= target.device.units)
    return gb.points((), smoke=counts[1:2], full=counts)


class GreenPair:
    """Two green contexts of `units` SMs each, from one split; the first context runs the timed work.

    Raises Skip if the driver cannot split the SMs so."""

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
        context: GreenContext = self._pool.context(self._groups[0])
        context.close()
        return context.created_s

    def timing(self, call: Callable[[], object]) -> Callable[[], float]:
        """Return a function that calls `call` in the first context's stream, and returns its seconds (device clock).

        It calls `call` once more before, untimed, which hides the launch time."""
        stream = self._streams[0]

        def seconds() -> float:
            """Return the seconds of one call between two readings of the device's clock."""
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

    def expect_disjoint(self) -> int:
        """Run a kernel in both contexts 100 times, and return 100.

        Raises WrongAnswer if the contexts shared an SM in a round, or one used more SMs than it has."""
        for index in range(_ROUNDS):
            expect_apart(*self.units_of_both(), self._units, index)
        return _ROUNDS

    def close(self) -> None:
        """Destroy both contexts."""
        for context in self.contexts:
            context.close()


def expect_apart(first: frozenset[int], second: frozenset[int], units: int, index: int) -> None:
    """Raise WrongAnswer if two contexts of `units` SMs ran on one SM, or one of them ran on more than `units`.

    `first` and `second` are the numbers of the SMs that each context ran on, and `index` is the round, for the
    message."""
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
        """Check both workloads, and once that the contexts share no SM; return `disjoint`, the rounds that showed it.

        Raises WrongAnswer if a result is wrong or an SM is shared."""
        nonlocal rounds
        streamed.check()
        product.check()
        if math.isnan(rounds):
            rounds = float(pair.expect_disjoint())
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
