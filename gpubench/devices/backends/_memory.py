"""Allocate GPU memory that another process can open; each step is a method, so that each can be timed.

`raw` is an allocation by the runtime itself, `block` a part of a larger one (as a framework's pool hands it out),
`pool` a block of the driver's stream-ordered pool, `virtual` physical memory that is mapped explicitly. The last two
need cuda-bindings and pass a file descriptor."""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from gpubench.base.errors import Skip
from gpubench.devices.native.driver import Driver
from gpubench.plugins.backend import Handle, SharedBuffer, SharedMemory

_BLOCKS = 4  # a `block` is part of an allocation of four times its size
_OFFSET = struct.Struct("<Q")
_EXPORT_BYTES = 64  # the size of CUmemPoolPtrExportData, cuda.h


class SharedRegion:
    """Memory that processes share: a CuPy array of uint8, and the handle by which others open it, or b""."""

    def __init__(self, array: Any, handle: bytes, close: Callable[[], object]) -> None:
        self.array = array
        self.handle = handle
        self._close = close

    def close(self) -> None:
        """Release the memory; arrays made of it must be gone."""
        self.array = None
        self._close()


def array_at(cupy: Any, address: int, nbytes: int, owner: object) -> Any:
    """Return the memory at `address`, which CuPy does not own, as an array of uint8 that keeps `owner` alive."""
    memory = cupy.cuda.UnownedMemory(address, nbytes, owner, cupy.cuda.Device().id)
    return cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))


class RawMemory:
    """A separate allocation (cudaMalloc), opened through the runtime's handle of 64 bytes."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime

    def allocate(self, nbytes: int) -> SharedBuffer:
        memory = self._cupy.cuda.Memory(nbytes)  # not from a pool, because a handle names a whole allocation
        array = self._cupy.ndarray((nbytes,), self._cupy.uint8, self._cupy.cuda.MemoryPointer(memory, 0))
        return SharedRegion(array, b"", lambda: None)  # the memory is freed with its last array

    def export(self, buffer: SharedBuffer) -> Handle:
        return Handle(bytes(self._runtime.ipcGetMemHandle(buffer.array.data.ptr)))

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        address = self._runtime.ipcOpenMemHandle(handle.data)
        array = array_at(self._cupy, address, nbytes, self)
        return SharedRegion(array, handle.data, lambda: self._runtime.ipcCloseMemHandle(address))


class SuballocatedMemory(RawMemory):
    """A block inside a larger allocation: its handle names the allocation, so its offset is passed too."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        whole = super().allocate(_BLOCKS * nbytes)
        return SharedRegion(whole.array[nbytes : 2 * nbytes], b"", lambda: None)

    def export(self, buffer: SharedBuffer) -> Handle:
        base = buffer.array.data.mem.ptr
        offset = buffer.array.data.ptr - base
        return Handle(_OFFSET.pack(offset) + bytes(self._runtime.ipcGetMemHandle(base)))

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        (offset,) = _OFFSET.unpack_from(handle.data)
        address = self._runtime.ipcOpenMemHandle(handle.data[_OFFSET.size :])
        array = array_at(self._cupy, address + offset, nbytes, self)
        return SharedRegion(array, handle.data, lambda: self._runtime.ipcCloseMemHandle(address))


