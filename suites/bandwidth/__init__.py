"""Sustained bandwidth: device memory, caches, shared memory, parts of lines, copies, and the link to the host.

This file says what is measured at which points; how is in `_bandwidth_*.py`, a file a topic. Kernels of
device memory are counted by STREAM's rule: every array that is named, once for each element read or written.
A figure is held against DRAM where each array is at least four times the last-level cache.
"""

from __future__ import annotations

from gpubench.api.suite import POINT, Bench, Suite, Task, View, on_gpu, points

from .._stream import Shape
from . import _access, _beside, _cache, _engines, _link
from . import _points as at
from . import _stream as stream

_KERNELS = ("read", "write", "copy", "scale", "add", "triad", "dot", "memcpy")
_LINK = ("h2d", "d2h")


def _curve(title: str, cases: tuple[str, ...], x: str, by: tuple[str, ...], log_x: bool = True) -> View:
    return View("curve", title, cases, x, by=by, series="hot", log_x=log_x)


suite = Suite(
    "sustained bandwidth: device memory, caches, parts of lines, copies, host link",
    views=[
        View("bars", "Memory bandwidth", _KERNELS, series="hot"),
        _curve("Memory bandwidth over array size", _KERNELS, "size_bytes", ("dtype",)),
        _curve("Memory bandwidth over access width", ("access_width",), "width_bytes", ("kernel",)),
        _curve("Memory bandwidth over threads", ("occupancy",), "threads", ("kernel",)),
        _curve("Bandwidth over working set, many passes", ("working_set",), "size_bytes", ("kernel",)),
        View("bars", "Shared memory", ("shared",), series="hot"),
        _curve("Useful bandwidth over stride, words of 4 bytes", ("strided",), "stride_bytes", ("access",)),
        _curve("Useful bandwidth of random accesses over chunk", ("random",), "chunk_bytes", ("access",)),
        View("transfer", "Copies within the device", ("device_copy",), "size_bytes", by=("engine",), series="hot"),
        _curve("Copies by some multiprocessors", ("device_copy_on",), "units", ("engine",), log_x=False),
        View("bars", "Matrix products beside copies", ("beside_gemm", "beside_gemm_on"), series="gemm.self"),
        View("bars", "Copies beside matrix products", ("beside_gemm", "beside_gemm_on"), series="copy.self"),
        _curve("Host link over transfer size", _LINK, "size_bytes", ("memory",)),
        View("transfer", "Host to device", ("h2d",), "size_bytes", by=("memory",), series="hot"),
        View("transfer", "Device to host", ("d2h",), "size_bytes", by=("memory",), series="hot"),
        View("curve", "Host link, both ways", ("duplex",), "size_bytes", by=("memory",), series="sum.hot", log_x=True),
    ],
)


