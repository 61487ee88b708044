"""Reads and writes of part of a line: words at a stride, and chunks in random order.

Payload counts the bytes that are asked for; the series `sectors` counts the same samples by the bytes of the
sectors that they lie in, each once: a sector is what memory is read and written by at the least.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpubench.api.suite import POINT, Bench, Observation, Observed, Skip, Stage, Task, Work, expect

from .._stream import NEEDS_NUMBA
from ._pattern import Pattern
from ._stream import memory_limit
from ._words import Words, blocks

_SOURCE = "access.cu"
_THREADS = 512  # a block, as THREADS in access.cu
_ACCESSES = 8  # reads a thread
_SPARE_BYTES = 2**26
_MOST_CHUNKS = 2**25  # in one call; on the host fewer, whose lines still are four caches of 32 MiB
_MOST_HOST_CHUNKS = 2**21
_WORD_BYTES = 4
_LANE_BYTES = 16  # a lane reads at the most
# NVIDIA: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory". AMD: the least request of the L2 to
# memory, "MI200 Performance Counters" (TCC_EA_RDREQ). The host: its line.
_SECTOR_BYTES = {"nvidia": 32, "amd": 64}
_HOST_SECTOR_BYTES = 64


def _sector_bytes(bench: Bench) -> int:
    return _SECTOR_BYTES.get(bench.traits.vendor, _HOST_SECTOR_BYTES)


def strided(bench: Bench, access: str, stride_bytes: int, size_bytes: int) -> Task:
    """Words of 4 bytes at a stride, over an array of `size_bytes`."""
    count, sector = size_bytes // stride_bytes, _sector_bytes(bench)
    stride = np.uint64(stride_bytes // _WORD_BYTES)
    moved = count * sector if stride_bytes > sector else size_bytes
    pattern = Pattern("strided_4", count, (stride,), count * _WORD_BYTES, moved)
    return _task(bench, access, pattern, size_bytes)


def random(bench: Bench, access: str, chunk_bytes: int, size_bytes: int) -> Task:
    """Chunks in random order, each once, of an array of `size_bytes`: neighbouring lanes share a chunk."""
    width = min(chunk_bytes, _LANE_BYTES) if bench.traits.is_gpu else _WORD_BYTES
    most = _MOST_CHUNKS if bench.traits.is_gpu else _MOST_HOST_CHUNKS
    shift, bits = (chunk_bytes // width).bit_length() - 1, (size_bytes // chunk_bytes).bit_length() - 1
    chunks = min(2**bits, most)
    turn = np.uint32(bench.rng.integers(2**32))
    args = (np.uint32(bits), np.uint32(shift), turn)
    moved = chunks * max(chunk_bytes, _sector_bytes(bench))
    pattern = Pattern(f"random_{width}", chunks << shift, args, chunks * chunk_bytes, moved)
    return _task(bench, access, pattern, size_bytes)


def _task(bench: Bench, access: str, pattern: Pattern, size_bytes: int) -> Task:
    bench.need(size_bytes + _SPARE_BYTES)
    if bench.traits.is_gpu:
        call, check, poison = (_reads if access == "read" else _writes)(bench, pattern, size_bytes)
    elif bench.traits.kernels == "numba":
        from . import _host

        call, check, poison = _host.accesses(bench, access, pattern, size_bytes)
    else:
        raise Skip(NEEDS_NUMBA)
    used = {"used": Observed(pattern.payload / pattern.moved, "", "more")}

    def checked() -> Observation:
        check()
        return used

    asked, sectors = (Work(payload=nbytes) for nbytes in (pattern.payload, pattern.moved))
    limit = memory_limit(bench, size_bytes)
    stage = Stage(call, asked, "payload", limit, effort=POINT, also={"sectors": sectors})
    return Task.of(stage, check=checked, poison=poison)


_Built = tuple[Callable[[], None], Callable[[], None], Callable[[], None]]  # call, check, poison


def _reads(bench: Bench, pattern: Pattern, size_bytes: int) -> _Built:
    words = Words(bench, size_bytes)
    grid = blocks(pattern.count, _THREADS * _ACCESSES)
    parts, expected = (bench.xp.zeros(grid, np.uint64) for _ in range(2))
    count = np.uint64(pattern.count)
    kernel, again = (bench.kernel(_SOURCE, f"{pattern.name}_{what}", WRITES=0) for what in ("read", "expected"))

    def check() -> None:
        again(grid, (_THREADS,), (words.seed, count, expected, *pattern.args))
        wrong = np.count_nonzero(bench.device.to_host(parts) != bench.device.to_host(expected))
        expect(wrong == 0, f"{wrong} of {grid[0]} partial results are wrong")

    args = (words.array, count, parts, *pattern.args)
    return lambda: kernel(grid, (_THREADS,), args), check, lambda: parts.fill(0)


def _writes(bench: Bench, pattern: Pattern, size_bytes: int) -> _Built:
    array, wrong = bench.xp.zeros(size_bytes, np.uint8), bench.xp.zeros(1, np.uint64)
    grid, count = blocks(pattern.count, _THREADS), np.uint64(pattern.count)
    key = np.uint32(bench.rng.integers(2**32, size=2)[1])
    kernel, again = (bench.kernel(_SOURCE, f"{pattern.name}_{what}", WRITES=1) for what in ("write", "mistakes"))

    def check() -> None:
        wrong.fill(0)
        again(grid, (_THREADS,), (array, count, key, wrong, *pattern.args))
        found = int(bench.device.to_host(wrong)[0])
        expect(found == 0, f"{found} of {pattern.count} words are wrong")

    args = (array, count, key, *pattern.args)
    return lambda: kernel(grid, (_THREADS,), args), check, lambda: array.fill(0)
