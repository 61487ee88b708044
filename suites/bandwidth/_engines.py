"""Copy within a device by four engines, over size and over the number of compute units.

load-store: a kernel whose threads load and store 16 bytes each. memcpy: the runtime's copy, for which the driver
chooses a copy engine or a kernel. async-copy (since sm_80) and bulk-copy (since sm_90): kernels that load past the
registers into shared memory; in bulk-copy one thread per block starts every copy."""

from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._copies import Call, bulk_copier
from .._stream import need_gpu
from ._sizes import fitting, memory_limit, smallest_in_memory
from ._stream import stream_task
from ._words import CopiedWords, grid_of

_SPARE_BYTES = 2**26
_THREADS = 128  # per block, as THREADS in engines.cu
_LANE_BYTES = 16
_RING_BYTES = 8 * _LANE_BYTES  # shared memory of a thread's asynchronous copies, as STAGES in engines.cu
_RESIDENT_THREADS = 1024  # threads of a block that has its compute unit to itself
# Threads per block, and blocks per compute unit: the best values on an H200 at 256 MiB.
_ASYNC_THREADS, _ASYNC_BLOCKS = 128, 4
_AMPERE, _HOPPER = (gb.Architecture.parse(name) for name in ("sm_80", "sm_90"))
_FEATURES = {"async-copy": "async_copy", "bulk-copy": "bulk_copy"}

topic = gb.Topic(
    views=[
        gb.View(
            "transfer", "Device copy bandwidth by size", ("device_copy",), "size_bytes", by=("engine",), series="hot"
        ),
        gb.View("choice", "Engine of a device copy by size", ("device_copy",), "size_bytes", by=("engine",)),
        gb.View(
            "curve",
            "Device copy bandwidth by compute units",
            ("device_copy_on",),
            "units",
            by=("engine",),
            series="hot",
        ),
    ]
)


def newest_engine(target: gb.Target) -> str:
    """Return the newest kernel of the architecture: bulk-copy since sm_90, async-copy since sm_80, else load-store."""
    architecture = target.device.architecture
    if architecture.vendor != "nvidia" or architecture < _AMPERE:
        return "load-store"
    return "async-copy" if architecture < _HOPPER else "bulk-copy"


def engines(target: gb.Target) -> Any:
    """Return the axis of engines: `load-store`, `memcpy` and the newest one; in `full` all, in `smoke` the newest only.

    On the host all tiers have `load-store` and `memcpy`."""
    if target.is_host:
        return ("load-store", "memcpy")
    newest = newest_engine(target)
    quick = tuple(dict.fromkeys(("load-store", "memcpy", newest)))
    return gb.points(quick, (newest,), ("load-store", "memcpy", "async-copy", "bulk-copy"))


def _kernel_engines(target: gb.Target) -> Any:
    """Return the axis of engines that are kernels, which can run on a part of the compute units."""
    newest = newest_engine(target)
    return gb.points(tuple(dict.fromkeys(("load-store", newest))), (newest,), ("load-store", "async-copy", "bulk-copy"))


def _copy_sizes(target: gb.Target) -> Any:
    """Return the axis of copy sizes in bytes: from 8 bytes to 1 GiB, on the host from 4 KiB to 256 MiB."""
    if target.is_host:
        return gb.points((2**12, 2**20, 2**26), (2**20,), gb.powers_of_two(12, 28))
    quick = (8, 2**20, 2**23, *_one_copy_size(target))
    return gb.points(quick, (2**20,), fitting(target, (8, *gb.powers_of_two(4, 30, 2))))


def _one_copy_size(target: gb.Target) -> tuple[int, ...]:
    """Return one copy size in bytes, as a tuple: at least 256 MiB and four last-level caches."""
    return fitting(target, (max(smallest_in_memory(target), 2**28),))


def _units(target: gb.Target) -> Any:
    """Return the axis of compute units: 4, 16 and 48, as far as the device has them, and all."""
    most = max(1, target.device.units)
    full = [count for count in (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256) if count < most]
    quick = [count for count in (4, 16, 48) if count < most]
    return gb.points((*quick, most), (most,), (*full, most))


