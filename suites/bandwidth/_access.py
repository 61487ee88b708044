"""Measure reads and writes of parts of a cache line: words at a stride, and chunks in random order.

Payload counts the bytes that are asked for. The series `sectors` counts, of the same samples, the bytes of the
sectors that hold them, each sector once: memory is read and written by whole sectors."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import CheckedCall, expect_equal, expect_no_mistakes
from .._stream import need_numba
from ._pattern import ODD, AccessPattern
from ._sizes import log_curve, memory_limit, one_array_size
from ._words import grid_of, random_words

_SOURCE = "access.cu"
_THREADS = 512  # per block, as THREADS in access.cu
_READS_PER_THREAD = 8
_SAMPLED = 4096  # accesses whose words the host looks up
_SPARE_BYTES = 2**26
# chunks per call at most; the host uses fewer, whose lines still occupy four times a cache of 32 MiB
_MOST_CHUNKS = 2**25
_MOST_HOST_CHUNKS = 2**21
_WORD_BYTES = 4
_LANE_BYTES = 16  # the widest load of a lane
# The smallest transfer from memory. NVIDIA: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory". AMD:
# the smallest request of the L2 to memory, "MI200 Performance Counters" (TCC_EA_RDREQ). Host: a cache line.
_SECTOR_BYTES = {"nvidia": 32, "amd": 64}
_HOST_SECTOR_BYTES = 64

_ACCESSES = gb.points(("read",), full=("read", "write"))
_STRIDES = gb.points((4, 32, 128), (32,), gb.powers_of_two(2, 12))  # between words of 4 bytes, up to one word per page
_CHUNKS = gb.points((4, 32, 128), (32,), gb.powers_of_two(2, 7))  # from a word to a line

topic = gb.Topic(
    views=[
        log_curve("Strided access bandwidth by stride", ("strided",), "stride_bytes", by=("access",)),
        log_curve("Random access bandwidth by chunk size", ("random",), "chunk_bytes", by=("access",)),
    ]
)


@topic.case(access=_ACCESSES, stride_bytes=_STRIDES, size_bytes=one_array_size)
def strided(bench: gb.Bench, access: str, stride_bytes: int, size_bytes: int) -> gb.Task:
    """Bandwidth of words of 4 bytes, read or written (`access`) every `stride_bytes` of an array of `size_bytes`.

    The rate counts the words alone (payload). The series `sectors` counts the memory sectors that hold the words;
    `used` is the words' share of the bytes of these sectors."""
    count, sector = size_bytes // stride_bytes, _sector_bytes(bench)
    args = (np.uint64(stride_bytes // _WORD_BYTES),)
    moved = count * sector if stride_bytes > sector else size_bytes
    pattern = AccessPattern("strided", _WORD_BYTES, args, count, count * _WORD_BYTES, moved, size_bytes)
    return _task(bench, access, pattern)


@topic.case(access=_ACCESSES, chunk_bytes=_CHUNKS, size_bytes=one_array_size)
def random(bench: gb.Bench, access: str, chunk_bytes: int, size_bytes: int) -> gb.Task:
    """Bandwidth of chunks of `chunk_bytes` that are read or written (`access`) in random order, each once.

    The chunks lie in an array of `size_bytes`, and the rate counts them alone (payload). The series `sectors` counts
    the memory sectors that hold the chunks; `used` is the chunks' share of the bytes of these sectors."""
    width = min(chunk_bytes, _LANE_BYTES) if bench.traits.is_gpu else _WORD_BYTES  # neighbouring lanes share a chunk
    most = _MOST_CHUNKS if bench.traits.is_gpu else _MOST_HOST_CHUNKS
    shift, bits = (chunk_bytes // width).bit_length() - 1, (size_bytes // chunk_bytes).bit_length() - 1
    chunks = min(2**bits, most)
    args = (np.uint32(bits), np.uint32(shift), np.uint32(bench.rng.integers(2**32)))
    moved = chunks * max(chunk_bytes, _sector_bytes(bench))
    pattern = AccessPattern("random", width, args, chunks << shift, chunks * chunk_bytes, moved, size_bytes)
    return _task(bench, access, pattern)


def _sector_bytes(bench: gb.Bench) -> int:
    """Return the bytes of the smallest unit that memory reads or writes."""
    return _SECTOR_BYTES.get(bench.traits.vendor, _HOST_SECTOR_BYTES)


def _task(bench: gb.Bench, access: str, pattern: AccessPattern) -> gb.Task:
    """Return the task that reads or writes (`access`: `read` or `write`) the places of a pattern."""
    bench.need(pattern.size_bytes + _SPARE_BYTES)
    if bench.traits.is_gpu:
        accesses = _prepare_reads(bench, pattern) if access == "read" else _prepare_writes(bench, pattern)
    else:
        need_numba(bench)
        from . import _host

        accesses = _host.accesses(bench, access, pattern)

    def check() -> gb.Observation:
        accesses.check()
        return {"used": gb.Observed(pattern.payload / pattern.moved, "", "more")}

    work, also = gb.Work(payload=pattern.payload), {"sectors": gb.Work(payload=pattern.moved)}
    stage = accesses.stage(work, "payload", memory_limit(bench.target, pattern.size_bytes))
    return gb.Task.of(replace(stage, also=also), check=check)


def _prepare_reads(bench: gb.Bench, pattern: AccessPattern) -> CheckedCall:
    data = random_words(bench, pattern.size_bytes)
    grid, count = grid_of(pattern.count, _THREADS * _READS_PER_THREAD), np.uint64(pattern.count)
    parts, expected = (bench.xp.zeros(grid, np.uint64) for _ in range(2))
    name, to_host = f"{pattern.order}_{pattern.width_bytes}", bench.device.to_host
    read, compute = (bench.kernel(_SOURCE, f"{name}_{operation}", WRITES=0) for operation in ("read", "expected"))
    args, rng = (data.array, count, parts, *pattern.args), bench.rng

    def check() -> None:
        """Compare the blocks with a kernel that has the same order, and one of them with the order of the host."""
        compute(grid, (_THREADS,), (np.uint64(data.seed), count, expected, *pattern.args))
        read_parts = to_host(parts)
        expect_equal(read_parts, to_host(expected), "partial results")
        block = int(rng.integers(grid[0]))
        accesses = np.arange(_THREADS)[:, None] + np.arange(block, -(-pattern.count // _THREADS), grid[0]) * _THREADS
        by_host = np.bitwise_xor.reduce(_words_at(bench, data.array, pattern, accesses[accesses < pattern.count]), None)
        gb.expect(by_host == read_parts[block], f"block {block} read other words")

    return CheckedCall(lambda: read(grid, (_THREADS,), args), check, (parts,), inputs=partial(data.redraw, data.array))


def _prepare_writes(bench: gb.Bench, pattern: AccessPattern) -> CheckedCall:
    array, mistakes = bench.xp.zeros(pattern.size_bytes, np.uint8), bench.xp.zeros(1, np.uint64)
    grid, count = grid_of(pattern.count, _THREADS), np.uint64(pattern.count)
    key = np.uint32(bench.rng.integers(2**32, size=2)[1])
    name = f"{pattern.order}_{pattern.width_bytes}"
    write, compare = (bench.kernel(_SOURCE, f"{name}_{operation}", WRITES=1) for operation in ("write", "mistakes"))
    args, rng = (array, count, key, *pattern.args), bench.rng

    def check() -> None:
        wrong_args = (array, count, key, mistakes, *pattern.args)
        expect_no_mistakes(bench, lambda: compare(grid, (_THREADS,), wrong_args), mistakes, pattern.count, "words")
        accesses = rng.integers(pattern.count, size=_SAMPLED)  # by the host's own order
        written = _words_at(bench, array, pattern, accesses)[:, 0].astype(np.uint32)
        made = pattern.places(accesses.astype(np.uint64)).astype(np.uint32) * np.uint32(ODD[0]) ^ key
        expect_equal(written, made, "sampled words")

    return CheckedCall(lambda: write(grid, (_THREADS,), args), check, (array,))


def _words_at(bench: gb.Bench, array: Any, pattern: AccessPattern, accesses: Any) -> Any:
    """Return the words of these accesses, taken from an array by the host's own order: NumPy, a row for each."""
    rows = array.view(np.uint32 if pattern.width_bytes == _WORD_BYTES else np.uint64)
    rows = rows.reshape(-1, max(1, pattern.width_bytes // 8))
    places = pattern.places(accesses.astype(np.uint64)).astype(np.int64)
    return bench.device.to_host(rows[bench.xp.asarray(places)])
