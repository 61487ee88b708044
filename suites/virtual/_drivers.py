"""Find the driver functions that are timed and forwarded: CUDA's own, or functions that act on the host's memory."""

from importlib import resources
from typing import Any

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._stream import need_numba

VERSION = 12_000  # CUDA 12.0: functions are looked up in the variant of that version, such as cuMemAlloc_v2
_SYMBOLS = (
    *("cuMemGetInfo", "cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH"),
    *("cuLaunchKernel", "cuStreamSynchronize"),
)
_CELLS = 10  # the kernel, the stream, two values, the kernel's three parameters and their addresses
NEEDS_NVIDIA = "needs CUDA's driver; HIP has the same calls, but they have not been tried yet"


class LocalDriver:
    """Seven calls of a driver in this process: `table` holds their addresses by the call numbers of `_wire`.

    Both are NumPy arrays, int64, of shapes (7,) and (10,)."""

    def __init__(self, bench: gb.Bench) -> None:
        self.cells = np.zeros(_CELLS, np.int64)
        self._context: Any = None
        if not bench.traits.is_gpu:
            need_numba(bench)
            from . import _host_calls

            self.table = _host_calls.host_table()
            return
        if bench.traits.vendor != "nvidia":
            raise gb.Skip(NEEDS_NVIDIA)
        self._driver = lib.Driver()
        self._context = self._driver("cuCtxGetCurrent")
        source = (resources.files(__package__) / "forward.cu").read_text(encoding="utf-8")
        self._kernel = bench.xp.RawModule(code=source).get_function("add_words")
        self.table = np.array([self.address(symbol) for symbol in _SYMBOLS], np.int64)
        self.cells[:2] = int(self._kernel.kernel.ptr), bench.device.stream

    def address(self, symbol: str) -> int:
        """Return the address of the driver function `symbol`, such as cuMemAlloc, in its variant for CUDA 12.0.

        There must be a GPU. Raises Skip if the driver does not have the function."""
        address, _ = self._driver("cuGetProcAddress", symbol.encode(), VERSION, 0)
        if not int(address):
            raise gb.Skip(f"the driver does not have {symbol}")
        return int(address)

    def enter(self) -> None:
        """Make the driver's context current in the calling thread; on the host, do nothing."""
        if self._context is not None:
            self._driver("cuCtxSetCurrent", self._context)