def require(bench: gb.Bench, engine: str) -> None:
    """Raise Skip if the device is no GPU or does not support `engine`."""
    need_gpu(bench)
    feature = _FEATURES.get(engine)
    if feature and feature not in bench.traits.features:
        raise gb.Skip(f"{bench.traits.arch} does not support {engine} copies (feature: {feature})")


def load_store(bench: gb.Bench, target: Any, source: Any, nbytes: int) -> Call:
    """Return the copy of `nbytes` from `source` to `target` by a kernel whose threads load and store 16 bytes each.

    Both are CuPy arrays, or addresses (uint64) that the device reaches."""
    kernel, grid = bench.kernel("engines.cu", "load_store"), grid_of(nbytes // _LANE_BYTES, _THREADS)
    args = (target, source, np.uint64(nbytes))
    return lambda: kernel(grid, (_THREADS,), args)


def copy_call(bench: gb.Bench, arrays: CopiedWords, engine: str, units: int = 0) -> Call:
    """Return the copy of `arrays.array` to `arrays.copied` by `engine`, one that the device supports.

    With `units` the kernel has one block on each of that many compute units, else the grid that is fastest for the
    whole device; `memcpy` ignores `units`."""
    target, source, nbytes = arrays.copied, arrays.array, arrays.array.nbytes
    if engine == "memcpy":
        return partial(bench.device.copy, target, source)
    if engine == "bulk-copy":
        return bulk_copier(bench, target, source, units)
    if engine == "load-store" and not units:
        return load_store(bench, target, source, nbytes)
    exclusive_bytes = bench.traits.max_shared_bytes // 2 + 1024  # shared memory that leaves no room for a second block
    if engine == "load-store":
        name, blocks, threads, shared_bytes = "load_store_resident", units, _RESIDENT_THREADS, exclusive_bytes
    elif units:
        most = bench.traits.max_shared_bytes // _RING_BYTES
        name, blocks, threads = "async_copy", units, min(_RESIDENT_THREADS, 1 << most.bit_length() - 1)
        shared_bytes = max(threads * _RING_BYTES, exclusive_bytes)
    else:
        covering = grid_of(nbytes // _LANE_BYTES, _ASYNC_THREADS)[0]
        blocks = min(covering, max(1, bench.target.device.units) * _ASYNC_BLOCKS)
        name, threads, shared_bytes = "async_copy", _ASYNC_THREADS, _ASYNC_THREADS * _RING_BYTES
    kernel, args = bench.kernel("engines.cu", name), (target, source, np.uint64(nbytes))
    return lambda: kernel((blocks,), (threads,), args, shared_bytes)


@topic.case(engine=engines, size_bytes=_copy_sizes)
def device_copy(bench: gb.Bench, engine: str, size_bytes: int) -> gb.Task:
    """Bandwidth of a copy within the device by one of its engines; the rate counts bytes read and bytes written."""
    if bench.traits.is_gpu:
        return _copy_task(bench, engine, size_bytes)
    return stream_task(bench, "copy" if engine == "load-store" else "memcpy", size_bytes)


@topic.case(engine=_kernel_engines, units=_units, size_bytes=_one_copy_size, when=gb.on_gpu)
def device_copy_on(bench: gb.Bench, engine: str, units: int, size_bytes: int) -> gb.Task:
    """Bandwidth of a copy by `units` compute units, one block on each: how many saturate the memory."""
    return _copy_task(bench, engine, size_bytes, units)


def _copy_task(bench: gb.Bench, engine: str, size_bytes: int, units: int = 0) -> gb.Task:
    """Return a task that copies `size_bytes` by `engine`."""
    require(bench, engine)
    bench.need(2 * size_bytes + _SPARE_BYTES)
    arrays = CopiedWords(bench, size_bytes)
    work, limit = gb.Work(moved=2 * size_bytes, payload=size_bytes), memory_limit(bench.target, size_bytes)
    call = copy_call(bench, arrays, engine, units)
    outputs, inputs = (arrays.copied,), arrays.redraw
    stage = gb.Stage(call, work, "moved", limit, effort=gb.POINT, outputs=outputs, inputs=inputs)
    return gb.Task.of(stage, check=arrays.check)
