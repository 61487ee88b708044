"""Use virtual memory step by step by the calls of CUDA's driver: reserve, create, map, access and unmap."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

PAGE_BYTES = 2**21  # the minimum granularity of NVIDIA's GPUs; sizes and offsets are multiples of it
_CLEARED_B_PER_S, _CLEARING_S = 2e11, 2e-3  # a third of the rate at which an H200 cleared memory, and a fixed time


class GpuSpace:
    """The driver's virtual memory on the current device; raises Skip on other vendors' GPUs."""

    def __init__(self, bench: gb.Bench, is_compressible: bool = False) -> None:
        if bench.traits.vendor != "nvidia":
            raise gb.Skip(
                "CuPy on ROCm does not bind HIP's calls for virtual memory (hipMemAddressReserve, hipMemCreate, "
                "hipMemMap); HIP itself has them"
            )
        self._driver = lib.Driver()
        device = int(bench.xp.cuda.Device().id)
        # Ids of peers are `cuda:N`, where N is the ordinal that this process sees too.
        peers = [int(peer.rpartition(":")[2]) for peer in bench.target.device.peers]
        self._descriptions = [self._driver.access(ordinal) for ordinal in (device, *peers)]
        self._properties = self._driver.bindings.CUmemAllocationProp()
        self._properties.type = self._driver.pinned
        self._properties.location = self._driver.location(device)
        if is_compressible:
            kind = self._driver.bindings.CUmemAllocationCompType.CU_MEM_ALLOCATION_COMP_GENERIC
            self._properties.allocFlags.compressionType = int(kind)
        least = self._driver.bindings.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granule = int(self._driver("cuMemGetAllocationGranularity", self._properties, least))
        if PAGE_BYTES % granule:
            raise gb.Skip(
                f"this GPU maps memory in granules of {gb.units.size(granule)}, not of {gb.units.size(PAGE_BYTES)}"
            )

    def reserve(self, nbytes: int) -> int:
        """Return the address of a newly reserved range without physical memory."""
        return int(self._driver("cuMemAddressReserve", nbytes, 0, 0, 0))

    def free(self, address: int, nbytes: int) -> None:
        self._driver("cuMemAddressFree", address, nbytes)

    def create(self, nbytes: int) -> Any:
        """Return physical memory without an address."""
        return self._driver("cuMemCreate", nbytes, self._properties, 0)

    def release(self, physical: Any) -> None:
        self._driver("cuMemRelease", physical)

    def map(self, address: int, nbytes: int, physical: Any) -> None:
        """Put physical memory at an address of a reserved range; it cannot be accessed yet."""
        self._driver("cuMemMap", address, nbytes, 0, physical, 0)

    def access(self, address: int, nbytes: int, peers: int) -> None:
        """Let the device and its first `peers` peers read and write."""
        descriptions = self._descriptions[: 1 + peers]
        self._driver("cuMemSetAccess", address, nbytes, descriptions, len(descriptions))

    def unmap(self, address: int, nbytes: int) -> None:
        """Unmap the memory of one call of `map`."""
        self._driver("cuMemUnmap", address, nbytes)

    def is_compressed(self, physical: Any) -> bool:
        """Return whether `physical`, memory from `create`, is compressible; the driver may have given plain memory."""
        properties = self._driver("cuMemGetAllocationPropertiesFromHandle", physical)
        return int(properties.allocFlags.compressionType) != 0


def array_at(bench: gb.Bench, address: int, nbytes: int) -> Any:
    """Return a CuPy array (uint8, shape (nbytes,)) over memory at `address` that the array does not own."""
    cuda = bench.xp.cuda
    memory = cuda.UnownedMemory(address, nbytes, bench.xp, int(cuda.Device().id))
    return bench.xp.ndarray((nbytes,), bench.xp.uint8, cuda.MemoryPointer(memory, 0))


def wait_until_cleared(nbytes: int) -> None:
    """Sleep for as long as a GPU may be busy with `nbytes` that were given back to it: 2 ms and 5 ms per GB."""
    time.sleep(_CLEARING_S + nbytes / _CLEARED_B_PER_S)


class MappedRange:
    """A reserved range of `capacity_bytes` addresses, of which the first `nbytes` have physical memory, in pieces."""

    def __init__(self, space: GpuSpace, capacity_bytes: int) -> None:
        self.space = space
        self.capacity_bytes = capacity_bytes
        self.address = space.reserve(capacity_bytes)
        self.nbytes = 0
        # Handles of physical memory and their sizes, in the order of their addresses.
        self._created: list[tuple[Any, int]] = []
        self._mapped: list[tuple[int, int]] = []  # addresses and sizes
        self._accessed_bytes = 0

    @classmethod
    def filled(cls, space: GpuSpace, nbytes: int, piece_bytes: int) -> MappedRange:
        """Return a range that has all its memory in pieces of `piece_bytes`; after an error nothing is kept."""
        with contextlib.ExitStack() as undo:
            mapped = cls(space, nbytes)
            undo.callback(mapped.close)
            mapped.grow(nbytes, piece_bytes)
            undo.pop_all()
        return mapped

    @property
    def physical(self) -> list[Any]:
        """The physical memory of the pieces, in the order of their addresses."""
        return [physical for physical, _ in self._created]

    def create(self, nbytes: int, piece_bytes: int) -> None:
        """Create `nbytes` of physical memory, in pieces of `piece_bytes`; the last piece may be smaller."""
        for start in range(0, nbytes, piece_bytes):
            size = min(piece_bytes, nbytes - start)
            self._created.append((self.space.create(size), size))

    def map(self) -> None:
        """Map the created pieces that are not mapped yet, behind the mapped ones."""
        for physical, size in self._created[len(self._mapped) :]:
            address = self.address + self.nbytes
            self.space.map(address, size, physical)
            self._mapped.append((address, size))
            self.nbytes += size

    def access(self, peers: int = 0) -> None:
        """Let the device and its first `peers` peers use the memory mapped since the last call."""
        start, self._accessed_bytes = self._accessed_bytes, self.nbytes
        self.space.access(self.address + start, self.nbytes - start, peers)

    def grow(self, nbytes: int, piece_bytes: int) -> None:
        """Create, map and allow access to `nbytes` more behind the present end, in pieces of `piece_bytes`."""
        self.create(nbytes, piece_bytes)
        self.map()
        self.access()

    def unmap(self, keep_bytes: int = 0) -> None:
        """Unmap pieces from the end, whole ones, until at most `keep_bytes` are mapped."""
        while self._mapped and self.nbytes > keep_bytes:
            address, size = self._mapped.pop()
            self.space.unmap(address, size)
            self.nbytes -= size
        self._accessed_bytes = min(self._accessed_bytes, self.nbytes)

    def release(self) -> None:
        """Give back the physical memory that is not mapped."""
        while len(self._created) > len(self._mapped):
            self.space.release(self._created.pop()[0])

    def close(self) -> None:
        """Unmap and give back all memory and the addresses; it also works after a step that failed."""
        self.unmap()
        self.release()
        if self.address:
            self.space.free(self.address, self.capacity_bytes)
            self.address = 0
