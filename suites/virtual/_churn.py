"""Measure allocators under the allocations of training steps: time per operation, memory held, first failure."""

import bisect
import errno
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._between import fill_pattern, wrong_words
from ._space import PAGE_BYTES, GpuSpace, MappedRange, array_at

LAYERS = 24
_PASSING = 3  # temporary arrays of a layer, all freed before the next layer
_GRADIENTS = (0.5, 0.5, 2.0, 2.0)  # sizes of a layer's gradients in units of width²: projections, MLP
# Sizes of the activations that a layer keeps, in units of tokens × width: inputs, MLP, statistics.
_WIDTHS = (1.0, 1.0, 1.0, 4.0, 4.0, 0.125)
_TOKENS = (256, 2048)  # tokens per step: sequences differ in length, so sizes do not repeat
_LEAST_BYTES = 512
_ALIGNMENT = 512  # the least alignment of cudaMalloc's addresses and of PyTorch's blocks
_SEED = 2  # seed of the trace in every run, because the sizes are part of the case
_PEAK_BYTES = 2**32
_TIGHT_SHARE = 0.85  # share of the free memory that is in use at the peak
_ROOM = 4  # the reserved range as a multiple of the peak; addresses cost nothing
_RELEASE_THRESHOLD, _KEEP_ALL = 4, 2**62  # cudaMemPoolAttrReleaseThreshold: the pool of a framework keeps its memory
_ALLOCATION_FAILED = 2  # cudaErrorMemoryAllocation
_TAIL = 10_000  # samples, enough for the 99.9th percentile
_FEW, _MANY = 500, 10_000  # numbers of allocations
_SLOW, _SLOW_COUNT = ("malloc", "tight"), 2_000  # with 10 000, an operation takes 0.7 ms on an H200, the case 87 s

topic = gb.Topic(
    views=[
        gb.View("bars", "Allocator operation time in a training step", ("churn",), log_x=True),
        gb.View("bars", "Ratio of memory held to memory used", ("churn",), series="held per byte used"),
    ]
)


@dataclass(frozen=True, slots=True)
class MemoryOperation:
    """One operation of a trace: allocate block `block` of `nbytes`, or free it if `nbytes` is 0."""

    block: int
    nbytes: int


class TraceWriter:
    """Writes the operations of training steps into `operations`; a vector of activations has `width_bytes`."""

    def __init__(self, rng: np.random.Generator, width_bytes: int) -> None:
        self._rng, self._width_bytes = rng, width_bytes
        self.operations: list[MemoryOperation] = []
        self._blocks = 0

    @property
    def blocks_taken(self) -> int:
        return self._blocks

    def take(self, nbytes: float) -> int:
        """Take a block and return its number."""
        block, self._blocks = self._blocks, self._blocks + 1
        self.operations.append(MemoryOperation(block, max(int(nbytes), _LEAST_BYTES)))
        return block

    def give(self, *blocks: int) -> None:
        """Give blocks back."""
        self.operations += [MemoryOperation(block, 0) for block in blocks]

    def step(self) -> None:
        """Append a training step of a random number of tokens: 24 layers, their gradients in reverse, the optimiser."""
        tokens = int(self._rng.integers(*_TOKENS))
        saved: list[list[int]] = []
        for _ in range(LAYERS):
            passing = [self.take(tokens * self._width_bytes * self._rng.uniform(0.5, 2.0)) for _ in range(_PASSING)]
            saved.append([self.take(tokens * self._width_bytes * width) for width in _WIDTHS])
            self.give(*passing)
        gradients = []
        while saved:
            passing = [self.take(tokens * self._width_bytes * 4.0) for _ in range(_PASSING)]
            gradients += [self.take(self._width_bytes * self._width_bytes * share) for share in _GRADIENTS]
            self.give(*passing, *saved.pop())
        for gradient in gradients:
            scratch = self.take(_LEAST_BYTES * float(self._rng.integers(1, 64)))
            self.give(scratch, gradient)


def training_trace(seed: int, allocations: int, peak_bytes: int) -> tuple[MemoryOperation, ...]:
    """Return the operations of training steps, drawn from `seed`, with exactly `allocations` allocations.

    All sizes are scaled so that at most `peak_bytes` are live at one time, up to the rounding of sizes to 512 bytes."""
    writer = TraceWriter(np.random.default_rng(seed), width_bytes=4096)
    while writer.blocks_taken < allocations:
        writer.step()
    taken = itertools.accumulate(operation.nbytes > 0 for operation in writer.operations)
    operations = [operation for operation, count in zip(writer.operations, taken, strict=True) if count <= allocations]
    scale = peak_bytes / peak(operations)[1]
    scaled = [
        MemoryOperation(operation.block, _rounded(operation.nbytes * scale) if operation.nbytes else 0)
        for operation in operations
    ]
    blocks_taken = {operation.block for operation in scaled if operation.nbytes}
    live = blocks_taken - {operation.block for operation in scaled if not operation.nbytes}
    return (*scaled, *(MemoryOperation(block, 0) for block in sorted(live)))


