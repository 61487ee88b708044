"""Sustained bandwidth: STREAM kernels and copies in device memory, and the link to the host.

Counting is STREAM's: every array that the kernel names, once for each element read or written;
a processor's write-allocate traffic is not counted. Each kernel is one fused launch, with vector
loads of 16 bytes on a GPU and over all threads on the host. A figure is held against DRAM where
each array is at least four times the last-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import (
    Bench,
    Observation,
    Skip,
    Stage,
    Suite,
    Target,
    Task,
    View,
    Work,
    expect,
    points,
    powers_of_two,
    units,
)

from ._stream import Call, open_stream

_KERNELS = ("read", "write", "copy", "scale", "add", "triad", "dot", "memcpy")
_LINK = ("h2d", "d2h")

suite = Suite(
    "sustained bandwidth: STREAM kernels, device copies, host link",
    views=[
        View("bars", "Memory bandwidth", _KERNELS, series="hot"),
        View(
            "curve", "Memory bandwidth over array size", _KERNELS, "size_bytes", by=("dtype",), series="hot", log_x=True
        ),
        View("curve", "Host link over transfer size", _LINK, "size_bytes", by=("memory",), series="hot", log_x=True),
    ],
)

_FACTOR = 0.5  # a power of two: products are exact, so every result has one right value
_CACHES = 4  # an array this many times the last-level cache comes from memory
_UNKNOWN_CACHE = 2**25
_CACHED = 2**23  # both arrays of a copy fit the last-level cache of data-centre GPUs since the A100


def _least(target: Target) -> int:
    """The smallest power of two that is a memory figure on this device."""
    wanted = _CACHES * (target.device.cache_bytes or _UNKNOWN_CACHE)
    return 1 << (wanted - 1).bit_length()


def _fitting(target: Target, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of which three arrays leave room; the smallest in any case."""
    room = target.device.memory_bytes * 0.8 / 3
    return tuple(size for size in sizes if size <= room or not room) or sizes[:1]


def _sizes(target: Target) -> Any:
    least = _least(target)
    if target.is_host:
        return points(_fitting(target, (least,)), smoke=(2**24,), full=_fitting(target, (least, 4 * least)))
    quick = _fitting(target, (max(least, 2**30),))
    return points(quick, smoke=_fitting(target, (least,)), full=_fitting(target, powers_of_two(26, 32, 2)))


def _two_sizes(target: Target) -> Any:
    """On a GPU also 8 MiB, which a cache holds, and 4 GiB, the figure that a floor stands on, in `quick`."""
    found = _sizes(target)
    if target.is_host:
        return found
    return points(_fitting(target, (_CACHED, max(_least(target), 2**30), 2**32)), found.smoke, found.full)


def _copy_sizes(target: Target) -> Any:
    """On a GPU also a size that its last-level cache holds: hot, cold and rotated differ there."""
    found = _sizes(target)
    return found if target.is_host else points((_CACHED, *found.quick), found.smoke, (_CACHED, *found.full))


_DTYPES = points(("float32",), full=("float32", "float64"))


def _memory_stage(bench: Bench, call: Call, work: Work, size_bytes: int) -> Stage:
    """Hot and cold on a GPU; the host's arrays are four caches long, a flush would change nothing."""
    cached = size_bytes < _CACHES * (bench.target.device.cache_bytes or _UNKNOWN_CACHE)
    return Stage(call, work, "moved", "" if cached else "dram", ("hot", "cold") if bench.traits.is_gpu else ("hot",))


def _notes(bench: Bench, size_bytes: int, notes: Mapping[str, str]) -> Mapping[str, str]:
    cache_bytes = bench.target.device.cache_bytes or _UNKNOWN_CACHE
    if size_bytes >= _CACHES * cache_bytes:
        return notes
    return {**notes, "cache": f"arrays below {_CACHES} × the last-level cache of {units.size(cache_bytes)}"}


def _writing(
    bench: Bench,
    size_bytes: int,
    dtype: str,
    name: str,
    factors: tuple[float, float, float],
    scalars: tuple[float, ...] = (),
    flops: int = 0,
) -> Task:
    """A kernel that leaves a = k + kb·b + kc·c; factors are (k, kb, kc), flops those of an element."""
    reads = sum(factor != 0 for factor in factors[1:])
    stream = open_stream(bench, size_bytes, dtype, 1 + reads)
    a, inputs = stream.empty(), tuple(stream.drawn() for _ in range(reads))
    arrays = (drawn.array for drawn in inputs)
    call = stream.call(name, a, *arrays, stream.count, *(stream.real(scalar) for scalar in scalars))
    work = Work(moved=(1 + reads) * size_bytes, payload=size_bytes, flops=flops * float(stream.count))
    return Task.of(
        _memory_stage(bench, call, work, size_bytes),
        check=stream.verifier(a, inputs, factors),
        poison=stream.poison(a),
        notes=_notes(bench, size_bytes, stream.notes),
    )


