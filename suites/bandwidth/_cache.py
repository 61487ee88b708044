"""Measure the bandwidth of caches, and of a GPU's shared memory, by many passes over a working set."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._checks import CheckedCall, expect_equal, expect_no_mistakes
from .._stream import Call, need_gpu, need_numba
from ._sizes import WIDTHS, cache_bytes, log_curve, memory_limit, smallest_in_memory
from ._words import expect_words, random_words

_SOURCE = "cache.cu"
_THREADS = 256  # per block, as THREADS in cache.cu
_VECTOR_BYTES = 16
_LEAST_TILE, _MOST_TILE = 1024, 4096  # in vectors: one batch of loads per block, and 64 KiB
_LEAST_TILES = 64  # with fewer tiles, blocks of one compute unit read the same tile at once and their loads are merged
_LAUNCHED_BLOCKS = 128  # per compute unit: each is followed by a new one
_PASSED_BYTES = 2**32  # bytes that one call moves, so that its launch time is negligible
_SPARE_BYTES = 2**26
# a working set that is read repeatedly must be this many times larger than an array that is read once
_SET_OVER_ARRAY = 4

_TURNS, _SHARED_THREADS = 4, 1024  # as in cache.cu
_SHARED_BYTES = 2**26  # bytes that one block moves in one call

topic = gb.Topic(
    views=[
        log_curve("Cache bandwidth by working set", ("working_set",), "size_bytes", by=("kernel",)),
        gb.View("bars", "Shared memory bandwidth", ("shared",), series="hot"),
    ]
)


def _set_sizes(target: gb.Target) -> Any:
    """Return the axis of sizes of the working set in bytes."""
    if target.is_host:
        return _host_set_sizes(target)
    half = (cache_bytes(target) // 2).bit_length() - 1
    largest = (_SET_OVER_ARRAY * smallest_in_memory(target)).bit_length() - 1
    return gb.points(
        (2 ** (half - 2), 2**half, 2 ** (half + 1), 2**largest), (2**half,), gb.powers_of_two(20, largest + 1)
    )


def _host_set_sizes(target: gb.Target) -> Any:
    """Return the axis of set sizes in bytes on a host: about half of each cache, and one size that memory serves."""
    halves, details, cores = [], dict(target.device.details), max(1, target.device.units)
    for level, count in (("cache.l1", cores), ("cache.l2", cores), ("cache.l3", 1)):
        nbytes = int(details.get(level, 0)) * count // 2
        if nbytes:
            halves.append(1 << nbytes.bit_length() - 1)
    rising = tuple(size for index, size in enumerate(halves) if size > max(halves[:index], default=0))
    memory = smallest_in_memory(target)
    return gb.points((*rising, memory), rising[:1] or (2**20,), gb.powers_of_two(14, memory.bit_length() - 1))


@topic.case(
    kernel=lambda target: gb.points(("read",) if target.is_host else ("read", "copy"), full=("read", "write", "copy")),
    size_bytes=_set_sizes,
    version=2,
)
def working_set(bench: gb.Bench, kernel: str, size_bytes: int) -> gb.Task:
    """Bandwidth of a cache or of memory, by the size of the working set: each call passes over the set many times.

    `kernel` reads the set, writes it, or copies one half of it to the other. On a GPU the loads bypass the first cache,
    so that small sets show the L2 cache."""
    bench.need(size_bytes + _SPARE_BYTES)
    if bench.traits.is_gpu:
        return _gpu_task(bench, kernel, size_bytes)
    need_numba(bench)
    from . import _host

    return _host.working_set(bench, kernel, size_bytes)


def _gpu_task(bench: gb.Bench, kernel: str, size_bytes: int) -> gb.Task:
    """Return the task of the kernel `read`, `write` or `copy`, which passes over a set of `size_bytes` on a GPU."""
    cache, arrays = cache_bytes(bench.target), 2 if kernel == "copy" else 1  # a copy has two arrays of half the set
    limit = "l2" if 2 * size_bytes <= cache else memory_limit(bench.target, size_bytes)
    passes = _GpuPasses(bench, size_bytes // arrays, size_bytes <= cache)
    checked = {"read": passes.read, "write": passes.write, "copy": passes.copy}[kernel]()
    work = gb.Work(moved=arrays * passes.nbytes, payload=passes.nbytes)
    return gb.Task.of(checked.stage(work, "moved", limit), check=checked.check)


def layout(target: gb.Target, size_bytes: int, cached: bool) -> tuple[int, int, int, int, int]:
    """Return the launch of passes over a set of `size_bytes` on a GPU.

    `cached` says that a cache holds the set. Without one, all blocks are resident at once."""
    resident = target.device.architecture.resident_threads // _THREADS
    vectors = size_bytes // _VECTOR_BYTES
    tile = min(max(vectors // _LEAST_TILES, _LEAST_TILE), _MOST_TILE) if cached else _LEAST_TILE
    blocks = max(1, target.device.units) * (_LAUNCHED_BLOCKS if cached else resident)
    turns = -(-max(vectors, _PASSED_BYTES // _VECTOR_BYTES) // (blocks * tile))
    return vectors, tile, turns, blocks - 1, blocks


class _GpuPasses:
    """Passes over one array of `size_bytes` on a GPU, tile by tile; `cached` says that a cache holds the whole set.

    `nbytes` is the number of bytes that one call passes over."""

    def __init__(self, bench: gb.Bench, size_bytes: int, cached: bool) -> None:
        self._bench = bench
        *numbers, self._grid = layout(bench.target, size_bytes, cached)
        _, tile, turns, _ = numbers
        self._layout = tuple(np.uint32(number) for number in numbers)
        self._twice = (*self._layout[:2], np.uint32(2 * turns), self._layout[3])
        self.nbytes = self._grid * turns * tile * _VECTOR_BYTES
        self._words = random_words(bench, size_bytes)
        self._redraw = partial(self._words.redraw, self._words.array)

    def _launch(self, name: str, *args: Any) -> Call:
        """Return the launch of the kernel `name` of cache.cu with these arguments, on the grid of the passes."""
        kernel = self._bench.kernel(_SOURCE, name)
        return lambda: kernel((self._grid,), (_THREADS,), args)

    def read(self) -> CheckedCall:
        """Return the passes as loads that bypass the first cache, with their check."""
        parts, expected = (self._bench.xp.zeros(self._grid, np.uint64) for _ in range(2))
        compute, to_host = self._bench.kernel(_SOURCE, "cached_read_expected"), self._bench.device.to_host

        def check() -> None:
            compute((self._grid,), (_THREADS,), (np.uint64(self._words.seed), *self._layout, expected))
            expect_equal(to_host(parts), to_host(expected), "partial results")

        once, twice = (
            self._launch("cached_read", self._words.array, *layout, parts) for layout in (self._layout, self._twice)
        )
        return CheckedCall(once, check, (parts,), inputs=self._redraw, doubled=twice)

    def write(self) -> CheckedCall:
        array, key = self._words.array, np.uint32(self._bench.rng.integers(2**32))
        mistakes, vectors = self._bench.xp.zeros(1, np.uint64), self._layout[0]
        count = self._launch("cached_mistakes", array, vectors, key, mistakes)
        check = partial(expect_no_mistakes, self._bench, count, mistakes, int(vectors), "vectors")
        once, twice = (self._launch("cached_write", array, *layout, key) for layout in (self._layout, self._twice))
        return CheckedCall(once, check, (array,), doubled=twice)

    def copy(self) -> CheckedCall:
        """Return the passes as copies of the array to a second one of the same size, with their check."""
        target = self._bench.xp.zeros_like(self._words.array)
        once, twice = (
            self._launch("cached_copy", target, self._words.array, *layout) for layout in (self._layout, self._twice)
        )
        check = partial(expect_words, self._words, target)
        return CheckedCall(once, check, (target,), inputs=self._redraw, doubled=twice)


@topic.case(access=("read", "write"), width_bytes=WIDTHS, when=gb.on_gpu)
def shared(bench: gb.Bench, access: str, width_bytes: int) -> gb.Task:
    """Bandwidth of the shared memory of all compute units together, without bank conflicts.

    Each thread reads or writes (`access`) `width_bytes` at once. `per_clock` is the median over the compute units of
    the bytes that one moves per clock."""
    need_gpu(bench)
    grid, block_bytes = max(1, bench.target.device.units), _SHARED_THREADS * _TURNS * width_bytes
    passes = _SHARED_BYTES // block_bytes
    drawn = bench.rng.integers(2**32, size=block_bytes // 4, dtype=np.uint32)
    parts = bench.xp.zeros((grid, _SHARED_THREADS), np.uint64)
    cycles = bench.xp.zeros(grid, np.uint64)
    kernel = bench.kernel(_SOURCE, f"shared_{access}_{width_bytes}")
    data = bench.xp.array(drawn)

    def redraw() -> None:
        """Turn the order of the words round."""
        drawn[:] = drawn[::-1]
        data[:] = bench.xp.asarray(drawn)

    def per_clock() -> gb.Observation:
        """Return the median over all compute units of the bytes per clock in the last call, by their own clocks."""
        clocks = float(np.median(bench.device.to_host(cycles)))
        return {"per_clock": gb.Observed(passes * block_bytes / clocks, "B/clock", "more")}

    def call(count: int = passes) -> None:
        kernel((grid,), (_SHARED_THREADS,), (data, np.uint32(count), np.uint32(0), parts, cycles), block_bytes)

    def check() -> None:
        expect_equal(bench.device.to_host(parts), _expected(access, drawn, width_bytes, passes), "threads' results")

    work = gb.Work(moved=grid * passes * block_bytes, payload=grid * passes * block_bytes)
    checked = CheckedCall(call, check, (parts,), inputs=redraw, doubled=partial(call, 2 * passes))
    return gb.Task.of(replace(checked.stage(work, "moved", "shared"), probe=per_clock), check=check)


def _expected(access: str, drawn: npt.NDArray[np.uint32], width_bytes: int, passes: int) -> npt.NDArray[np.uint64]:
    """Return the word that each thread of `shared` should leave for `access`: uint64, shape (1024,)."""
    lanes = drawn.reshape(_TURNS, _SHARED_THREADS, width_bytes // 4)
    if access == "read":
        factor = (pow(5, passes, 2**34) - 1) // 4 % 2**32  # `passes` times x = 5·x + 1, from 0
        lanes = (lanes.astype(np.uint64) * np.uint64(factor)).astype(np.uint32)
    else:
        lanes = lanes[:, np.arange(_SHARED_THREADS) ^ 1]
    bits = np.zeros(_SHARED_THREADS, np.uint64)
    for turn in lanes.astype(np.uint64):
        word = np.bitwise_xor.reduce([turn[:, lane] << np.uint64(32 * (lane % 2)) for lane in range(turn.shape[1])])
        bits = (bits << np.uint64(1) | bits >> np.uint64(63)) ^ word
    return bits
