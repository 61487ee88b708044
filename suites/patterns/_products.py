"""Prepare and compare products of matrices: their numbers, and one thread per rank on the host.

The matrices of a seed are the same on every rank, in the number type of a device's products."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._matrix.data import Maker
from .._matrix.formats import FORMATS, PRECISIONS, MatrixProduct, Shape
from .._matrix.vendor import WORKSPACE_BYTES, vendor

HOST_TYPE, GPU_TYPE = "float32", "float16"
_TOLERANCE = {HOST_TYPE: 1e-4, GPU_TYPE: 1e-2}  # relative to the largest number: rounding, and a sum over some ranks
_MAPS = Path("/proc/self/maps")
# OpenBLAS under the names of NumPy's wheels, of Linux distributions and of its 64-bit build; then BLIS.
_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)


def type_of(bench: gb.Bench) -> str:
    """Return the number type of the device's products: `float16` on a GPU, `float32` on the host."""
    return GPU_TYPE if bench.traits.is_gpu else HOST_TYPE


def width_of(bench: gb.Bench) -> int:
    """Return the width of a layer in numbers: 256 on the host, 4096 on a GPU, and 128 on a GPU in the tier `smoke`."""
    if not bench.traits.is_gpu:
        return 256
    return 128 if bench.target.tier == "smoke" else 4096


class Normals:
    """Draws matrices of N(0, spread²)."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        self._maker = Maker(bench) if bench.traits.is_gpu else None

    def matrix(self, rows: int, cols: int, seed: int, spread: float = 1.0) -> Any:
        """Return a matrix on the device, shape (rows, cols), of numbers of `type_of` drawn from N(0, `spread`²)."""
        if self._maker is not None:
            kind = FORMATS[GPU_TYPE]
            return self._maker.drawn(kind, rows * cols, seed, spread=spread).reshape(rows, cols)
        rng = np.random.default_rng([self._bench.seed, seed])
        return np.float32(spread) * rng.standard_normal((rows, cols), dtype=np.float32)


class Products:
    """Computes products: on the host by NumPy, on a GPU by the vendor's library (cuBLASLt by its heuristics on NVIDIA).

    On a GPU a product is described at its first call; the three arrays must remain, and be contiguous."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        self.workspace = bench.xp.empty(WORKSPACE_BYTES, "uint8") if bench.traits.is_gpu else None
        self._calls: dict[tuple[int, int, int, Shape], Callable[[], object]] = {}

    def __call__(self, a: Any, b: Any, out: Any, order: str = "nn") -> None:
        """Write A·B to `out`; where `order` has a `t`, the array is the transposed factor."""
        if self.workspace is None:
            factors = (array.T if way == "t" else array for array, way in zip((a, b), order, strict=True))
            self._bench.xp.matmul(*factors, out=out)
            return
        rows, cols = out.shape
        shape = Shape(rows, cols, a.shape[0] if order[0] == "t" else a.shape[1], order)
        key = address(a), address(b), address(out), shape
        if key not in self._calls:
            described = MatrixProduct(PRECISIONS[GPU_TYPE], shape, a.reshape(-1), b.reshape(-1), out.reshape(-1))
            self._calls[key] = vendor(self._bench, described, self.workspace).call
        self._calls[key]()


def address(array: Any) -> int:
    """Return the address of an array of a GPU."""
    return int(array.data.ptr)


def expect_close(computed: Any, expected: Any, items: str) -> None:
    """Raise WrongAnswer if `computed` differs from the float64 array `expected` by more than rounding, or is NaN."""
    tolerance = _TOLERANCE[str(computed.dtype)] * float(np.abs(expected).max())
    wrong = int(np.count_nonzero(~(np.abs(computed.astype(np.float64) - expected) <= tolerance)))
    gb.expect(wrong == 0, f"{wrong} of {expected.size} {items} are wrong")


@functools.cache
def _blas_threads() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Return two functions of the loaded BLAS, which return and set its number of threads."""
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


def use_one_thread(bench: gb.Bench) -> Callable[[], object]:
    """Let products of NumPy use one thread if `bench` is of the host; return a call that restores the former number.

    Nothing changes if the loaded BLAS is neither OpenBLAS nor BLIS."""
    calls = _blas_threads() if bench.target.is_host else None
    if calls is None:
        return lambda: None
    threads, use_threads = calls
    before = threads()
    use_threads(1)
    return lambda: use_threads(before)