def _rounded(nbytes: float) -> int:
    return max(int(nbytes) // _LEAST_BYTES, 1) * _LEAST_BYTES


def peak(operations: Sequence[MemoryOperation]) -> tuple[int, int]:
    """Return the index of the first operation after which the most bytes are live, and these bytes."""
    sizes: dict[int, int] = {}
    live = most = index = 0
    for place, operation in enumerate(operations):
        if operation.nbytes:
            sizes[operation.block] = operation.nbytes
            live += operation.nbytes
        else:
            live -= sizes.pop(operation.block)
        if live > most:
            most, index = live, place
    return index, most


class OffsetArena:
    """Offsets below `nbytes` from which blocks are taken and given back; the caller grows the arena if none fits."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._by_size: list[tuple[int, int]] = []  # free places: (size, offset), sorted
        self._by_offset: dict[int, int] = {}  # free places: offset → size
        self._ends: dict[int, int] = {}  # the end of a free place → its offset
        self._taken: dict[int, int] = {}  # taken blocks: offset → size

    def missing_bytes(self, nbytes: int) -> int:
        """Return how many bytes the arena must grow by before a block of `nbytes` fits; 0 if it fits already."""
        size = _aligned(nbytes)
        if self._by_size and self._by_size[-1][0] >= size:
            return 0
        last = self._ends.get(self.nbytes)
        return size - (self._by_offset[last] if last is not None else 0)

    def grow(self, nbytes: int) -> None:
        """Add `nbytes` free bytes behind the last ones."""
        start, self.nbytes = self.nbytes, self.nbytes + nbytes
        self._free(start, nbytes)

    def take(self, nbytes: int) -> int:
        """Return the offset of a new block of `nbytes`, rounded up to 512, in the smallest free place that fits.

        `missing_bytes(nbytes)` must be 0."""
        size = _aligned(nbytes)
        place, offset = self._by_size[bisect.bisect_left(self._by_size, (size, 0))]
        self._remove(offset)
        if place > size:
            self._add(offset + size, place - size)
        self._taken[offset] = size
        return offset

    def give(self, offset: int) -> None:
        """Give back the block at `offset`; the freed place merges with free places that touch it."""
        self._free(offset, self._taken.pop(offset))

    def _free(self, offset: int, size: int) -> None:
        """Add a free place of `size` bytes at `offset`, merged with the free places that touch it."""
        before, after = self._ends.get(offset), offset + size
        if after in self._by_offset:
            size += self._remove(after)
        if before is not None:
            size += self._remove(before)
            offset = before
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        bisect.insort(self._by_size, (size, offset))
        self._by_offset[offset] = size
        self._ends[offset + size] = offset

    def _remove(self, offset: int) -> int:
        """Remove the free place that begins at `offset`, and return its size in bytes."""
        size = self._by_offset.pop(offset)
        del self._ends[offset + size]
        del self._by_size[bisect.bisect_left(self._by_size, (size, offset))]
        return size


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Allocator(Protocol):
    """Allocates and frees blocks of memory by their addresses."""

    def take(self, nbytes: int) -> int:
        """Return the address of a new block; raises an exception for which `is_full` is true if memory is full."""

    def give(self, address: int) -> None:
        """Give a block back."""

    def close(self) -> None:
        """Give back all memory; every block must have been given back before."""


def is_full(error: Exception) -> bool:
    """Return whether an exception of an allocator means that memory is full: of Python, the system, or CUDA."""
    if isinstance(error, lib.DriverCallError):
        return str(error).startswith("CUDA_ERROR_OUT_OF_MEMORY")
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.ENOSPC)
    # CuPy's errors of the runtime have a status.
    return isinstance(error, MemoryError) or getattr(error, "status", 0) == _ALLOCATION_FAILED


def allocate_or_none(take: Callable[[int], int], nbytes: int) -> int | None:
    """Return the address of a new block of `nbytes` from `take`, or None if memory is full."""
    try:
        return take(nbytes)
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_full(error):
            raise
        return None


class RuntimeMalloc:
    """cudaMalloc and cudaFree."""

    def __init__(self, bench: gb.Bench) -> None:
        self.take: Callable[[int], int] = bench.xp.cuda.runtime.malloc
        self.give: Callable[[int], None] = bench.xp.cuda.runtime.free

    def close(self) -> None:
        """Do nothing: no memory is held."""


class StreamPool:
    """cudaMallocAsync and cudaFreeAsync on the device's pool, which keeps freed memory until `close`."""

    def __init__(self, bench: gb.Bench) -> None:
        if "pool" not in bench.traits.features:
            raise gb.Skip(f"CuPy does not support the driver's memory pool on {bench.traits.vendor} GPUs")
        self._device, self._runtime = bench.device, bench.xp.cuda.runtime
        self._stream = bench.device.stream
        self._pool = self._runtime.deviceGetDefaultMemPool(bench.xp.cuda.Device().id)
        self._threshold_before = self._runtime.memPoolGetAttribute(self._pool, _RELEASE_THRESHOLD)
        self._runtime.memPoolSetAttribute(self._pool, _RELEASE_THRESHOLD, _KEEP_ALL)

    def take(self, nbytes: int) -> int:
        return int(self._runtime.mallocAsync(nbytes, self._stream))

    def give(self, address: int) -> None:
        self._runtime.freeAsync(address, self._stream)

    def close(self) -> None:
        self._device.synchronize()
        self._runtime.memPoolSetAttribute(self._pool, _RELEASE_THRESHOLD, self._threshold_before)
        self._runtime.memPoolTrimTo(self._pool, 0)


class CupyPool:
    """A memory pool of CuPy, which splits and merges blocks of cudaMalloc on the host."""

    def __init__(self, bench: gb.Bench) -> None:
        self._pool = bench.xp.cuda.MemoryPool()
        self._blocks: dict[int, Any] = {}

    def take(self, nbytes: int) -> int:
        block = self._pool.malloc(nbytes)
        address = int(block.ptr)
        self._blocks[address] = block
        return address

    def give(self, address: int) -> None:
        del self._blocks[address]

    def close(self) -> None:
        self._blocks.clear()
        self._pool.free_all_blocks()


class MappedArena:
    """Blocks in one range that grows by mapping more memory behind it, as PyTorch's expandable segments do."""

    def __init__(self, bench: gb.Bench, capacity_bytes: int) -> None:
        self._range = MappedRange(GpuSpace(bench), capacity_bytes)
        self._arena = OffsetArena()

    def take(self, nbytes: int) -> int:
        """Return the address of a new block; if no free place fits, more memory is mapped first, in whole pages."""
        missing = self._arena.missing_bytes(nbytes)
        if missing:
            whole_pages = -(-missing // PAGE_BYTES) * PAGE_BYTES
            self._range.grow(whole_pages, whole_pages)
            self._arena.grow(whole_pages)
        return self._range.address + self._arena.take(nbytes)

    def give(self, address: int) -> None:
        self._arena.give(address - self._range.address)

    def close(self) -> None:
        self._range.close()


def open_allocator(bench: gb.Bench, name: str, peak_bytes: int) -> Allocator:
    """Return a new allocator that holds no memory; `name` is `vmm`, `pool`, `cupy` or `malloc` (cudaMalloc)."""
    if name == "vmm":
        return MappedArena(bench, -(-_ROOM * peak_bytes // PAGE_BYTES) * PAGE_BYTES)
    if name == "pool":
        return StreamPool(bench)
    if name == "cupy":
        return CupyPool(bench)
    return RuntimeMalloc(bench)


class LiveBlocks:
    """The blocks in use, by number and in the order of their addresses; finds blocks that overlap."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, int]] = {}  # by block number: address and size
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def add(self, block: int, address: int, nbytes: int) -> None:
        """Add a block by its number; raises WrongAnswer if it overlaps a block that was added before."""
        place = bisect.bisect_right(self._starts, address)
        end = address + nbytes
        gb.expect(
            (place == 0 or self._ends[self._starts[place - 1]] <= address)
            and (place == len(self._starts) or end <= self._starts[place]),
            f"block {block} of {nbytes} bytes overlaps a block that is still in use",
        )
        self._starts.insert(place, address)
        self._ends[address] = end
        self.blocks[block] = address, nbytes

    def remove(self, block: int) -> int:
        """Remove the block number `block`, and return its address."""
        address, _ = self.blocks.pop(block)
        del self._starts[bisect.bisect_left(self._starts, address)], self._ends[address]
        return address


class Churn:
    """Runs a trace on a new allocator in every sample, and checks the blocks that it returns."""

    def __init__(
        self, bench: gb.Bench, name: str, trace: Sequence[MemoryOperation], peak_bytes: int, may_fail: bool = False
    ) -> None:
        self._bench, self._name, self._trace, self._peak_bytes = bench, name, trace, peak_bytes
        self._may_fail = may_fail
        bench.words(0, 0)  # loads the kernels now, because later there may be no free memory

    def seconds(self) -> list[float]:
        """Return the seconds of each operation of the trace, in order, up to the first one that fails."""
        allocator = open_allocator(self._bench, self._name, self._peak_bytes)
        addresses: dict[int, int] = {}
        seconds = []
        clock = time.perf_counter
        try:
            for operation in self._trace:
                if operation.nbytes:
                    start = clock()
                    address = allocate_or_none(allocator.take, operation.nbytes)
                    elapsed = clock() - start
                    if address is None:  # the check says which operation failed
                        break
                    addresses[operation.block] = address
                else:
                    address = addresses.pop(operation.block)
                    start = clock()
                    allocator.give(address)
                    elapsed = clock() - start
                seconds.append(elapsed)
        finally:
            self._close(allocator, addresses.values())
        return seconds

    @staticmethod
    def _close(allocator: Allocator, addresses: Any) -> None:
        for address in addresses:
            allocator.give(address)
        allocator.close()

    def check(self) -> gb.Observation:
        """Run the trace once, check its blocks, and return `first failure` and, at the peak, `held per byte used`."""
        free_bytes = self._bench.device.free_bytes()
        allocator = open_allocator(self._bench, self._name, self._peak_bytes)
        live, (at_peak, _), held, failed = LiveBlocks(), peak(self._trace), {}, len(self._trace)
        try:
            for index, operation in enumerate(self._trace):
                if not operation.nbytes:
                    allocator.give(live.remove(operation.block))
                    continue
                address = allocate_or_none(allocator.take, operation.nbytes)
                if address is None:
                    failed = index
                    break
                live.add(operation.block, address, operation.nbytes)
                if index == at_peak:
                    held = self._at_peak(live, free_bytes)
        finally:
            self._close(allocator, [address for address, _ in live.blocks.values()])
        gb.expect(
            self._may_fail or failed == len(self._trace), f"operation {failed} failed, although there is room for it"
        )
        return {**held, "first failure": gb.Observed(failed, "operations", "more")}

    def _at_peak(self, live: LiveBlocks, free_bytes: int) -> dict[str, gb.Observed]:
        """Fill the blocks in use and check them."""
        arrays = {block: array_at(self._bench, *place) for block, place in live.blocks.items()}
        for block, array in arrays.items():
            fill_pattern(self._bench, array, block)
        wrong = sum(wrong_words(self._bench, array, block) for block, array in arrays.items())
        gb.expect(wrong == 0, f"{wrong} words differ from what was written to the blocks in use")
        held = free_bytes - self._bench.device.free_bytes()
        return {"held per byte used": gb.Observed(held / sum(array.size for array in arrays.values()))}


@topic.case(
    when=lambda target: gb.on_gpu(target) and gb.beyond_quick(target),
    allocator=gb.points(("vmm",), smoke=("pool", "vmm"), full=("malloc", "pool", "cupy", "vmm")),
    trace=gb.points(("step",), full=("step", "tight")),
)
def churn(bench: gb.Bench, allocator: str, trace: str) -> gb.Task:
    """Seconds of one operation, taking or releasing a block, in the allocations of training steps drawn from a seed.

    `step` has 4 GiB in use at the peak, `tight` 85 % of the free memory. The first operation that fails is reported,
    and the memory held over the memory in use at the peak. The arena of `vmm` is written in Python."""
    peak_bytes = _PEAK_BYTES
    if trace == "tight":
        peak_bytes = int(bench.device.free_bytes() * _TIGHT_SHARE)
    else:
        bench.need(2 * peak_bytes)
    is_full = bench.target.tier == "full"
    many = _SLOW_COUNT if (allocator, trace) == _SLOW else _MANY
    operations = training_trace(_SEED, many if is_full else _FEW, peak_bytes)
    run = Churn(bench, allocator, operations, peak_bytes, may_fail=trace == "tight")
    effort = gb.POINT.with_tail(_TAIL) if is_full else gb.POINT
    stage = gb.Stage(run.seconds, gb.Work(items=1), "item", clock="self", effort=effort)
    return gb.Task.of(stage, check=run.check, notes={"allocations": str(len(operations) // 2)})
