"""Virtual memory and blocks of the host in place of a GPU's: the suite's steps, arrays and allocators on real memory.

The host's kernel has the steps of CUDA's driver: a range without access (mmap), memory without an address
(memfd_create), and a mapping of one into the other.
"""

import ctypes
import dataclasses
import mmap
import os
import types
from typing import Any

import numpy as np

_NO_ACCESS, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_FIXED, _NO_RESERVE = 0x10, 0x4000  # MAP_FIXED, MAP_NORESERVE: mmap(2), Linux on x86-64 and arm64
_NOTHING_YET = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
_FAILED = ctypes.c_void_p(-1).value


class HostSpace:
    """The steps by the host's kernel; `create` allocates the memory at once, as the driver does."""

    def __init__(self, _bench=None):
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._munmap, self._mprotect = libc.mmap, libc.munmap, libc.mprotect
        size, flag = ctypes.c_size_t, ctypes.c_int
        self._mmap.argtypes = (ctypes.c_void_p, size, flag, flag, flag, ctypes.c_long)
        self._mmap.restype = ctypes.c_void_p
        self._munmap.argtypes = (ctypes.c_void_p, size)
        self._mprotect.argtypes = (ctypes.c_void_p, size, flag)

    def reserve(self, nbytes):
        return self._placed(None, nbytes, _NOTHING_YET, -1)

    def free(self, address, nbytes):
        assert self._munmap(address, nbytes) == 0

    def create(self, nbytes):
        descriptor = os.memfd_create("gpubench-virtual")
        os.posix_fallocate(descriptor, 0, nbytes)
        return descriptor

    def release(self, physical):
        os.close(physical)

    def map(self, address, nbytes, physical):
        self._placed(address, nbytes, mmap.MAP_SHARED | _FIXED, physical)

    def access(self, address, nbytes, _peers):
        assert self._mprotect(address, nbytes, _READ_WRITE) == 0

    def unmap(self, address, nbytes):
        self._placed(address, nbytes, _NOTHING_YET | _FIXED, -1)

    def _placed(self, address, nbytes, flags, descriptor):
        mapped = self._mmap(address, nbytes, _NO_ACCESS, flags, descriptor, 0)
        if mapped == _FAILED:
            raise OSError(ctypes.get_errno(), f"the kernel refused to map {nbytes} bytes")
        return int(mapped)


class HostMalloc:
    """The C library's malloc and free, as an allocator of the suite."""

    def __init__(self, _bench):
        libc = ctypes.CDLL(None)
        self._malloc, self._free = libc.malloc, libc.free
        self._malloc.argtypes, self._malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
        self._free.argtypes = (ctypes.c_void_p,)

    def take(self, nbytes):
        return int(self._malloc(nbytes))

    def give(self, address):
        self._free(address)

    def close(self):
        """Do nothing: no memory is held."""


def numpy_with_addresses():
    """Return NumPy with the parts of CuPy that make an array of memory at an address."""
    xp = types.ModuleType("numpy_with_addresses")
    xp.__dict__.update(np.__dict__)
    xp.cuda = types.SimpleNamespace(
        Device=lambda: types.SimpleNamespace(id=0),
        UnownedMemory=lambda address, nbytes, _owner, _device: (ctypes.c_uint8 * nbytes).from_address(address),
        MemoryPointer=lambda memory, _offset: memory,
    )
    return xp


@dataclasses.dataclass
class AddressedHost:
    """An open host device whose arrays can lie at any address, with a free memory that other programs do not change."""

    host: Any
    free: int = 2**40
    xp: Any = dataclasses.field(default_factory=numpy_with_addresses)

    def free_bytes(self):
        return self.free

    def __getattr__(self, name):
        return getattr(self.host, name)
