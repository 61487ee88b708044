"""Measure launch and synchronisation overhead: launches, graphs, events, waits, barriers, flags and allocations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._checks import expect_equal, in_turn
from ._ring import LIMIT_S, cycles_of, new_state, pointer
from ._round_trips import RoundTrips

_ROUNDS = 1000
_FLAG_WORDS, _FLAG_APART = 64, 16  # in 64-bit words: question and answer lie on separate cache lines
_FLAG_SPINS = 2**24  # reads of the answer before the host gives up; about a tenth of a second
_QUEUED = 32  # calls in a batch, if each call takes several entries of the launch queue
_ARRIVED_WORDS = 8
_COMPARED_BYTES = 2**20
_TO_HOST = 2  # cudaMemcpyDeviceToHost; HIP's value is the same
_RELEASE_THRESHOLD = 4  # cudaMemPoolAttrReleaseThreshold: bytes that the pool keeps at a synchronisation
_KEEP_ALL = 2**62

topic = gb.Topic(
    views=[
        gb.View(
            "bars",
            "Launch and synchronisation overhead",
            (
                "launch",
                "graph_launch",
                "event_record",
                "event_wait",
                "stream_value",
                "synchronize",
                "barrier",
                "host_flag",
                "allocate",
            ),
            log_x=True,
        )
    ],
)


def _empty(bench: gb.Bench) -> Callable[[], None]:
    """Return the launch of a kernel of one thread that does nothing."""
    kernel = bench.kernel("costs.cu", "empty")
    return lambda: kernel((1,), (1,), ())


@topic.case(when=gb.on_gpu)
def launch(bench: gb.Bench) -> gb.Task:
    """Seconds of a launch of an empty kernel: queued back to back (hot), and replayed as a graph.

    The kernel has no output; its check is that the device reports no error."""
    stage = gb.Stage(_empty(bench), gb.Work(items=1), "item", modes=("hot", "graph"), effort=gb.POINT)
    return gb.Task.of(stage, check=bench.device.synchronize)


@topic.case(when=gb.on_gpu, nodes=gb.points((1, 100), (1,)))
def graph_launch(bench: gb.Bench, nodes: int) -> gb.Task:
    """Seconds of a launch of one graph of `nodes` empty kernels, each of which waits for the one before.

    The graph has no output; its check is that the device reports no error."""
    stream, empty = bench.xp.cuda.get_current_stream(), _empty(bench)
    empty()
    stream.begin_capture()
    for _ in range(nodes):
        empty()
    graph = stream.end_capture()
    stage = gb.Stage(lambda: graph.launch(stream), gb.Work(items=1), "item", max_calls=_QUEUED, effort=gb.POINT)
    return gb.Task.of(stage, check=bench.device.synchronize)


@topic.case(when=gb.on_gpu)
def event_record(bench: gb.Bench) -> gb.Task:
    """Seconds that the host takes to record an event without a time stamp, one record after another.

    An event has no output; its check is that the device reports no error."""
    stream, event = bench.xp.cuda.get_current_stream(), bench.xp.cuda.Event(disable_timing=True)
    stage = gb.Stage(lambda: event.record(stream), gb.Work(items=1), "item", clock="host", effort=gb.POINT)
    return gb.Task.of(stage, check=bench.device.synchronize)


@topic.case(when=gb.on_gpu)
def event_wait(bench: gb.Bench) -> gb.Task:
    """Seconds of an empty kernel on two streams in turn, where each kernel waits for the other stream's event.

    The kernels have no output; their check is that the device reports no error."""
    cuda, empty = bench.xp.cuda, _empty(bench)
    first_stream, second_stream = cuda.get_current_stream(), cuda.Stream(non_blocking=True)
    first_event, second_event = cuda.Event(disable_timing=True), cuda.Event(disable_timing=True)

    def there_and_back() -> None:
        """Queue a kernel on each stream, each of which waits for the kernel before it."""
        empty()
        first_event.record(first_stream)
        second_stream.wait_event(first_event)
        second_stream.use()  # not `with second_stream`, which would restore the null stream
        empty()
        first_stream.use()
        second_event.record(second_stream)
        first_stream.wait_event(second_event)

    stage = gb.Stage(there_and_back, gb.Work(items=2), "item", max_calls=_QUEUED, effort=gb.POINT)
    return gb.Task.of(stage, check=bench.device.synchronize)


@topic.case(when=gb.on_gpu)
def stream_value(bench: gb.Bench) -> gb.Task:
    """Seconds of an empty kernel on two streams in turn, where each waits for a word that the other stream writes.

    The words are written and awaited by cuStreamWriteValue32 and cuStreamWaitValue32, which also work between
    processes and GPUs on shared words, without the host. Compare `event_wait`."""
    if bench.traits.vendor != "nvidia":
        raise gb.Skip("needs CUDA's driver; HIP has similar calls, but they have not been tried yet")
    driver, empty, cuda = lib.Driver(), _empty(bench), bench.xp.cuda
    first_stream, second_stream = cuda.get_current_stream(), cuda.Stream(non_blocking=True)
    first, second = (driver.bindings.CUstream(int(stream.ptr)) for stream in (first_stream, second_stream))
    flags = bench.xp.zeros(2 * _FLAG_APART, bench.xp.uint32)
    start = int(flags.ctypes.data if isinstance(flags, np.ndarray) else flags.data.ptr)
    there, back = start, start + flags.nbytes // 2
    calls = 0

    def there_and_back() -> None:
        """Queue a kernel on each stream, each of which waits for the word that follows the kernel before it."""
        nonlocal calls
        calls += 1
        empty()
        driver("cuStreamWriteValue32", first, there, calls, 0)
        driver("cuStreamWaitValue32", second, there, calls, 0)  # 0: until the word is at least that
        second_stream.use()
        empty()
        first_stream.use()
        driver("cuStreamWriteValue32", second, back, calls, 0)
        driver("cuStreamWaitValue32", first, back, calls, 0)

    def check() -> None:
        written = bench.device.to_host(flags)[::_FLAG_APART]
        expect_equal(written, np.full(2, calls, np.uint32), "words of streams")

    stage = gb.Stage(there_and_back, gb.Work(items=2), "item", max_calls=_QUEUED, effort=gb.POINT)
    return gb.Task.of(stage, check=check)


@topic.case(when=gb.on_gpu, after=("nothing", "kernel"))
def synchronize(bench: gb.Bench, after: str) -> gb.Task:
    """Seconds of the host's wait for the device: for an idle stream, or (`kernel`) after the launch of an empty kernel.

    The launch is part of the time. The check is that the device reports no error."""
    before: Callable[[], object] = {"nothing": lambda: None, "kernel": _empty(bench)}[after]

    def call() -> None:
        before()
        bench.device.synchronize()

    stage = gb.Stage(call, gb.Work(items=1), "item", clock="host", waits=True, effort=gb.POINT)
    return gb.Task.of(stage, check=bench.device.synchronize)


def _grids(target: gb.Target) -> Any:
    """Return the axis of numbers of blocks: one for each SM or CU."""
    most = max(target.device.units, 2)
    return gb.points((most,), full=tuple(sorted({2, max(2, most // 8), max(2, most // 2), most})))


class GridBarrier:
    """Launches of a kernel with `blocks` blocks of one thread that pass 1000 barriers over the whole grid.

    All blocks must run at the same time. Raises Skip if the device has fewer compute units than `blocks`."""

    def __init__(self, bench: gb.Bench, blocks: int) -> None:
        if blocks > bench.target.device.units:
            raise gb.Skip(f"needs {blocks} compute units, one per block; the device has {bench.target.device.units}")
        self._bench, self._blocks, self._passed = bench, blocks, 0
        self._arrived = bench.xp.zeros(_ARRIVED_WORDS, bench.xp.uint64)
        slots, state = bench.xp.zeros(blocks, bench.xp.uint64), new_state(bench, 0)
        kernel, limit = bench.kernel("costs.cu", "barrier"), cycles_of(bench, LIMIT_S)

        def run(checked: int) -> None:
            kernel((blocks,), (1,), (self._arrived, slots, np.uint64(_ROUNDS), limit, np.uint32(checked), state))
            self._passed += _ROUNDS

        self._run = run

    def call(self) -> None:
        """Launch the kernel once: 1000 barriers, the sample that is timed."""
        self._run(0)

    def check(self) -> None:
        """Pass 1000 barriers; raise WrongAnswer if a wait gave up, an arrival is missing or a block passed too early.

        A wait gives up after 0.25 s. A block is too early if it passes a barrier that its neighbour has not reached."""
        self._run(1)
        arrived, _, given_up, early = (int(word) for word in self._bench.device.to_host(self._arrived)[:4])
        gb.expect(not given_up, f"a block waited for {LIMIT_S} s: not all {self._blocks} blocks run at once")
        gb.expect(not early, "a block passed a barrier before its neighbour reached it")
        expected = self._passed * self._blocks
        gb.expect(arrived == expected, f"{arrived} arrivals at {self._passed} barriers of {self._blocks} blocks")


@topic.case(when=gb.on_gpu, blocks=_grids)
def barrier(bench: gb.Bench, blocks: int) -> gb.Task:
    """Seconds of one barrier over a grid of `blocks` blocks, at most one on each SM or CU.

    Each block arrives by one atomic addition and waits until all blocks have arrived."""
    barriers = GridBarrier(bench, blocks)
    stage = gb.Stage(barriers.call, gb.Work(items=_ROUNDS), "item", max_calls=1, effort=gb.POINT)
    return gb.Task.of(stage, check=barriers.check)


@topic.case(when=gb.on_gpu)
def host_flag(bench: gb.Bench) -> gb.Task:
    """Seconds of a round trip: the host writes a word of page-locked memory, a waiting kernel sees it and answers."""
    flags = bench.device.pinned(8 * _FLAG_WORDS).view(np.uint64)
    round_trips = RoundTrips(flags, _FLAG_APART, _ROUNDS, _FLAG_SPINS)
    kernel = bench.kernel("costs.cu", "answer")
    args = (pointer(flags), np.uint64(_ROUNDS), cycles_of(bench, LIMIT_S))

    def seconds() -> float:
        """Launch the kernel, and return the host's seconds of all round trips but the first."""
        flags[:] = 0
        kernel((1,), (1,), args)
        elapsed = round_trips.seconds()
        bench.device.synchronize()
        return elapsed

    stage = gb.Stage(seconds, gb.Work(items=_ROUNDS - 1), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=round_trips.check)


