"""NumPy's BLAS: which one it is and on how many threads it works."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np

# OpenBLAS under the names of NumPy's wheels, of distributions, and of its 64-bit build; BLIS; MKL
_QUESTIONS = (
    "scipy_openblas_get_num_threads64_",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
    "bli_thread_get_num_threads",
    "MKL_Get_Max_Threads",
)
_MAPS = Path("/proc/self/maps")


@functools.cache
def library() -> str:
    """`NumPy 2.4.6 with scipy-openblas 0.3.31`."""
    build = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"NumPy {np.__version__} with {build['name']} {build['version']}"


@functools.cache
def threads() -> str:
    """How many threads the loaded BLAS says it works on; `unknown` where it does not say."""
    np.ones((2, 2)) @ np.ones((2, 2))
    paths = {line.split()[-1] for line in _MAPS.read_text().splitlines() if ".so" in line}
    for path in sorted(path for path in paths if any(name in Path(path).name for name in ("blas", "blis", "mkl_rt"))):
        loaded = ctypes.CDLL(path)
        for question in _QUESTIONS:
            if hasattr(loaded, question):
                return str(int(getattr(loaded, question)()))
    return "unknown"