class VirtualMemory:
    """Physical memory (cuMemCreate) mapped into a reserved range; other processes open it by a descriptor."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._driver = Driver()
        self._device = int(cupy.cuda.Device().id)
        self._physical: dict[int, Any] = {}  # address → handle of the physical memory mapped there

    def allocate(self, nbytes: int) -> SharedBuffer:
        return self._map(self._driver("cuMemCreate", self._rounded_up(nbytes), self._properties(), 0), nbytes)

    def export(self, buffer: SharedBuffer) -> Handle:
        physical = self._physical[buffer.array.data.ptr]
        descriptor = self._driver("cuMemExportToShareableHandle", physical, self._driver.descriptor, 0)
        return Handle(descriptors=(int(descriptor),))

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        (descriptor,) = handle.descriptors
        kind = self._driver.descriptor
        return self._map(self._driver("cuMemImportFromShareableHandle", descriptor, kind), nbytes)

    def _map(self, physical: Any, nbytes: int) -> SharedBuffer:
        """Map physical memory into a new range of addresses, and return the first `nbytes` bytes of the range."""
        size = self._rounded_up(nbytes)
        address = int(self._driver("cuMemAddressReserve", size, 0, 0, 0))
        self._driver("cuMemMap", address, size, 0, physical, 0)
        self._driver("cuMemSetAccess", address, size, [self._driver.access(self._device)], 1)
        self._physical[address] = physical
        array = array_at(self._cupy, address, nbytes, self)
        return SharedRegion(array, b"", lambda: self._unmap(address, size))

    def _unmap(self, address: int, size: int) -> None:
        """Unmap and release the physical memory at `address`, and free the range of `size` bytes."""
        self._driver("cuMemUnmap", address, size)
        self._driver("cuMemRelease", self._physical.pop(address))
        self._driver("cuMemAddressFree", address, size)

    def _rounded_up(self, nbytes: int) -> int:
        """Return `nbytes` rounded up to whole granules, the smallest unit of physical memory (2 MiB on an H200)."""
        least = self._driver.bindings.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granule = int(self._driver("cuMemGetAllocationGranularity", self._properties(), least))
        return -(-nbytes // granule) * granule

    def _properties(self) -> Any:
        properties = self._driver.bindings.CUmemAllocationProp()
        properties.type = self._driver.pinned
        properties.location = self._driver.location(self._device)
        properties.requestedHandleTypes = self._driver.descriptor
        return properties


class PoolMemory:
    """A block of a stream-ordered pool: a descriptor names the pool, and 64 bytes name the block in it."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._driver = Driver()
        self._device = int(cupy.cuda.Device().id)
        self._pools: dict[int, Any] = {}  # address of a block → its pool

    def allocate(self, nbytes: int) -> SharedBuffer:
        properties = self._driver.bindings.CUmemPoolProps()
        properties.allocType = self._driver.pinned
        properties.handleTypes = self._driver.descriptor
        properties.location = self._driver.location(self._device)
        pool = self._driver("cuMemPoolCreate", properties)
        address = int(self._driver("cuMemAllocFromPoolAsync", nbytes, pool, self._stream()))
        return self._as_region(pool, address, nbytes)

    def export(self, buffer: SharedBuffer) -> Handle:
        address = buffer.array.data.ptr
        pool = self._pools[address]
        descriptor = self._driver("cuMemPoolExportToShareableHandle", pool, self._driver.descriptor, 0)
        block = self._driver("cuMemPoolExportPointer", address)
        return Handle(ctypes.string_at(int(block.getPtr()), _EXPORT_BYTES), (int(descriptor),))

    def open(self, handle: Handle, nbytes: int) -> SharedBuffer:
        (descriptor,) = handle.descriptors
        pool = self._driver("cuMemPoolImportFromShareableHandle", descriptor, self._driver.descriptor, 0)
        self._driver("cuMemPoolSetAccess", pool, [self._driver.access(self._device)], 1)
        block = self._driver.bindings.CUmemPoolPtrExportData()
        ctypes.memmove(int(block.getPtr()), handle.data, _EXPORT_BYTES)
        return self._as_region(pool, int(self._driver("cuMemPoolImportPointer", pool, block)), nbytes)

    def _as_region(self, pool: Any, address: int, nbytes: int) -> SharedBuffer:
        self._pools[address] = pool
        return SharedRegion(array_at(self._cupy, address, nbytes, self), b"", lambda: self._free(address))

    def _free(self, address: int) -> None:
        self._driver("cuMemFreeAsync", address, self._stream())
        self._cupy.cuda.runtime.streamSynchronize(self._stream())
        self._driver("cuMemPoolDestroy", self._pools.pop(address))

    def _stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)


_KINDS: dict[str, Callable[[Any], SharedMemory]] = {
    "raw": RawMemory,
    "block": SuballocatedMemory,
    "pool": PoolMemory,
    "virtual": VirtualMemory,
}


def shared_memory(cupy: Any, kind: str) -> SharedMemory:
    """Return memory of a kind on the current device. Raises Skip if the installed software does not support it."""
    if kind not in _KINDS:
        raise Skip(f"a GPU does not support {kind} memory")
    if cupy.cuda.runtime.is_hip and kind in ("pool", "virtual"):
        raise Skip(f"CuPy on ROCm does not support exported {kind} memory")
    return _KINDS[kind](cupy)