@suite.case(size_bytes=at.two_sizes, dtype=at.DTYPES)
def read(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """The exclusive or of all words of an array: 1 array moved; one word a block is left, and checked."""
    effort = at.effort(bench.target, at.is_floor(bench.target, size_bytes))
    return stream.kernel(bench, "read", size_bytes, dtype, effort=effort)


@suite.case(size_bytes=at.sizes, dtype=at.DTYPES)
def write(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM's fill, a = s: 1 array moved."""
    return stream.kernel(bench, "write", size_bytes, dtype, effort=at.effort(bench.target))


@suite.case(size_bytes=at.two_sizes, dtype=at.DTYPES)
def copy(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM copy by a kernel, a = b: 2 arrays moved."""
    effort = at.effort(bench.target, at.is_floor(bench.target, size_bytes))
    return stream.kernel(bench, "copy", size_bytes, dtype, effort=effort)


@suite.case(size_bytes=at.sizes, dtype=at.DTYPES)
def scale(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM scale, a = s·b: 2 arrays moved."""
    return stream.kernel(bench, "scale", size_bytes, dtype, effort=at.effort(bench.target))


@suite.case(size_bytes=at.sizes, dtype=at.DTYPES)
def add(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM add, a = b + c: 3 arrays moved."""
    return stream.kernel(bench, "add", size_bytes, dtype, effort=at.effort(bench.target))


@suite.case(size_bytes=at.sizes, dtype=points(("float32", "float64")), headline={"dtype": "float32"})
def triad(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """STREAM triad, a = b + s·c: 3 arrays moved."""
    return stream.kernel(bench, "triad", size_bytes, dtype, effort=at.effort(bench.target, dtype == "float32"))


@suite.case(size_bytes=at.sizes, dtype=at.DTYPES)
def dot(bench: Bench, size_bytes: int, dtype: str) -> Task:
    """The sum of b·c: 2 arrays moved; one sum a block is left, checked against double precision."""
    return stream.kernel(bench, "dot", size_bytes, dtype, effort=at.effort(bench.target))


@suite.case(size_bytes=at.copy_sizes)
def memcpy(bench: Bench, size_bytes: int) -> Task:
    """The runtime's own copy within device memory (one thread on the host): 2 arrays moved, payload 1."""
    return stream.memcpy(bench, size_bytes, at.effort(bench.target, not stream.is_cached(bench, size_bytes)))


@suite.case(kernel=at.KERNELS, width_bytes=at.WIDTHS, size_bytes=at.one_size, when=on_gpu)
def access_width(bench: Bench, kernel: str, width_bytes: int, size_bytes: int) -> Task:
    """A STREAM kernel whose lanes move 4, 8 or 16 bytes at once, float32."""
    return stream.kernel(bench, kernel, size_bytes, shape=Shape(width_bytes), effort=POINT)


@suite.case(kernel=at.KERNELS, threads=at.threads, size_bytes=at.one_size)
def occupancy(bench: Bench, kernel: str, threads: int, size_bytes: int) -> Task:
    """A STREAM kernel by so many threads that stay on each multiprocessor; by so many threads in all on the host."""
    return stream.kernel(bench, kernel, size_bytes, shape=Shape(threads=threads), effort=POINT)


@suite.case(kernel=at.sweeps, size_bytes=at.working_sets, version=2)
def working_set(bench: Bench, kernel: str, size_bytes: int) -> Task:
    """Many passes over a set in one call, past a GPU's first cache: what its second-level cache gives, and memory."""
    return _cache.working_set(bench, kernel, size_bytes)


@suite.case(access=("read", "write"), width_bytes=at.WIDTHS, when=on_gpu)
def shared(bench: Bench, access: str, width_bytes: int) -> Task:
    """Shared memory of all multiprocessors, without bank conflicts; `per_clock` is of one of them."""
    return _cache.shared(bench, access, width_bytes)


@suite.case(access=at.ACCESSES, stride_bytes=at.STRIDES, size_bytes=at.one_size)
def strided(bench: Bench, access: str, stride_bytes: int, size_bytes: int) -> Task:
    """Words of 4 bytes at a stride: payload; `sectors` counts those they lie in, `used` is the share of these."""
    return _access.strided(bench, access, stride_bytes, size_bytes)


@suite.case(access=at.ACCESSES, chunk_bytes=at.CHUNKS, size_bytes=at.one_size)
def random(bench: Bench, access: str, chunk_bytes: int, size_bytes: int) -> Task:
    """Chunks in random order, each once: payload; `sectors` counts those they lie in, `used` is the share of these."""
    return _access.random(bench, access, chunk_bytes, size_bytes)


@suite.case(engine=at.engines, size_bytes=at.engine_sizes)
def device_copy(bench: Bench, engine: str, size_bytes: int) -> Task:
    """A copy within the device by one of its engines: 2 arrays moved, payload 1."""
    return _engines.device_copy(bench, engine, size_bytes)


@suite.case(engine=at.kernel_engines, units=at.units, size_bytes=at.engine_size, when=on_gpu)
def device_copy_on(bench: Bench, engine: str, units: int, size_bytes: int) -> Task:
    """A copy by so many multiprocessors, one block each: how many saturate the memory."""
    return _engines.device_copy_on(bench, engine, units, size_bytes)


@suite.case(engine=at.engines_beside, when=at.has_products)
def beside_gemm(bench: Bench, engine: str) -> Task:
    """A matrix product while copies run, and copies while products run; `slowdown` is against each alone."""
    return _beside.beside_gemm(bench, engine)


@suite.case(engine=at.few_units_engines, units=at.few_units, when=at.has_products)
def beside_gemm_on(bench: Bench, engine: str, units: int) -> Task:
    """The same where the copies have so many multiprocessors and no more."""
    return _beside.beside_gemm(bench, engine, units)


@suite.case(memory=at.LINK_MEMORY, size_bytes=at.LINK_SIZES, when=on_gpu, where=at.tells)
def h2d(bench: Bench, memory: str, size_bytes: int) -> Task:
    """Host to device by the runtime's copy, or (zero-copy) by a kernel that reads host memory: payload."""
    return _link.one_way(bench, memory, size_bytes, to_device=True)


@suite.case(memory=at.LINK_MEMORY, size_bytes=at.LINK_SIZES, when=on_gpu, where=at.tells)
def d2h(bench: Bench, memory: str, size_bytes: int) -> Task:
    """Device to host by the runtime's copy, or (zero-copy) by a kernel that writes host memory: payload."""
    return _link.one_way(bench, memory, size_bytes, to_device=False)


@suite.case(memory=at.DUPLEX_MEMORY, size_bytes=at.DUPLEX_SIZES, when=on_gpu)
def duplex(bench: Bench, memory: str, size_bytes: int) -> Task:
    """Both directions at once: payload of the sum, then of each direction while the other one runs."""
    return _link.both_ways(bench, memory, size_bytes)
