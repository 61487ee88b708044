"""Limit NumPy's products to one thread, so that each rank on the host has one processor."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

_MAPS = Path("/proc/self/maps")
# OpenBLAS under the names of NumPy's wheels, of Linux distributions and of its 64-bit build; then BLIS.
_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)


@functools.cache
def _calls() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Return the two functions of the loaded BLAS: one returns its number of threads, the other one sets it."""
    np.ones((2, 2)) @ np.ones((2, 2))
    paths = {
        line.split()[-1] for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines() if ".so" in line
    }
    for path in sorted(path for path in paths if any(name in Path(path).name for name in ("blas", "blis"))):
        loaded = ctypes.CDLL(path)
        for getter, setter in _NAMES:
            if hasattr(loaded, setter):
                return getattr(loaded, getter), getattr(loaded, setter)
    return None


def use_threads(count: int) -> int:
    """Let NumPy's products use `count` threads from now on; return the number of threads before.

    Returns 0 and changes nothing if the loaded BLAS is neither OpenBLAS nor BLIS."""
    calls = _calls()
    if calls is None:
        return 0
    before = int(calls[0]())
    calls[1](count)
    return before


def restore_threads(before: int) -> None:
    """Restore the number of threads `before`, the result of `use_threads`; 0 changes nothing."""
    if before:
        use_threads(before)