@suite.case(size_bytes=_two_sizes, dtype=_DTYPES)
def read(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """The exclusive or of all words of an array: 1 array moved; one word a block is left, and checked."""
    stream = open_stream(bench, size_bytes, dtype, 1)
    b, parts = stream.drawn(), stream.partial(np.uint64)
    call = stream.call("read", b.array, stream.count, parts)

    def check() -> Observation:
        wrong = np.count_nonzero(bench.device.to_host(parts) != stream.expected_xor(b))
        expect(wrong == 0, f"{wrong} of {stream.parts} partial results are wrong")
        return {}

    return Task.of(
        _memory_stage(bench, call, Work(moved=size_bytes, payload=size_bytes), size_bytes),
        check=check,
        poison=lambda: parts.fill(0),
        notes=_notes(bench, size_bytes, stream.notes),
    )


@suite.case(size_bytes=_sizes, dtype=_DTYPES)
def write(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM's fill, a = s: 1 array moved."""
    value = 0.5 + bench.rng.random() / 2
    return _writing(bench, size_bytes, dtype, "write", (value, 0, 0), (value,))


@suite.case(size_bytes=_two_sizes, dtype=_DTYPES)
def copy(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM copy by a kernel, a = b: 2 arrays moved."""
    return _writing(bench, size_bytes, dtype, "copy", (0, 1, 0))


@suite.case(size_bytes=_sizes, dtype=_DTYPES)
def scale(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM scale, a = s·b: 2 arrays moved."""
    return _writing(bench, size_bytes, dtype, "scale", (0, _FACTOR, 0), (_FACTOR,), flops=1)


@suite.case(size_bytes=_sizes, dtype=_DTYPES)
def add(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM add, a = b + c: 3 arrays moved."""
    return _writing(bench, size_bytes, dtype, "add", (0, 1, 1), flops=1)


@suite.case(size_bytes=_sizes, dtype=points(("float32", "float64")), headline={"dtype": "float32"})
def triad(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM triad, a = b + s·c: 3 arrays moved."""
    return _writing(bench, size_bytes, dtype, "triad", (0, 1, _FACTOR), (_FACTOR,), flops=2)


@suite.case(size_bytes=_sizes, dtype=_DTYPES)
def dot(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """The sum of b·c: 2 arrays moved; one sum a block is left, checked against double precision."""
    stream = open_stream(bench, size_bytes, dtype, 2)
    b, c, parts = stream.drawn(), stream.drawn(), stream.partial(np.float64)
    call = stream.call("dot", b.array, c.array, stream.count, parts)

    def check() -> Observation:
        error = float(np.max(np.abs(bench.device.to_host(parts) - stream.expected_dot(b, c))))
        expect(error <= stream.bound(), f"a partial sum is off by {error:.3g}, more than {stream.bound():.3g}")
        return {}

    work = Work(moved=2 * size_bytes, payload=2 * size_bytes, flops=2 * float(stream.count))
    return Task.of(
        _memory_stage(bench, call, work, size_bytes),
        check=check,
        poison=lambda: parts.fill(0),
        notes=_notes(bench, size_bytes, stream.notes),
    )


@suite.case(size_bytes=_copy_sizes)
def memcpy(bench: Bench, size_bytes: int) -> Task:
    """The runtime's own copy within device memory (one thread on the host): 2 arrays moved, payload 1."""
    stream = open_stream(bench, size_bytes, "float32", 2)
    a, b = stream.empty(), stream.drawn()
    stage = _memory_stage(
        bench, lambda: bench.device.copy(a, b.array), Work(moved=2 * size_bytes, payload=size_bytes), size_bytes
    )
    return Task.of(
        replace(stage, rotation=_rotation(bench, a, b.array)),
        check=stream.verifier(a, (b,), (0, 1, 0)),
        poison=stream.poison(a),
        notes=_notes(bench, size_bytes, {}),
    )


def _rotation(bench: Bench, a: Any, b: Any) -> tuple[Callable[[], None], ...]:
    """Copies between pairs of arrays that together outgrow the cache; none where one pair does."""
    if not bench.traits.is_gpu or a.nbytes >= _CACHES * bench.target.device.cache_bytes:
        return ()
    pairs = [(a, b)] + [(bench.xp.empty_like(a), b.copy()) for _ in range(bench.copies(2 * a.nbytes) - 1)]
    return tuple(partial(bench.device.copy, target, source) for target, source in pairs)


def _has_link(target: Target) -> bool:
    return not target.is_host


_LINK_SIZES = points((2**20, 2**28), smoke=(2**24,), full=powers_of_two(16, 30, 2))
_MEMORY = ("pinned", "pageable")


def _transfer(bench: Bench, memory: str, size_bytes: int, to_device: bool) -> Task:
    """One transfer over the host link; pageable copies wait for the device by themselves."""
    if not bench.traits.is_gpu:
        raise Skip("needs a device with memory of its own")
    data = bench.rng.integers(2**64, size=size_bytes // 8, dtype=np.uint64).view(np.uint8)
    far = bench.device.pinned(size_bytes) if memory == "pinned" else np.empty(size_bytes, np.uint8)
    near = bench.xp.asarray(data)
    np.copyto(far, data)
    target, source = (near, far) if to_device else (far, near)

    def check() -> Observation:
        found = bench.device.to_host(target)
        expect(np.array_equal(found.view(np.uint64), data.view(np.uint64)), "what arrived is not what was sent")
        return {}

    stage = Stage(
        lambda: bench.device.copy(target, source),
        Work(payload=size_bytes),
        "payload",
        "link.h2d",
        waits=memory == "pageable",
    )
    return Task.of(stage, check=check, poison=lambda: target.fill(0))


@suite.case(memory=_MEMORY, size_bytes=_LINK_SIZES, when=_has_link)
def h2d(bench: Bench, memory: str, size_bytes: int) -> Task:
    """Host to device: payload, each byte once."""
    return _transfer(bench, memory, size_bytes, to_device=True)


@suite.case(memory=_MEMORY, size_bytes=_LINK_SIZES, when=_has_link)
def d2h(bench: Bench, memory: str, size_bytes: int) -> Task:
    """Device to host: payload, each byte once."""
    return _transfer(bench, memory, size_bytes, to_device=False)