@topic.case(
    when=gb.on_gpu,
    how=("malloc", "pool", "trim"),
    size_bytes=gb.points((2**20, 2**28), (2**20,), gb.powers_of_two(12, 32, 4)),
    version=2,
)
def allocate(bench: gb.Bench, how: str, size_bytes: int) -> gb.Task:
    """Seconds in which the host allocates `size_bytes` of device memory and frees them, as a pair.

    `how` is `malloc`, for cudaMalloc and cudaFree, `pool` or `trim`. `pool` is the stream-ordered pool, which keeps the
    memory. `trim` is the same pool with the driver's own setting and a wait after each pair: the pool then gives the
    memory back to the driver. Raises Skip where CuPy does not support the pool."""
    bench.need(size_bytes)
    if how != "malloc" and "pool" not in bench.traits.features:
        raise gb.Skip(f"CuPy does not support the driver's memory pool on {bench.traits.vendor} GPUs")
    stream, runtime = bench.xp.cuda.get_current_stream(), bench.xp.cuda.runtime
    close: Callable[[], None] = lambda: None  # noqa: E731 - memory from cudaMalloc needs no other clean-up
    if how == "malloc":
        take, give = partial(runtime.malloc, size_bytes), runtime.free
    else:
        pool = runtime.deviceGetDefaultMemPool(bench.xp.cuda.Device().id)
        kept_bytes = runtime.memPoolGetAttribute(pool, _RELEASE_THRESHOLD)
        runtime.memPoolSetAttribute(pool, _RELEASE_THRESHOLD, _KEEP_ALL if how == "pool" else 0)
        close = in_turn(
            partial(runtime.memPoolSetAttribute, pool, _RELEASE_THRESHOLD, kept_bytes),
            partial(runtime.memPoolTrimTo, pool, 0),
        )
        take, give = partial(runtime.mallocAsync, size_bytes, stream.ptr), partial(_give_back, runtime, stream, how)

    def check() -> None:
        """Write a byte to all of an allocation; raise WrongAnswer if its first or last mebibyte has another byte."""
        address, byte = take(), int(bench.rng.integers(1, 256))
        runtime.memsetAsync(address, byte, size_bytes, stream.ptr)
        compared = min(size_bytes, _COMPARED_BYTES)
        contents = np.empty((2, compared), np.uint8)
        for part, start in zip(contents, (address, address + size_bytes - compared), strict=True):
            runtime.memcpyAsync(part.ctypes.data, start, compared, _TO_HOST, stream.ptr)
        bench.device.synchronize()
        give(address)
        expect_equal(contents, byte, "allocated bytes")

    stage = gb.Stage(lambda: give(take()), gb.Work(items=1), "item", clock="host", waits=True, effort=gb.POINT)
    return gb.Task.of(stage, check=check, close=close)


def _give_back(runtime: Any, stream: Any, how: str, address: int) -> None:
    """Queue the release of `address` to the driver's memory pool on `stream`, a CuPy stream."""
    runtime.freeAsync(address, stream.ptr)
    if how == "trim":
        stream.synchronize()
