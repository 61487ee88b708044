"""What a program pays beside its work: launches, graphs, events, waits, barriers, flags, allocations."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Observation, Skip, Stage, Target, Task, Work, expect, points

from ._ring import LIMIT_S, cycles_of, host_kernel, new_state, pointer

_ROUNDS = 1000
_FLAG_WORDS, _FLAG_APART = 64, 16  # 64-bit words: question and answer on lines of their own
_FLAG_SPINS = 2**24  # looks at the answer; about a tenth of a second
_QUEUED = 32  # calls in a batch, where each is several entries of the launch queue
_ARRIVED_WORDS = 8
_LOOKED_BYTES = 2**20
_TO_HOST = 2  # cudaMemcpyDeviceToHost, and HIP's


def _no_error(bench: Bench) -> Callable[[], Observation]:
    """The check of what has no output: the device reports no error."""

    def check() -> Observation:
        bench.device.synchronize()
        return {}

    return check


def _empty(bench: Bench) -> Callable[[], None]:
    kernel = bench.kernel("costs.cu", "empty")
    return lambda: kernel((1,), (1,), ())


def launch(bench: Bench) -> Task:
    """An empty kernel, back to back and in a graph."""
    stage = Stage(_empty(bench), Work(items=1), "item", modes=("hot", "graph"), effort=POINT)
    return Task.of(stage, check=_no_error(bench))


def graph_launch(bench: Bench, nodes: int) -> Task:
    """One launch of a graph of so many empty kernels, each after the last."""
    stream, empty = bench.xp.cuda.get_current_stream(), _empty(bench)
    empty()
    stream.begin_capture()
    for _ in range(nodes):
        empty()
    graph = stream.end_capture()
    stage = Stage(lambda: graph.launch(stream), Work(items=1), "item", max_calls=_QUEUED, effort=POINT)
    return Task.of(stage, check=_no_error(bench))


def event_record(bench: Bench) -> Task:
    """Records of an event, one after the other."""
    stream, event = bench.xp.cuda.get_current_stream(), bench.xp.cuda.Event(disable_timing=True)
    stage = Stage(lambda: event.record(stream), Work(items=1), "item", clock="host", effort=POINT)
    return Task.of(stage, check=_no_error(bench))


def event_wait(bench: Bench) -> Task:
    """Empty kernels on two streams in turns, each after an event of the other stream."""
    cuda, empty = bench.xp.cuda, _empty(bench)
    here, there = cuda.get_current_stream(), cuda.Stream(non_blocking=True)
    asked, answered = cuda.Event(disable_timing=True), cuda.Event(disable_timing=True)

    def there_and_back() -> None:
        empty()
        asked.record(here)
        there.wait_event(asked)
        there.use()  # not `with there`: what that restores is the null stream
        empty()
        here.use()
        answered.record(there)
        here.wait_event(answered)

    stage = Stage(there_and_back, Work(items=2), "item", max_calls=_QUEUED, effort=POINT)
    return Task.of(stage, check=_no_error(bench))


def synchronize(bench: Bench, after: str) -> Task:
    """The host waits for a stream that is idle, or for an empty kernel that it has just launched."""
    work: dict[str, Callable[[], object]] = {"nothing": lambda: None, "kernel": _empty(bench)}
    before = work[after]

    def call() -> None:
        before()
        bench.device.synchronize()

    stage = Stage(call, Work(items=1), "item", clock="host", waits=True, effort=POINT)
    return Task.of(stage, check=_no_error(bench))


def grids(target: Target) -> Any:
    """One block on each unit; in full also two blocks and some between."""
    most = max(target.device.units, 2)
    return points((most,), full=tuple(sorted({2, max(2, most // 8), max(2, most // 2), most})))


class Barrier:
    """Barriers over a whole grid, whose blocks are all there at once."""

    def __init__(self, bench: Bench, blocks: int) -> None:
        if blocks > bench.target.device.units:
            raise Skip(f"needs {blocks} units, one a block; there are {bench.target.device.units}")
        self._bench, self._blocks, self._passed = bench, blocks, 0
        self._arrived = bench.xp.zeros(_ARRIVED_WORDS, bench.xp.uint64)
        slots, self.state = bench.xp.zeros(blocks, bench.xp.uint64), new_state(bench, 0)
        kernel, limit = bench.kernel("costs.cu", "barrier"), cycles_of(bench, LIMIT_S)

        def run(look: int) -> None:
            args = (self._arrived, slots, np.uint64(_ROUNDS), limit, np.uint32(look), self.state)
            kernel((blocks,), (1,), args)
            self._passed += _ROUNDS

        self._run = run

    def call(self) -> None:
        """So many barriers."""
        self._run(0)

    def check(self) -> Observation:
        """No wait was given up, every block arrived at every barrier, and none went through one too early."""
        self._run(1)
        arrived, _, given_up, early = (int(word) for word in self._bench.device.to_host(self._arrived)[:4])
        expect(not given_up, f"a block waited for {LIMIT_S} s: not all {self._blocks} blocks run at once")
        expect(not early, "a block passed a barrier before its neighbour had come to it")
        expected = self._passed * self._blocks
        expect(arrived == expected, f"{arrived} arrivals at {self._passed} barriers of {self._blocks} blocks")
        return {}


def barrier(bench: Bench, blocks: int) -> Task:
    """Barriers over a grid of so many blocks, each alone on its unit."""
    case = Barrier(bench, blocks)
    return Task.of(Stage(case.call, Work(items=_ROUNDS), "item", max_calls=1, effort=POINT), check=case.check)


class Flag:
    """A word that the host writes and a waiting kernel answers, in page-locked memory."""

    def __init__(self, bench: Bench) -> None:
        self._ask, self._bench = host_kernel("ask"), bench
        self._words = bench.device.pinned(8 * _FLAG_WORDS).view(np.uint64)
        kernel = bench.kernel("costs.cu", "answer")
        args = (pointer(self._words), np.uint64(_ROUNDS), cycles_of(bench, LIMIT_S))
        self._launch: Callable[[], None] = lambda: kernel((1,), (1,), args)
        self._words[:] = 0
        self._asked(1, 0)  # compiles it

    def _asked(self, first: int, last: int) -> int:
        """Ask these questions; the last one that was answered."""
        return int(self._ask(self._words, 0, _FLAG_APART, first, last, _FLAG_SPINS))

    def round_trips(self) -> float:
        """Seconds of all questions but the first, which waits for the kernel to be there; by the host's clock."""
        self._words[:] = 0
        self._launch()
        self._asked(1, 1)
        start = time.perf_counter_ns()
        self._asked(2, _ROUNDS)
        seconds = (time.perf_counter_ns() - start) * 1e-9
        self._bench.device.synchronize()
        return seconds

    def check(self) -> Observation:
        """The last question was asked and answered."""
        asked, answered = int(self._words[0]), int(self._words[_FLAG_APART])
        expect(asked == answered == _ROUNDS, f"{asked} of {_ROUNDS} questions were asked, {answered} answered")
        return {}


