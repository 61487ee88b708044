"""Measure STREAM kernels on device memory by size, access width and number of threads, and the runtime's own copy.

Bytes are counted by STREAM's rule: every array that the kernel names, once for each element read or written."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import CheckedCall, expect_equal
from .._stream import BEST_SHAPE, LaunchShape, Stream, open_stream
from . import _sizes
from ._sizes import array_sizes, log_curve, one_array_size

_FACTOR = 0.5  # a power of two: products are exact, so every result has one right value
_CACHED_BYTES = 2**23  # both arrays of a copy fit into the last-level cache of data-centre GPUs since the A100
_FLOOR_BYTES = 2**32  # the floor of `read` is defined for an array of this size
_COPIED_BYTES = 2**30  # the floor of `copy` is defined for arrays of this size
_NAMES = ("read", "write", "copy", "scale", "add", "triad", "dot")
_DTYPES = gb.points(("float32",), full=("float32", "float64"))
_KERNEL_NAMES = gb.points(("read",), full=_NAMES)

topic = gb.Topic(
    views=[
        gb.View("bars", "Memory bandwidth by STREAM kernel", (*_NAMES, "memcpy"), series="hot"),
        log_curve("Memory bandwidth by array size", (*_NAMES, "memcpy"), "size_bytes", by=("dtype",)),
        log_curve("Memory bandwidth by access width", ("access_width",), "width_bytes", by=("kernel",)),
        log_curve("Memory bandwidth by occupancy", ("occupancy",), "threads", by=("kernel",)),
    ],
)


def _floor_sizes(target: gb.Target) -> Any:
    """Return the axis of array sizes in bytes for kernels with a floor in the table of expected figures."""
    sizes = array_sizes(target)
    if target.is_host:
        return sizes
    quick = (_CACHED_BYTES, max(_sizes.smallest_in_memory(target), 2**30), _FLOOR_BYTES)
    return gb.points(_sizes.fitting(target, quick), sizes.smoke, sizes.full)


def _memcpy_sizes(target: gb.Target) -> Any:
    """Return the axis of array sizes in bytes for `memcpy`: `array_sizes`, and on a GPU also 8 MiB."""
    sizes = array_sizes(target)
    if target.is_host:
        return sizes
    return gb.points((_CACHED_BYTES, *sizes.quick), sizes.smoke, (_CACHED_BYTES, *sizes.full))


_MOST_RESIDENT = 1536  # threads of an SM of the GeForce GPUs since 2020


def _threads(target: gb.Target) -> Any:
    """Return the axis of numbers of threads: resident on each compute unit of a GPU, or of the whole host."""
    if target.is_host:
        most = max(1, target.device.units)
        counts = [*(count for count in gb.powers_of_two(0, 10) if count < most), most]
        return gb.points((counts[0], counts[-1]) if most > 1 else (1,), (1,), counts)
    most = min(target.device.architecture.resident_threads, _MOST_RESIDENT)
    return gb.points((128, 512, most), (512,), [count for count in (64, 128, 256, 512, 1024, 1536) if count <= most])


def _effort(target: gb.Target, has_floor: bool) -> gb.Effort:
    """Return POINT in `quick` if no floor depends on the figure, else TIER."""
    return gb.POINT if target.tier == "quick" and not has_floor else gb.TIER


Prepare = Callable[[Stream], CheckedCall]


@dataclass(frozen=True, slots=True)
class StreamKernel:
    """A STREAM kernel: `prepare` returns its call and check for a Stream, and the other fields count its work.

    `arrays` is the number of arrays that a call moves, `payload` its payload in arrays, `flops` its operations per
    element."""

    prepare: Prepare
    arrays: int
    payload: int
    flops: int


_KERNELS: dict[str, StreamKernel] = {}


def _kernel(
    arrays: int,
    payload: int = 1,
    flops: int = 0,
    sizes: Any = array_sizes,
    dtypes: Any = _DTYPES,
    headline: Mapping[str, str | int] | None = None,
    has_floor: Callable[[gb.Target, int, str], bool] = lambda *_: False,
) -> Callable[[Prepare], Prepare]:
    """Return a decorator that declares a STREAM kernel and the case of that name."""

    def declare(prepare: Prepare) -> Prepare:
        """Register the kernel under the name of the function, add the case of that name, and return the function."""
        name = prepare.__name__
        _KERNELS[name] = StreamKernel(prepare, arrays, payload, flops)

        def build(bench: gb.Bench, size_bytes: int, dtype: str) -> gb.Task:
            effort = _effort(bench.target, has_floor(bench.target, size_bytes, dtype))
            return stream_task(bench, name, size_bytes, dtype, effort=effort)

        build.__name__, build.__doc__ = name, prepare.__doc__
        topic.case(size_bytes=sizes, dtype=dtypes, headline=headline)(build)
        return prepare

    return declare


def _is_floor_size(target: gb.Target, size_bytes: int, _dtype: str) -> bool:
    """Return whether `read` has a floor at that size: on a GPU from 4 GiB on, on the host always."""
    return target.is_host or size_bytes >= _FLOOR_BYTES


def _linear(stream: Stream, name: str, factors: tuple[float, float, float], *scalars: float) -> CheckedCall:
    """Return the call of a kernel that leaves a = k + kb·b + kc·c in its first array, with its check."""
    a, inputs = stream.empty(), tuple(stream.drawn() for factor in factors[1:] if factor)
    call = stream.call(name, a, *(drawn.array for drawn in inputs), stream.count, *map(stream.real, scalars))
    redraw = partial(stream.redraw, *inputs) if inputs else None
    return CheckedCall(call, stream.verifier(a, inputs, factors), (a,), inputs=redraw)


@_kernel(arrays=1, sizes=_floor_sizes, headline={"dtype": "float32"}, has_floor=_is_floor_size)
def read(stream: Stream) -> CheckedCall:
    """Bandwidth of reading an array (exclusive or of its words): 1 array moved; each partial result is checked."""
    b, parts = stream.drawn(), stream.partial(np.uint64)

    def check() -> None:
        expect_equal(stream.bench.device.to_host(parts), stream.expected_xor(b), "partial results")

    call = stream.call("read", b.array, stream.count, parts)
    return CheckedCall(call, check, (parts,), inputs=partial(stream.redraw, b))


@_kernel(arrays=1)
def write(stream: Stream) -> CheckedCall:
    """Bandwidth of STREAM fill, a = s: 1 array moved."""
    s = 0.5 + stream.bench.rng.random() / 2
    return _linear(stream, "write", (s, 0, 0), s)


@_kernel(
    arrays=2,
    sizes=_floor_sizes,
    headline={"dtype": "float32", "size_bytes": _COPIED_BYTES},
    has_floor=lambda target, size_bytes, _dtype: target.is_host or size_bytes >= _COPIED_BYTES,
)
def copy(stream: Stream) -> CheckedCall:
    """Bandwidth of STREAM copy by a kernel, a = b: 2 arrays moved."""
    return _linear(stream, "copy", (0, 1, 0))


@_kernel(arrays=2, flops=1)
def scale(stream: Stream) -> CheckedCall:
    """Bandwidth of STREAM scale, a = s·b: 2 arrays moved."""
    return _linear(stream, "scale", (0, _FACTOR, 0), _FACTOR)


@_kernel(arrays=3, flops=1)
def add(stream: Stream) -> CheckedCall:
    """Bandwidth of STREAM add, a = b + c: 3 arrays moved."""
    return _linear(stream, "add", (0, 1, 1))


@_kernel(
    arrays=3,
    flops=2,
    dtypes=gb.points(("float32", "float64")),
    headline={"dtype": "float32"},
    has_floor=lambda _target, _size_bytes, dtype: dtype == "float32",
)
def triad(stream: Stream) -> CheckedCall:
    """Bandwidth of STREAM triad, a = b + s·c: 3 arrays moved."""
    return _linear(stream, "triad", (0, 1, _FACTOR), _FACTOR)


@_kernel(arrays=2, payload=2, flops=2)
def dot(stream: Stream) -> CheckedCall:
    """Bandwidth of a dot product of b and c: 2 arrays moved; the sum of each block is checked in double precision."""
    b, c, parts = stream.drawn(), stream.drawn(), stream.partial(np.float64)

    def check() -> None:
        sums = stream.bench.device.to_host(parts)
        error, bound = float(np.max(np.abs(sums - stream.expected_dot(b, c)))), stream.bound()
        gb.expect(error <= bound, f"a partial sum is off by {error:.3g}, more than {bound:.3g}")

    call = stream.call("dot", b.array, c.array, stream.count, parts)
    return CheckedCall(call, check, (parts,), inputs=partial(stream.redraw, b, c))


def _runtime_copy(stream: Stream) -> CheckedCall:
    """Return the runtime's copy of one array of `stream` to another, with its check."""
    a, b, bench = stream.empty(), stream.drawn(), stream.bench
    pairs = [(a, b.array)]
    # use more pairs of arrays, until together they exceed the cache
    if bench.traits.is_gpu and _sizes.is_cached(bench.target, a.nbytes):
        pairs += [(bench.xp.empty_like(a), b.array.copy()) for _ in range(bench.copies(2 * a.nbytes) - 1)]
    calls = tuple(partial(bench.device.copy, target, source) for target, source in pairs)
    targets = [target for target, _ in pairs]
    verifiers = [stream.verifier(target, (b,), (0, 1, 0)) for target in targets]

    def check() -> None:
        """Raise WrongAnswer if a target that was written is wrong.

        If none was written, the first target is compared."""
        firsts = [float(bench.device.to_host(target[:1])[0]) for target in targets]
        for place in [place for place, first in enumerate(firsts) if not math.isnan(first)] or [0]:
            verifiers[place]()

    def redraw() -> None:
        """Put other data into every source."""
        stream.redraw(b)
        for _, source in pairs[1:]:
            source[...] = b.array

    turns: Any = {"rotation": calls, "buffers": tuple(source for _, source in pairs)} if len(calls) > 1 else {}
    return CheckedCall(calls[0], check, tuple(targets), inputs=redraw, **turns)


