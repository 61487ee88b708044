"""Submit copies by the driver's functions: find their addresses, and call the one that takes a whole batch.

The call for a batch takes C arrays, which are prepared once, so that one call through ctypes submits them all."""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

# The version of CUDA whose signatures are used here. It is the first with cuMemcpyBatchAsync; newer drivers still have
# the function of that version, which has one argument more than in CUDA 13, failIdx.
_SIGNATURES = 12080
_IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
_ADDRESSES = (ctypes.c_void_p,) * 3

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """The copies of blocks of `block_bytes` each: their target and source addresses, uint64 of shape (blocks,)."""

    targets: Words
    sources: Words
    block_bytes: int


class _CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes of cuda.h: the order of access, hints on both locations (type and id), flags."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_location", ctypes.c_int * 2),
        ("target_location", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


@functools.cache
def driver_function(name: str) -> int:
    """Return the address of the function `name` of CUDA's driver, in its version of CUDA 12.8.

    Raises Skip if the driver does not have the function, or if there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise gb.Skip(f"needs the driver's library libcuda.so.1 ({error})") from error
    address, query = ctypes.c_void_p(), ctypes.c_int()
    status = driver.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(address), _SIGNATURES, ctypes.c_uint64(0), ctypes.byref(query)
    )
    if status != 0 or not address.value:
        raise gb.Skip(
            f"the driver does not have {name} (error {status}, status {query.value}): needs CUDA 12.8 or newer"
        )
    return address.value


def as_a_batch(function: int, copies: BlockCopies, stream: int) -> Callable[[], None]:
    """Return a function that submits all `copies` to the stream at address `stream` by one call of cuMemcpyBatchAsync.

    `function` is the address of cuMemcpyBatchAsync."""
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, *_ADDRESSES, ctypes.c_size_t, *_ADDRESSES[:2], ctypes.c_size_t, *_ADDRESSES[:2]
    )
    submit = prototype(function)
    sizes = np.full(copies.targets.size, copies.block_bytes, np.uint64)
    attributes, first, failed = _CopyAttributes(order=_IN_STREAM_ORDER), ctypes.c_size_t(0), ctypes.c_size_t(0)
    lists = (copies.targets, copies.sources, sizes)
    args = (
        *(ctypes.c_void_p(array.ctypes.data) for array in lists),
        ctypes.c_size_t(sizes.size),
        ctypes.c_void_p(ctypes.addressof(attributes)),
        ctypes.c_void_p(ctypes.addressof(first)),
        ctypes.c_size_t(1),
        ctypes.c_void_p(ctypes.addressof(failed)),
        ctypes.c_void_p(stream),
    )

    def call(keep: Any = (lists, attributes, first)) -> None:
        del keep
        status = submit(*args)
        if status != 0:
            raise RuntimeError(f"cuMemcpyBatchAsync refused copy {failed.value}: CUDA error {status}")

    return call
