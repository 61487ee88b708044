"""Measure bandwidth and latency through memory of many handles, and bandwidth of memory that the GPU may compress."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .. import latency
from .._stream import Drawn, open_stream
from ..latency._ring import GpuRing
from ._space import PAGE_BYTES, GpuSpace, MappedRange, array_at
from ._steps import PIECES, piece_bytes_of

_ARRAYS = 3
_FACTOR = 0.5  # a power of two, so that a triad rounds only once
_CACHES = 4  # an array of this many times the last-level cache is read from memory
_STEPS = 2**12
_REPEATS = 64  # words after which the data repeat
_COPIED = 2  # arrays of a copy

topic = gb.Topic(
    views=[
        gb.View("bars", "Bandwidth through memory of many handles", ("mapped",), by=("access",), series="triad.hot"),
        gb.View("bars", "Latency through memory of many handles", ("mapped",), by=("access",), series="chase.hot"),
        gb.View("bars", "Bandwidth of compressible memory by data", ("compressible",)),
    ]
)


def _memory(bench: gb.Bench, piece: str, nbytes: int) -> tuple[Any, Callable[[], None]]:
    """Return memory of the device (uint8, shape (nbytes,)) and the call that releases it."""
    if piece == "malloc":
        return bench.xp.empty(nbytes, bench.xp.uint8), lambda: None
    mapped = MappedRange.filled(GpuSpace(bench), nbytes, piece_bytes_of(piece, nbytes))

    def close() -> None:
        bench.device.synchronize()
        mapped.close()

    return array_at(bench, mapped.address, nbytes), close


@topic.case(
    when=gb.on_gpu,
    piece=gb.points((), smoke=("malloc", "2MiB"), full=("malloc", *PIECES)),
    size_bytes=gb.points((2**28,), smoke=(2**24,), full=(2**28, 2**32)),
    access=gb.points(("triad",), full=("triad", "chase")),
)
def mapped(bench: gb.Bench, piece: str, size_bytes: int, access: str) -> gb.Task:
    """Triad or dependent loads in memory of many handles: bytes moved per second, or seconds per load.

    The memory is one allocation (`malloc`), or mapped from one handle for each piece. Triad moves 3 arrays of that
    size; the loads follow a ring of that size."""
    return _triad(bench, piece, size_bytes) if access == "triad" else _chase(bench, piece, size_bytes)


def _triad(bench: gb.Bench, piece: str, size_bytes: int) -> gb.Task:
    """Return the task of STREAM triad on three arrays of `size_bytes`."""
    stream = open_stream(bench, size_bytes, "float32", _ARRAYS)
    memory, close = _memory(bench, piece, _ARRAYS * size_bytes)
    a, b, c = (memory[start : start + size_bytes].view(np.float32) for start in range(0, memory.size, size_bytes))
    seeds = [np.uint64(seed) for seed in bench.rng.integers(2**64, size=2, dtype=np.uint64)]
    inputs = tuple(Drawn(array, seed) for array, seed in zip((b, c), seeds, strict=True))
    for drawn in inputs:
        stream.call("fill", drawn.array, stream.count, drawn.seed)()
    call = stream.call("triad", a, b, c, stream.count, stream.real(_FACTOR))
    limit = "dram" if _ARRAYS * size_bytes >= _CACHES * bench.target.device.cache_bytes else ""
    work = gb.Work(moved=_ARRAYS * size_bytes, flops=2 * a.size)
    stage = gb.Stage(call, work, "moved", limit, effort=gb.POINT, outputs=(a,))
    verify = stream.verifier(a, inputs, (0, 1, _FACTOR))
    return gb.Task({"triad": stage}, verify, close=close, notes=dict(stream.notes))


def _chase(bench: gb.Bench, piece: str, size_bytes: int) -> gb.Task:
    """Return the task of 4096 dependent loads around a ring of `size_bytes`."""
    bench.need(size_bytes + PAGE_BYTES)
    memory, close = _memory(bench, piece, size_bytes)
    # the kernel belongs to the suite latency
    ring = GpuRing.linked(replace(bench, package=latency.__name__), size_bytes, memory)
    bench.device.flush()
    walk = ring.walk(_STEPS, sweep=False)
    return gb.Task({"chase": walk.stage()}, walk.check, close=close)


@topic.case(
    memory=("plain", "compressible"),
    data=gb.points(("zeros", "random"), full=("zeros", "repeats", "random")),
    size_bytes=gb.points((2**28,), smoke=(2**24,), full=(2**28, 2**30)),
    when=lambda target: gb.on_gpu(target) and target.tier == "full",
)
def compressible(bench: gb.Bench, memory: str, data: str, size_bytes: int) -> gb.Task:
    """A kernel copies an array within memory that the GPU may compress, or within plain memory: 2 arrays moved.

    Compressible memory can save bandwidth, but never capacity. Skipped if the driver gives plain memory instead."""
    stream = open_stream(bench, size_bytes, "float32", _COPIED)
    space = GpuSpace(bench, is_compressible=memory == "compressible")
    pages = MappedRange.filled(space, _COPIED * size_bytes, _COPIED * size_bytes)
    if memory == "compressible" and not space.is_compressed(pages.physical[0]):
        pages.close()
        raise gb.Skip("the driver gives no compressible memory on this GPU")
    source, target = (array_at(bench, pages.address + start, size_bytes) for start in (0, size_bytes))
    elements = source.view(np.uint32)
    if data == "random":
        stream.call("fill", elements.view(np.float32), stream.count, np.uint64(bench.rng.integers(2**63)))()
    else:
        elements[:] = bench.xp.arange(elements.size, dtype=np.uint32) % _REPEATS if data == "repeats" else 0

    def check() -> None:
        wrong = int(bench.xp.count_nonzero(target.view(np.uint32) != elements))
        gb.expect(wrong == 0, f"{wrong} of {elements.size} words of the copy differ from their source")

    def close() -> None:
        bench.device.synchronize()
        pages.close()

    call = stream.call("copy", target.view(np.float32), source.view(np.float32), stream.count)
    limit = "dram" if memory == "plain" else ""  # a copy in compressed memory may move fewer bytes than it counts
    stage = gb.Stage(call, gb.Work(moved=_COPIED * size_bytes), "moved", limit, effort=gb.POINT, outputs=(target,))
    return gb.Task.of(stage, check=check, close=close)