_KERNELS["memcpy"] = StreamKernel(_runtime_copy, arrays=2, payload=1, flops=0)


def stream_task(
    bench: gb.Bench,
    name: str,
    size_bytes: int,
    dtype: str = "float32",
    shape: LaunchShape = BEST_SHAPE,
    effort: gb.Effort = gb.POINT,
) -> gb.Task:
    """Return the task of the STREAM kernel `name`, or of `memcpy`, on arrays of `size_bytes` and `dtype` each.

    `shape` is the access width and the number of threads, and `effort` the stage's effort."""
    kernel = _KERNELS[name]
    stream = open_stream(bench, size_bytes, dtype, kernel.arrays, shape)
    prepared = kernel.prepare(stream)
    size, limit = stream.size_bytes, _sizes.memory_limit(bench.target, stream.size_bytes)
    work = gb.Work(moved=kernel.arrays * size, payload=kernel.payload * size, flops=kernel.flops * float(stream.count))
    modes: Any = ("hot", "cold") if bench.traits.is_gpu and not limit else ("hot",)
    stage = replace(prepared.stage(work, "moved", limit), modes=modes, effort=effort)
    notes = {} if name == "memcpy" else dict(stream.notes)
    if not limit:
        cache = gb.units.size(_sizes.cache_bytes(bench.target))
        notes["cache"] = f"arrays below {_sizes.CACHES} × the last-level cache of {cache}"
    return gb.Task.of(stage, check=prepared.check, notes=notes)


@topic.case(size_bytes=_memcpy_sizes)
def memcpy(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Bandwidth of the runtime's copy within device memory (on the host, one thread); counts reads and writes."""
    has_floor = not _sizes.is_cached(bench.target, size_bytes)
    return stream_task(bench, "memcpy", size_bytes, effort=_effort(bench.target, has_floor))


@topic.case(kernel=_KERNEL_NAMES, width_bytes=_sizes.WIDTHS, size_bytes=one_array_size, when=gb.on_gpu)
def access_width(bench: gb.Bench, kernel: str, width_bytes: int, size_bytes: int) -> gb.Task:
    """Bandwidth of a STREAM kernel whose lanes move `width_bytes` (4, 8 or 16) at once, in float32."""
    return stream_task(bench, kernel, size_bytes, shape=LaunchShape(width_bytes))


@topic.case(kernel=_KERNEL_NAMES, threads=_threads, size_bytes=one_array_size)
def occupancy(bench: gb.Bench, kernel: str, threads: int, size_bytes: int) -> gb.Task:
    """Bandwidth of a STREAM kernel with `threads` resident threads on each compute unit (on the host, in all)."""
    return stream_task(bench, kernel, size_bytes, shape=LaunchShape(threads=threads))
