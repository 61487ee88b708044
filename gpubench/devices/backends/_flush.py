"""Flush a GPU's last-level cache."""

from importlib import resources
from typing import Any

import numpy as np

_THREADS = 256
_BLOCKS_PER_UNIT = 16  # blocks per SM or CU
_VECTOR_BYTES = 16


class CacheFlush:
    """An array larger than the last-level cache, which is written and then read.

    Reading it leaves clean lines."""

    def __init__(self, cupy: Any, nbytes: int, units: int) -> None:
        """Allocate an array of `nbytes` bytes and compile the kernel that reads it; `cupy` is the module."""
        self._runtime = cupy.cuda.runtime
        self._array = cupy.zeros(nbytes // _VECTOR_BYTES * _VECTOR_BYTES, cupy.uint8)
        self._never = cupy.zeros(1, cupy.uint32)
        source = (resources.files("gpubench.devices.backends") / "flush.cu").read_text(encoding="utf-8")
        module = cupy.RawModule(code=source)
        self._read_all = module.get_function("read_all")
        self._has_priorities = not self._runtime.is_hip and int(cupy.cuda.Device().compute_capability) >= 80
        if self._has_priorities:
            self._claim_all, self._release_all = module.get_function("claim_all"), module.get_function("release_all")
        self._grid = (max(1, units) * _BLOCKS_PER_UNIT,)

    def queue(self, stream: int) -> None:
        """Queue one flush of the cache on the stream with the address `stream`, which must be the current one."""
        count = np.uint64(self._array.nbytes // _VECTOR_BYTES)
        if self._has_priorities:
            self._claim_all(self._grid, (_THREADS,), (self._array, count, self._never))
            self._release_all(self._grid, (_THREADS,), (self._array, count))
        self._runtime.memsetAsync(self._array.data.ptr, 1, self._array.nbytes, stream)
        self._read_all(self._grid, (_THREADS,), (self._array, count, self._never))