def host_flag(bench: Bench) -> Task:
    """Round trips between the host and a kernel that waits for it."""
    flag = Flag(bench)
    return Task.of(
        Stage(flag.round_trips, Work(items=_ROUNDS - 1), "item", clock="self", effort=POINT), check=flag.check
    )


def allocate(bench: Bench, how: str, size_bytes: int) -> Task:
    """Memory taken and given back; what is given can be written and read."""
    bench.need(size_bytes)
    if how == "pool" and "pool" not in bench.traits.features:
        raise Skip(f"CuPy binds no memory pool of the driver on {bench.traits.vendor} GPUs")
    xp, stream = bench.xp, bench.xp.cuda.get_current_stream()
    runtime = xp.cuda.runtime
    takes = {
        "malloc": partial(runtime.malloc, size_bytes),
        "pool": partial(runtime.mallocAsync, size_bytes, stream.ptr),
    }
    gives = {"malloc": runtime.free, "pool": lambda address: runtime.freeAsync(address, stream.ptr)}
    take: Callable[[], int] = takes[how]
    give: Callable[[int], None] = gives[how]

    def check() -> Observation:
        """Every byte of what is given holds what is written to it; a mebibyte at either end is looked at."""
        address, byte = take(), int(bench.rng.integers(1, 256))
        runtime.memsetAsync(address, byte, size_bytes, stream.ptr)
        looked = min(size_bytes, _LOOKED_BYTES)
        found = np.empty((2, looked), np.uint8)
        for end, start in zip(found, (address, address + size_bytes - looked), strict=True):
            runtime.memcpyAsync(end.ctypes.data, start, looked, _TO_HOST, stream.ptr)
        bench.device.synchronize()
        give(address)
        wrong = int((found != byte).sum())
        expect(wrong == 0, f"{wrong} of {found.size} bytes that were allocated do not hold what was written")
        return {}

    stage = Stage(lambda: give(take()), Work(items=1), "item", clock="host", waits=True, effort=POINT)
    return Task.of(stage, check=check)
