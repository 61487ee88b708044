"""Copy between two memories that one process reaches, in each way that the suites of links compare."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpubench.api import suite as gb

WAYS = ("pull", "push", "load", "store")
# For each engine, the copy method that reads the peer's memory and the one that writes it.
READING = {"engine": "pull", "kernel": "load", "bulk": "bulk-load"}
WRITING = {"engine": "push", "kernel": "store", "bulk": "bulk-store"}
ARRAYS = 3  # arrays of a case: the shared one, a private one, and on the host the pattern that it is compared with
_THREADS = 256
_FLIGHT = 4  # loads in flight per thread, as in copies.cu
_MOST_BLOCKS = 2**16  # with one thread per four vectors of 1 GiB; on an H200 this is faster than fewer blocks that loop
_VECTOR_BYTES = 16
_WORD_BYTES = 8
_RESIDENT_THREADS = 1024  # threads of a block that has its compute unit to itself
# A ring of bulk copies: the number of chunks and their size, for three blocks on each SM, or for one block that has the
# SM to itself. Three blocks have 96 KiB in flight on an SM, 12.7 MB on an H200: 450 GB/s over 1 µs of NVLink need 0.45
# MB.
_BULK_THREADS, _BULK_BLOCKS = 32, 3
_CHUNK_BYTES, _LEAST_CHUNK_BYTES, _CHUNKS = 2**12, 2**9, 8
_RESIDENT_CHUNK_BYTES, _RESIDENT_CHUNKS = 2**13, 16  # fewer if they do not fit: 12 in 99 KiB (sm_120)
_BARRIER_BYTES = 16 * 8  # `loaded` in bulk_copy.cu, in the same shared memory

Call = Callable[[], object]


def require(bench: gb.Bench, way: str) -> None:
    """Raise Skip if the device cannot copy in the way `way`, one of READING or WRITING."""
    if way in (READING["bulk"], WRITING["bulk"]) and "bulk_copy" not in bench.traits.features:
        raise gb.Skip(
            f"{bench.traits.arch} does not support bulk copies (TMA); they need an NVIDIA GPU of sm_90 or newer"
        )


def reads(way: str) -> bool:
    """Return whether a copy of that way reads the far memory; else it writes it."""
    return way in READING.values()


def copier(bench: gb.Bench, target: Any, source: Any, units: int = 0) -> Call:
    """Return a function that copies `source` to `target` by a kernel; on the host a loop over all threads copies.

    Both are uint8 arrays of the same size, a multiple of 8 bytes."""
    nbytes = int(source.size)
    if not bench.traits.is_gpu:
        from . import _host

        count = nbytes // _WORD_BYTES
        a, b = target.view(np.uint64), source.view(np.uint64)
        return lambda: _host.KERNELS["copy"](a, b, count)
    kernel = bench.kernel("copies.cu", "copy")
    vectors = nbytes // _VECTOR_BYTES
    rest = nbytes % _VECTOR_BYTES // _WORD_BYTES
    args = (source, target, np.uint64(vectors), np.uint64(rest))
    if units:
        return lambda: kernel((units,), (_RESIDENT_THREADS,), args, _more_than_half(bench))
    blocks = max(1, min(-(-vectors // (_THREADS * _FLIGHT)), _MOST_BLOCKS))
    return lambda: kernel((blocks,), (_THREADS,), args)


def bulk_copier(bench: gb.Bench, target: Any, source: Any, units: int = 0) -> Call:
    """Return a function that queues a copy of `source` to `target` by bulk copies (TMA) through shared memory.

    Both are device arrays of the same size in bytes, and the device must support bulk copies (see `require`)."""
    nbytes = int(source.nbytes)
    kernel = bench.kernel("bulk_copy.cu", "bulk_copy")
    if units:
        room = bench.traits.max_shared_bytes - _BARRIER_BYTES
        blocks, chunk, chunks = units, _RESIDENT_CHUNK_BYTES, min(_RESIDENT_CHUNKS, room // _RESIDENT_CHUNK_BYTES)
        ring_bytes = max(chunk * chunks, _more_than_half(bench))
    else:
        blocks, chunks = max(1, bench.target.device.units) * _BULK_BLOCKS, _CHUNKS
        # spread over all blocks, even if the copy is small
        share = -(-nbytes // blocks // _VECTOR_BYTES) * _VECTOR_BYTES
        chunk = min(max(share, _LEAST_CHUNK_BYTES), _CHUNK_BYTES)
        ring_bytes = chunk * chunks
    args = (target, source, np.uint64(nbytes), np.uint32(chunk), np.uint32(chunks))
    return lambda: kernel((blocks,), (_BULK_THREADS,), args, ring_bytes)


def _more_than_half(bench: gb.Bench) -> int:
    """Return the bytes of shared memory with which a block leaves no room for a second block on a compute unit."""
    return bench.traits.max_shared_bytes // 2 + 1024


def call_of(bench: gb.Bench, way: str, near: Any, far: Any, units: int = 0) -> Call:
    """Return a function that copies between `near`, this process's memory, and `far`, another's, in the way `way`.

    `way` is a value of READING, which copies from `far` to `near`, or of WRITING, which copies from `near` to `far`."""
    require(bench, way)
    target, source = (near, far) if reads(way) else (far, near)
    if way in ("load", "store"):
        return copier(bench, target, source, units)
    if way in ("bulk-load", "bulk-store"):
        return bulk_copier(bench, target, source, units)
    return lambda: bench.device.copy(target, source)
