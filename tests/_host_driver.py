"""Seven functions that act on host memory like CUDA's driver on a device's: they return 0, or 2 without memory."""

import numba
import numpy as np
from _modules import shared_modules
from numba import types

FLAGS = shared_modules("_host_flags")[0]
post, seen = FLAGS.post, FLAGS.seen
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_FREE_PAGES, _ALL_PAGES, _PAGE_SIZE = 86, 85, 30  # _SC_AVPHYS_PAGES, _SC_PHYS_PAGES, _SC_PAGESIZE: Linux, glibc

_malloc = types.ExternalFunction("malloc", types.uintp(types.uintp))
_release = types.ExternalFunction("free", types.void(types.uintp))
_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))
_sysconf = types.ExternalFunction("sysconf", types.int64(types.int32))


def _memory_info(free_place, total_place):
    """Write the free and the total bytes of host memory to two addresses, as cuMemGetInfo does; return 0."""
    page = _sysconf(_PAGE_SIZE)
    post(np.uint64(free_place), np.uint64(_sysconf(_FREE_PAGES) * page))
    post(np.uint64(total_place), np.uint64(_sysconf(_ALL_PAGES) * page))
    return 0


def _allocate(place, nbytes):
    """Write the address of `nbytes` of new host memory to the address `place`; return 0, or 2 if there is no memory."""
    address = _malloc(np.uint64(nbytes))
    post(np.uint64(place), np.uint64(address))
    return 0 if address else _OUT_OF_MEMORY


def _free(address):
    _release(np.uint64(address))
    return 0


def _copy(target, source, nbytes, _stream):
    _memcpy(np.uint64(target), np.uint64(source), np.uint64(nbytes))
    return 0


def _launch(_kernel, _x, _y, _z, _dx, _dy, _dz, _shared, _stream, parameters):
    """Add a value to words, as the kernel of forward.cu does; only the argument `parameters` is used."""
    places = np.uint64(parameters)
    base = seen(seen(places))
    count = seen(seen(places + np.uint64(8)))
    value = seen(seen(places + np.uint64(16)))
    for index in range(count):
        word = base + np.uint64(8) * np.uint64(index)
        post(word, seen(word) + value)
    return 0


def _synchronize(_stream):
    return 0


def _address(function, arguments):
    signature = types.int32(*([types.int64] * arguments))
    return int(numba.cfunc(signature)(function).address)


def host_table():
    """Return the addresses of the host functions of the seven driver calls: a NumPy array, int64, shape (7,).

    The index is the call's number in `_wire`: MEMORY_INFO, ALLOCATE, FREE, TO_DEVICE, TO_HOST, LAUNCH, SYNCHRONIZE."""
    functions = (
        (_memory_info, 2),
        (_allocate, 2),
        (_free, 1),
        (_copy, 4),
        (_copy, 4),
        (_launch, 10),
        (_synchronize, 1),
    )
    return np.array([_address(*function) for function in functions], np.int64)


class HostDriver:
    """What LocalDriver is, for the memory of the host."""

    def __init__(self):
        self.table, self.cells = host_table(), np.zeros(12, np.int64)

    def enter(self):
        """Do nothing: there is no context."""

    def close(self):
        """Do nothing: there are no streams."""
