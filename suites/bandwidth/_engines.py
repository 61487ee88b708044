"""Three ways to copy within a device, over size, over the number of multiprocessors, and beside a matrix product.

load-store: a kernel whose threads load and store 16 bytes each. memcpy: the runtime's copy, which the
driver gives to whom it likes. async-copy (since sm_80) and bulk-copy (since sm_90): kernels that load
past the registers into shared memory; of the last, one thread a block starts every copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Bench, Skip, Stage, Task, Work

from ._stream import kernel, memcpy, memory_limit
from ._words import Words, blocks

_SOURCE = "engines.cu"
_SPARE_BYTES = 2**26
_THREADS = 128  # as THREADS in engines.cu
_ASYNC_STAGES = 8  # as STAGES there
_LANE_BYTES = 16
_RESIDENT_THREADS = 1024  # a block that has its multiprocessor to itself
# The best of an H200 at 256 MiB: threads a block and blocks on a multiprocessor; chunks of a bulk copy and their bytes,
# in three blocks on a multiprocessor, or in one that has it to itself.
_ASYNC_THREADS, _ASYNC_BLOCKS = 128, 4
_BULK_THREADS, _BULK_BLOCKS = 32, 3
_CHUNK_BYTES, _CHUNKS = 2**12, 8
_RESIDENT_CHUNK_BYTES, _RESIDENT_CHUNKS = 2**13, 16
_LEAST_CHUNK_BYTES = 2**9
_FEATURES = {"async-copy": "async_copy", "bulk-copy": "bulk_copy"}

Call = Callable[[], object]


def require(bench: Bench, engine: str) -> None:
    """Raises Skip where the device has no such engine."""
    if not bench.traits.is_gpu:
        raise Skip("needs a GPU")
    feature = _FEATURES.get(engine)
    if feature and feature not in bench.traits.features:
        raise Skip(f"{bench.traits.arch} has no {engine}: the feature {feature} is not there")


class Copies:
    """A copy of `size_bytes` within a device and its check; `on` gives the call of an engine."""

    def __init__(self, bench: Bench, size_bytes: int) -> None:
        bench.need(2 * size_bytes + _SPARE_BYTES)
        self._bench = bench
        self._words = Words(bench, size_bytes)
        self._source = self._words.array
        self._target = bench.xp.zeros(size_bytes, np.uint8)
        self.work = Work(moved=2 * size_bytes, payload=size_bytes)
        self.check = self._words.verifier(self._target)

    def poison(self) -> None:
        """Spoil the target."""
        self._target.fill(0)

    def on(self, engine: str, units: int = 0) -> Call:
        """The copy by an engine; by so many multiprocessors, each given to one block, where `units` is not 0."""
        if engine == "memcpy":
            return lambda: self._bench.device.copy(self._target, self._source)
        if engine == "load-store":
            return self._load_store(units)
        return self._async_copy(units) if engine == "async-copy" else self._bulk_copy(units)

    def _launch(self, name: str, grid: int, block: int, shared_bytes: int, *more: Any) -> Call:
        launch = self._bench.kernel("bulk_copy.cu" if name == "bulk_copy" else _SOURCE, name)
        args = (self._target, self._source, np.uint64(self._target.nbytes), *more)
        return lambda: launch((grid,), (block,), args, shared_bytes)

    def _load_store(self, units: int) -> Call:
        if not units:
            return self._launch("load_store", blocks(self._target.nbytes // _LANE_BYTES, _THREADS)[0], _THREADS, 0)
        return self._launch("load_store_resident", units, _RESIDENT_THREADS, self._more_than_half())

    def _more_than_half(self) -> int:
        """Shared memory that leaves no room for a second block on a multiprocessor."""
        return self._bench.traits.max_shared_bytes // 2 + 1024

    def _async_copy(self, units: int) -> Call:
        if units:
            most = self._bench.traits.max_shared_bytes // (_LANE_BYTES * _ASYNC_STAGES)
            threads = min(_RESIDENT_THREADS, 1 << most.bit_length() - 1)
            ring = max(threads * _LANE_BYTES * _ASYNC_STAGES, self._more_than_half())
            return self._launch("async_copy", units, threads, ring)
        covering = blocks(self._target.nbytes // _LANE_BYTES, _ASYNC_THREADS)[0]
        grid = min(covering, self._units() * _ASYNC_BLOCKS)
        return self._launch("async_copy", grid, _ASYNC_THREADS, _ASYNC_THREADS * _LANE_BYTES * _ASYNC_STAGES)

    def _bulk_copy(self, units: int) -> Call:
        if units:
            ring = max(_RESIDENT_CHUNK_BYTES * _RESIDENT_CHUNKS, self._more_than_half())
            layout = np.uint32(_RESIDENT_CHUNK_BYTES), np.uint32(_RESIDENT_CHUNKS)
            return self._launch("bulk_copy", units, _BULK_THREADS, ring, *layout)
        grid = self._units() * _BULK_BLOCKS
        chunk = -(-self._target.nbytes // grid // _LANE_BYTES) * _LANE_BYTES  # small copies are spread too
        chunk = min(max(chunk, _LEAST_CHUNK_BYTES), _CHUNK_BYTES)
        return self._launch("bulk_copy", grid, _BULK_THREADS, chunk * _CHUNKS, np.uint32(chunk), np.uint32(_CHUNKS))

    def _units(self) -> int:
        return max(1, self._bench.target.device.units)


def device_copy(bench: Bench, engine: str, size_bytes: int) -> Task:
    """A copy by the whole device."""
    if not bench.traits.is_gpu:
        host = partial(kernel, name="copy") if engine == "load-store" else memcpy
        return host(bench, size_bytes=size_bytes, effort=POINT)
    require(bench, engine)
    copies = Copies(bench, size_bytes)
    stage = Stage(copies.on(engine), copies.work, "moved", memory_limit(bench, size_bytes), effort=POINT)
    return Task.of(stage, check=copies.check, poison=copies.poison)


def device_copy_on(bench: Bench, engine: str, units: int, size_bytes: int) -> Task:
    """A copy by so many multiprocessors."""
    require(bench, engine)
    copies = Copies(bench, size_bytes)
    stage = Stage(copies.on(engine, units), copies.work, "moved", memory_limit(bench, size_bytes), effort=POINT)
    return Task.of(stage, check=copies.check, poison=copies.poison)
