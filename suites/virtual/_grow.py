"""Measure a live array that grows, and memory that is replaced under one address."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpubench.api import suite as gb

from .._between import fill_pattern, wrong_words
from .._graphs import replayed
from ._space import PAGE_BYTES, GpuSpace, MappedRange, array_at, wait_until_cleared

_END_BYTES = 4096  # bytes at the new end, which a kernel writes within the timed section
_OLD, _NEW = 7, 11  # seeds of the contents before and after the growth
_MANAGED_MOST_BYTES = 2**30
_MANAGED_FROM_BYTES = 2**29
_COPY_WITHIN_DEVICE = 3  # cudaMemcpyDeviceToDevice
_ATTACH_GLOBAL = 1  # cudaMemAttachGlobal

topic = gb.Topic(
    views=[
        gb.View("bars", "Time to grow a live array", ("grow",), log_x=True),
        gb.View(
            "curve",
            "Time to grow a live array by its size before",
            ("grow",),
            "from_bytes",
            by=("way", "by_bytes"),
            log_x=True,
            log_y=True,
        ),
        gb.View("transfer", "Time to replace the memory under an address by size", ("remap",), "size_bytes"),
    ],
)


class GrowingArray(ABC):
    """A live array of `from_bytes` that can grow by `by_bytes`; `keeps_address` says whether `address` then stays."""

    keeps_address = False
    returned_bytes = 0  # device memory that `start` and earlier growth have given back

    def __init__(self, bench: gb.Bench, from_bytes: int, by_bytes: int) -> None:
        self.bench, self.from_bytes, self.by_bytes = bench, from_bytes, by_bytes
        self.address = 0

    @abstractmethod
    def start(self) -> None:
        """Allocate `from_bytes` at `address`."""

    @abstractmethod
    def grow(self, at_peak: Callable[[], None]) -> None:
        """Grow to `from_bytes` + `by_bytes` at `address` and keep the old contents.

        Call `at_peak` when most memory is in use."""

    def array(self, start: int, stop: int) -> Any:
        """Return bytes of the array as uint8."""
        return array_at(self.bench, self.address + start, stop - start)

    @abstractmethod
    def close(self) -> None:
        """Give the memory back."""


class MappedGrowth(GrowingArray):
    """More physical memory mapped behind the array, in pieces of `piece_bytes`."""

    keeps_address = True

    def __init__(self, bench: gb.Bench, from_bytes: int, by_bytes: int, piece_bytes: int) -> None:
        super().__init__(bench, from_bytes, by_bytes)
        self._space, self._piece_bytes, self.returned_bytes = GpuSpace(bench), piece_bytes, by_bytes
        self._mapped: MappedRange | None = None

    def start(self) -> None:
        if self._mapped is None:
            self._mapped = MappedRange(self._space, self.from_bytes + self.by_bytes)
            self.address = self._mapped.address
            self._mapped.grow(self.from_bytes, self.from_bytes)
        self._mapped.unmap(self.from_bytes)
        self._mapped.release()

    def grow(self, at_peak: Callable[[], None]) -> None:
        assert self._mapped is not None
        self._mapped.grow(self.by_bytes, self._piece_bytes)
        at_peak()

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None


class CopyGrowth(GrowingArray):
    """A larger allocation (cudaMalloc), a copy into it, and the old one given back (cudaFree)."""

    def __init__(self, bench: gb.Bench, from_bytes: int, by_bytes: int) -> None:
        super().__init__(bench, from_bytes, by_bytes)
        self._runtime, self.returned_bytes = bench.xp.cuda.runtime, 2 * from_bytes + by_bytes

    def _take(self, nbytes: int) -> int:
        return int(self._runtime.malloc(nbytes))

    def _give(self, address: int) -> None:
        self._runtime.free(address)

    def start(self) -> None:
        self.close()
        self.address = self._take(self.from_bytes)

    def grow(self, at_peak: Callable[[], None]) -> None:
        """Allocate a larger array, queue the copy of the old one into it, call `at_peak`, and free the old one."""
        larger = self._take(self.from_bytes + self.by_bytes)
        stream = self.bench.device.stream
        self._runtime.memcpyAsync(larger, self.address, self.from_bytes, _COPY_WITHIN_DEVICE, stream)
        at_peak()
        self._give(self.address)
        self.address = larger

    def close(self) -> None:
        if self.address:
            self._give(self.address)
            self.address = 0


class PoolGrowth(CopyGrowth):
    """The same growth in stream order (cudaMallocAsync), from an empty pool; raises Skip without such a pool."""

    def __init__(self, bench: gb.Bench, from_bytes: int, by_bytes: int) -> None:
        super().__init__(bench, from_bytes, by_bytes)
        if "pool" not in bench.traits.features:
            raise gb.Skip(f"CuPy does not support the driver's memory pool on {bench.traits.vendor} GPUs")
        self._pool = self._runtime.deviceGetDefaultMemPool(bench.xp.cuda.Device().id)

    def _take(self, nbytes: int) -> int:
        return int(self._runtime.mallocAsync(nbytes, self.bench.device.stream))

    def _give(self, address: int) -> None:
        self._runtime.freeAsync(address, self.bench.device.stream)

    def close(self) -> None:
        super().close()
        self.bench.device.synchronize()
        self._runtime.memPoolTrimTo(self._pool, 0)


class ManagedGrowth(CopyGrowth):
    """Managed memory, which is reserved as a whole and grows when a kernel first touches its pages."""

    keeps_address = True

    def _take(self, nbytes: int) -> int:
        return int(self._runtime.mallocManaged(nbytes + self.by_bytes, _ATTACH_GLOBAL))

    def grow(self, at_peak: Callable[[], None]) -> None:
        # Each managed page costs a page fault when it is first written. CuPy's memsetAsync writes them on the device.
        self._runtime.memsetAsync(self.address + self.from_bytes, 0, self.by_bytes, self.bench.device.stream)
        at_peak()


def growing_array(bench: gb.Bench, way: str, from_bytes: int, by_bytes: int) -> GrowingArray:
    """Return an array that grows in the way `way`: `vmm`, `vmm-2MiB`, `copy`, `pool` or `managed`."""
    if way.startswith("vmm"):
        return MappedGrowth(bench, from_bytes, by_bytes, PAGE_BYTES if way == "vmm-2MiB" else by_bytes)
    ways: Mapping[str, type[GrowingArray]] = {"copy": CopyGrowth, "pool": PoolGrowth, "managed": ManagedGrowth}
    return ways[way](bench, from_bytes, by_bytes)


class Growth:
    """Times the growth of an array until a kernel has written its new end, and checks the array's contents."""

    def __init__(self, bench: gb.Bench, way: str, from_bytes: int, by_bytes: int) -> None:
        self._bench = bench
        bench.words(0, 0)  # loads the kernels now, because later there may be no free memory
        self._array = growing_array(bench, way, from_bytes, by_bytes)
        self._from_bytes, self._bytes = from_bytes, from_bytes + by_bytes

    def seconds(self, at_peak: Callable[[], None] = lambda: None) -> float:
        """Start with `from_bytes`, grow, and return the seconds until a kernel has written the array's new end."""
        array, device = self._array, self._bench.device
        array.start()
        fill_pattern(self._bench, array.array(0, self._from_bytes), _OLD)
        device.synchronize()
        wait_until_cleared(array.returned_bytes)
        begin = time.perf_counter()
        array.grow(at_peak)
        fill_pattern(self._bench, array.array(self._bytes - _END_BYTES, self._bytes), _NEW)
        device.synchronize()
        return time.perf_counter() - begin

    def check(self) -> gb.Observation:
        """Grow the array once, and return the `peak` of memory in use in bytes, and `peak per byte needed`."""
        array, device = self._array, self._bench.device
        array.close()
        free_bytes, used = device.free_bytes(), []
        array.start()
        before = array.address
        self.seconds(lambda: used.append(free_bytes - device.free_bytes()))
        if array.keeps_address:
            gb.expect(array.address == before, "the array lies at another address after it grew")
        old, new = array.array(0, self._from_bytes), array.array(self._from_bytes, self._bytes)
        self._expect_pattern(new[-_END_BYTES:], "words at the new end", _NEW)
        fill_pattern(self._bench, new, _NEW)
        self._expect_pattern(new, "new words", _NEW)
        self._expect_pattern(old, "old words", _OLD)
        return {"peak": gb.Observed(used[0], "B"), "peak per byte needed": gb.Observed(used[0] / self._bytes)}

    def _expect_pattern(self, array: Any, label: str, seed: int) -> None:
        wrong = wrong_words(self._bench, array, seed)
        gb.expect(wrong == 0, f"{wrong} of {array.size // 8} {label} are wrong after the array grew")

    def close(self) -> None:
        self._bench.device.synchronize()
        self._array.close()


