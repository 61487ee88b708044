"""Bandwidth of what is near: working sets that a cache holds, over many passes, and a GPU's shared memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import POINT, Bench, Observation, Observed, Skip, Stage, Task, Work, expect

from .._stream import NEEDS_NUMBA, Call
from ._points import cache_bytes
from ._stream import memory_limit
from ._words import Words

_SOURCE = "cache.cu"
_THREADS = 256  # a block, as THREADS in cache.cu
_VECTOR_BYTES = 16
_LEAST_TILE, _MOST_TILE = 1024, 4096  # vectors: a batch of a block's loads, and 64 KiB
_TILES = 64  # or more: with fewer, blocks of one multiprocessor meet at a tile, and their loads in flight are one
_RESIDENT, _COMING = 8, 128  # blocks of a multiprocessor in one call: all at a time, or a fresh one where one ends
_PASSED_BYTES = 2**32  # by one call, so that its launch does not show
_SPARE_BYTES = 2**26

_TURNS, _SHARED_THREADS = 4, 1024  # as in cache.cu
_SHARED_BYTES = 2**26  # by one block in one call

Check = Callable[[], Observation]


def working_set(bench: Bench, kernel: str, size_bytes: int) -> Task:
    """Passes over a working set of `size_bytes`, all in one call: two arrays of half of it for a copy."""
    bench.need(size_bytes + _SPARE_BYTES)
    if not bench.traits.is_gpu:
        return _on_host(bench, kernel, size_bytes)
    limit = "l2" if 2 * size_bytes <= cache_bytes(bench.target) else memory_limit(bench, size_bytes)
    sweep = _Sweep(bench, size_bytes // (2 if kernel == "copy" else 1), size_bytes <= cache_bytes(bench.target))
    call, check, poison = {"read": sweep.read, "write": sweep.write, "copy": sweep.copy}[kernel]()
    arrays = 2 if kernel == "copy" else 1
    work = Work(moved=arrays * sweep.nbytes, payload=sweep.nbytes)
    return Task.of(Stage(call, work, "moved", limit, effort=POINT), check=check, poison=poison)


def layout(units: int, size_bytes: int, cached: bool) -> tuple[int, int, int, int, int]:
    """Vectors of the set and of a tile, turns of a block, tiles from one turn to the next, and blocks.

    In a cache the order is free, and blocks that come and go over large tiles are fastest. Beyond it all blocks move
    on together by small tiles: no tile is met twice before all others were, or the cache would give what memory should.
    """
    vectors = size_bytes // _VECTOR_BYTES
    tile = min(max(vectors // _TILES, _LEAST_TILE), _MOST_TILE) if cached else _LEAST_TILE
    blocks = units * (_COMING if cached else _RESIDENT)
    turns = -(-max(vectors, _PASSED_BYTES // _VECTOR_BYTES) // (blocks * tile))
    return vectors, tile, turns, blocks - 1, blocks


class _Sweep:
    """Passes over one array, tile by tile."""

    def __init__(self, bench: Bench, size_bytes: int, cached: bool) -> None:
        self._bench = bench
        self._words = Words(bench, size_bytes)
        *numbers, self._grid = layout(max(1, bench.target.device.units), size_bytes, cached)
        _, tile, turns, _ = numbers
        self._layout = tuple(np.uint32(number) for number in numbers)
        self.nbytes = self._grid * turns * tile * _VECTOR_BYTES

    def _kernel(self, name: str, *args: Any) -> Call:
        kernel = self._bench.kernel(_SOURCE, name)
        return lambda: kernel((self._grid,), (_THREADS,), args)

    def read(self) -> tuple[Call, Check, Call]:
        """Loads past the first cache; one word a block is left."""
        parts, expected = (self._bench.xp.zeros(self._grid, np.uint64) for _ in range(2))
        again = self._kernel("cached_read_expected", self._words.seed, *self._layout, expected)

        def check() -> Observation:
            again()
            wrong = np.count_nonzero(self._bench.device.to_host(parts) != self._bench.device.to_host(expected))
            expect(wrong == 0, f"{wrong} of {self._grid} partial results are wrong")
            return {}

        call = self._kernel("cached_read", self._words.array, *self._layout, parts)
        return call, check, lambda: parts.fill(0)

    def write(self) -> tuple[Call, Check, Call]:
        """Stores of what is a function of the place, so that the order of passes is free."""
        array, key = self._words.array, np.uint32(self._bench.rng.integers(2**32))
        wrong = self._bench.xp.zeros(1, np.uint64)
        count = self._kernel("cached_mistakes", array, self._layout[0], key, wrong)

        def check() -> Observation:
            wrong.fill(0)
            count()
            found = int(self._bench.device.to_host(wrong)[0])
            expect(found == 0, f"{found} of {self._layout[0]} vectors are wrong")
            return {}

        return self._kernel("cached_write", array, *self._layout, key), check, lambda: array.fill(0)

    def copy(self) -> tuple[Call, Check, Call]:
        """From one array to another of the same size."""
        target = self._bench.xp.zeros_like(self._words.array)
        call = self._kernel("cached_copy", target, self._words.array, *self._layout)
        return call, self._words.verifier(target), lambda: target.fill(0)


def _on_host(bench: Bench, kernel: str, size_bytes: int) -> Task:
    """Every thread goes over a part of its own; a copy goes there and back, so that no pass is like the last."""
    if bench.traits.kernels != "numba":
        raise Skip(NEEDS_NUMBA)
    from . import _host

    return _host.working_set(bench, kernel, size_bytes)


def shared(bench: Bench, access: str, width_bytes: int) -> Task:
    """All multiprocessors read, or write, their shared memory; the device's clock gives bytes a clock."""
    if not bench.traits.is_gpu:
        raise Skip("needs a GPU's shared memory")
    grid, passes = max(1, bench.target.device.units), _SHARED_BYTES // (_SHARED_THREADS * _TURNS * width_bytes)
    block_bytes = _SHARED_THREADS * _TURNS * width_bytes
    words = bench.rng.integers(2**32, size=block_bytes // 4, dtype=np.uint32)
    parts = bench.xp.zeros((grid, _SHARED_THREADS), np.uint64)
    cycles = bench.xp.zeros(grid, np.uint64)
    kernel = bench.kernel(_SOURCE, f"shared_{access}_{width_bytes}")
    args = (bench.xp.asarray(words), np.uint32(passes), np.uint32(0), parts, cycles)
    expected = _expected(access, words, width_bytes, passes)

    def check() -> Observation:
        wrong = np.count_nonzero(bench.device.to_host(parts) != expected)
        expect(wrong == 0, f"{wrong} of {parts.size} threads have a wrong result")
        return {}

    stage = Stage(
        lambda: kernel((grid,), (_SHARED_THREADS,), args, block_bytes),
        Work(moved=grid * passes * block_bytes, payload=grid * passes * block_bytes),
        "moved",
        "shared",
        probe=partial(_per_clock, bench, cycles, passes * block_bytes),
        effort=POINT,
    )
    return Task.of(stage, check=check, poison=lambda: parts.fill(0))


def _per_clock(bench: Bench, cycles: Any, nbytes: int) -> Observation:
    """Bytes a clock that each multiprocessor moved in the last call, by its own clock: the median of them."""
    return {"per_clock": Observed(nbytes / float(np.median(bench.device.to_host(cycles))), "B/clock", "more")}


def _expected(access: str, words: npt.NDArray[np.uint32], width_bytes: int, passes: int) -> npt.NDArray[np.uint64]:
    """One word a thread, by the sums in closed form: x = 5·x + word, `passes` times from 0, modulo 2^32."""
    lanes = words.reshape(_TURNS, _SHARED_THREADS, width_bytes // 4)
    if access == "read":
        factor = sum(pow(5, power, 2**32) for power in range(passes)) % 2**32
        lanes = (lanes.astype(np.uint64) * np.uint64(factor)).astype(np.uint32)
    else:
        lanes = lanes[:, np.arange(_SHARED_THREADS) ^ 1]
    bits = np.zeros(_SHARED_THREADS, np.uint64)
    for turn in lanes.astype(np.uint64):
        word = np.bitwise_xor.reduce([turn[:, lane] << np.uint64(32 * (lane % 2)) for lane in range(turn.shape[1])])
        bits = (bits << np.uint64(1) | bits >> np.uint64(63)) ^ word
    return bits