def _is_measured(target: gb.Target, params: Mapping[str, str | int | float]) -> bool:
    """Return whether to measure a point: up to 1 GiB with `managed`, above that with the other ways."""
    is_small = int(params["from_bytes"]) + int(params["by_bytes"]) <= _MANAGED_MOST_BYTES
    return is_small == (params["way"] == "managed") or target.tier == "smoke"


@topic.case(
    when=gb.on_gpu,
    way=gb.points(("vmm", "copy"), full=("vmm", "vmm-2MiB", "copy", "pool", "managed")),
    from_bytes=gb.points((2**30,), smoke=(2**24,), full=(2**28, _MANAGED_FROM_BYTES, 2**30, 2**32, 2**34)),
    by_bytes=gb.points((2**28,), smoke=(2**21,)),
    where=_is_measured,
)
def grow(bench: gb.Bench, way: str, from_bytes: int, by_bytes: int) -> gb.Task:
    """Seconds to grow a live array, from the request until a kernel has written the new end.

    `vmm` maps more memory behind the array in one piece, `vmm-2MiB` in pieces of 2 MiB. `copy` makes a larger
    allocation and copies the old bytes, `pool` does the same from the stream-ordered pool, and `managed` touches
    managed memory for the first time."""
    copies = way in ("copy", "pool")
    bench.need((2 if copies else 1) * from_bytes + by_bytes + PAGE_BYTES)
    growth = Growth(bench, way, from_bytes, by_bytes)
    work = gb.Work(items=1, moved=2 * from_bytes if copies else 0)
    stage = gb.Stage(growth.seconds, work, "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=growth.check, close=growth.close)


class Replacement:
    """Memory of `size_bytes` that is freed and created again under one address, and a graph captured before that."""

    def __init__(self, bench: gb.Bench, size_bytes: int) -> None:
        self._bench, self._size_bytes = bench, size_bytes
        self._mapped = MappedRange.filled(GpuSpace(bench), size_bytes, size_bytes)
        array = self._array()
        self._replay = replayed(bench, partial(bench.words(array.nbytes // 8, _OLD).fill, array))

    def _array(self) -> Any:
        return array_at(self._bench, self._mapped.address, self._size_bytes)

    def seconds(self) -> float:
        """Replace the physical memory; return the seconds to give it back and to make the address accessible again.

        The GPU idles in between, as while a program sleeps: it clears the memory that was given back."""
        mapped = self._mapped
        self._bench.device.synchronize()
        begin = time.perf_counter()
        mapped.unmap()
        mapped.release()
        returned_s = time.perf_counter() - begin
        wait_until_cleared(self._size_bytes)
        begin = time.perf_counter()
        mapped.grow(self._size_bytes, self._size_bytes)
        return returned_s + time.perf_counter() - begin

    def check(self) -> None:
        """Replace the memory, replay the captured graph, and raise WrongAnswer if a word that it wrote is wrong."""
        address = self._mapped.address
        self.seconds()
        gb.expect(self._mapped.address == address, "the memory moved to another address")
        fill_pattern(self._bench, self._array(), _NEW)
        self._replay()
        wrong = wrong_words(self._bench, self._array(), _OLD)
        self._bench.device.synchronize()
        total = self._size_bytes // 8
        gb.expect(wrong == 0, f"{wrong} of {total} words are wrong after the captured graph wrote to the new memory")

    def close(self) -> None:
        self._bench.device.synchronize()
        self._mapped.close()


@topic.case(when=gb.on_gpu, size_bytes=gb.points((2**30,), smoke=(2**21,), full=(2**21, 2**26, 2**30, 2**34)))
def remap(bench: gb.Bench, size_bytes: int) -> gb.Task:
    """Seconds to unmap and free the memory of an address, and later to map new memory there.

    The time between the two is not counted. A graph that was captured before writes to the new memory, and every word
    is compared."""
    bench.need(size_bytes + PAGE_BYTES)
    replacement = Replacement(bench, size_bytes)
    stage = gb.Stage(replacement.seconds, gb.Work(items=1), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=replacement.check, close=replacement.close)
