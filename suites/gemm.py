"""Dense matrix products through the vendor's BLAS: squares by precision, 2·N³ operations a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import Bench, Observation, Observed, Skip, Stage, Suite, Target, Task, View, Work, expect, points

suite = Suite(
    "matrix multiplication through the vendor's BLAS, C = A·B, squares by precision, N(0,1) data",
    views=[
        View("curve", "GEMM rate over size", ("square",), x="n", by=("dtype",), log_x=True),
        View("bars", "GEMM rate by precision and size", ("square",)),
    ],
)

_CHECKED = 64  # random rows (in double precision: a block of 64 × 64) that are compared
_GEMM_DEFAULT = -1  # cublasGemmAlgo_t: the library's own heuristics


@dataclass(frozen=True, slots=True)
class Precision:
    """How a precision is stored, computed and judged.

    `storage` is the array's dtype (bfloat16 travels as its 16 bits), `limit` the peak it is held
    against. `narrow` and `accumulate` are the unit roundoffs of the inputs and outputs and of the
    sums: ‖C − R‖/‖R‖ may reach 4·narrow + √N·accumulate (Higham 2002, §3.1, random-walk growth).
    """

    storage: str
    limit: str
    narrow: float
    accumulate: float
    data_type: int  # cudaDataType, library_types.h
    compute_type: int  # cublasComputeType_t, cublas_api.h


_PRECISIONS = {
    "float64": Precision("float64", "tensor.float64", 2**-53, 2**-53, 1, 70),
    "float32": Precision("float32", "float32", 2**-24, 2**-24, 0, 68),
    "tf32": Precision("float32", "tensor.tf32", 2**-11, 2**-24, 0, 77),
    "float16": Precision("float16", "tensor.float16", 2**-11, 2**-24, 2, 68),
    "bfloat16": Precision("uint16", "tensor.bfloat16", 2**-8, 2**-24, 14, 68),
}


def _precisions(target: Target) -> tuple[str, ...]:
    return tuple(name for name in _PRECISIONS if name in target.device.dtypes)


def _sizes(target: Target) -> Any:
    if target.is_host:
        return points(smoke=(256,), quick=(256, 512, 1024, 2048), full=(256, 512, 1024, 2048, 4096))
    return points(smoke=(1024,), quick=(1024, 2048, 4096, 8192), full=(512, 1024, 2048, 4096, 8192, 16384))


# The headline is the largest size that an H200 does not bring under its power cap: from there on the
# clock that the cap leaves decides, and differs by 2 % between processes.
@suite.case(dtype=_precisions, n=_sizes, headline={"dtype": "bfloat16", "n": 2048})
def square(bench: Bench, dtype: str, n: int) -> Task:
    """C = A·B of N×N matrices drawn from N(0,1); 2·N³ operations, 3·N² elements moved at the least."""
    precision = _PRECISIONS[dtype]
    itemsize = np.dtype(precision.storage).itemsize
    if bench.device.free_bytes() < 4 * n * n * max(itemsize, 4):
        raise Skip(f"three {n}×{n} {dtype} matrices do not fit the free memory")
    matrices = _Matrices(bench, precision, dtype, n)
    call = _vendor_call(bench, matrices) if bench.traits.is_gpu else matrices.host_product
    work = Work(flops=2.0 * n**3, moved=3.0 * n * n * itemsize)
    limit = precision.limit if bench.traits.is_gpu else dtype
    stage = Stage(call, work, "flops", limit, modes=("hot",), max_calls=64)
    notes = {"library": _library(bench), "data": "N(0,1)", "seed": str(bench.seed)}
    return Task.of(stage, check=matrices.check, poison=matrices.poison, notes=notes)


class _Matrices:
    """A, B and C of one case, row-major, and the check of 64 random rows in double precision."""

    def __init__(self, bench: Bench, precision: Precision, dtype: str, n: int) -> None:
        self.xp = bench.xp
        self.n = n
        self.precision = precision
        self.is_bfloat16 = dtype == "bfloat16"
        self.to_host = bench.device.to_host
        self.rng = bench.rng
        self.a = self._random()
        self.b = self._random()
        self.c = self.xp.empty((n, n), precision.storage)

    def _random(self) -> Any:
        if self.xp is np:
            return self.rng.standard_normal((self.n, self.n)).astype(self.precision.storage)
        generator = self.xp.random.default_rng(int(self.rng.integers(2**31)))
        drawn = generator.standard_normal((self.n, self.n), dtype=self.xp.float32)
        if self.is_bfloat16:
            return _to_bfloat16(self.xp, drawn)
        if self.precision.storage == "float64":
            return generator.standard_normal((self.n, self.n), dtype=self.xp.float64)
        return drawn.astype(self.precision.storage)

    def poison(self) -> None:
        """Fill C with NaN, so that an element that is not written is seen."""
        self.c.fill(0x7FC0 if self.is_bfloat16 else np.nan)

    def host_product(self) -> None:
        """NumPy's BLAS."""
        np.matmul(self.a, self.b, out=self.c)

    def _double(self, array: Any) -> Any:
        if self.is_bfloat16:
            array = (array.astype(self.xp.uint32) << 16).view(self.xp.float32)
        return array.astype(self.xp.float64)

    def check(self) -> Observation:
        """‖C − R‖/‖R‖ over random rows against a wider product R, and no NaN anywhere in C."""
        total = float(self._double(self.c).sum())
        expect(bool(np.isfinite(total)), "C holds NaN or infinity: elements were not written")
        rows = self.rng.integers(0, self.n, _CHECKED)
        wide = self.precision.storage == "float64"
        found, reference = self._block(rows) if wide else self._rows(rows)
        error = float(np.linalg.norm(found - reference) / np.linalg.norm(reference))
        bound = 4 * self.precision.narrow + self.n**0.5 * self.precision.accumulate
        expect(error <= bound, f"relative error {error:.3g} in {_CHECKED} rows is above {bound:.3g}")
        return {"error": Observed(error)}

    def _rows(self, rows: Any) -> tuple[Any, Any]:
        """Rows of C and of the product in double precision, on the device itself."""
        index = self.xp.asarray(rows)
        reference = self._double(self.a[index]) @ self._double(self.b)
        return self.to_host(self._double(self.c[index])), self.to_host(reference)

    def _block(self, rows: Any) -> tuple[Any, Any]:
        """A block of C and of the product in extended precision, on the host: the wider one for float64."""
        columns = self.rng.integers(0, self.n, _CHECKED)
        across, down = self.xp.asarray(rows), self.xp.asarray(columns)
        a = self.to_host(self.a[across]).astype(np.longdouble)
        b = self.to_host(self.b[:, down]).astype(np.longdouble)
        found = self.to_host(self.c[across][:, down])
        return found, (a @ b).astype(np.float64)


def _to_bfloat16(xp: Any, array: Any) -> Any:
    """The upper 16 bits of float32, rounded to nearest even; N(0,1) holds no NaN."""
    bits = array.view(xp.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(xp.uint16)


def _vendor_call(bench: Bench, matrices: _Matrices) -> Callable[[], None]:
    """The call cublasGemmEx on row-major data: Cᵀ = Bᵀ·Aᵀ in the library's column-major terms."""
    if bench.traits.vendor != "nvidia":
        return lambda: bench.xp.matmul(matrices.a, matrices.b, out=matrices.c)
    from cupy_backends.cuda.libs import cublas

    xp, n, precision = bench.xp, matrices.n, matrices.precision
    handle = xp.cuda.get_cublas_handle()
    scalars = np.array([1.0, 0.0], "float64" if precision.storage == "float64" else "float32")
    one, zero = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    kind, compute = precision.data_type, precision.compute_type
    a, b, c = matrices.a.data.ptr, matrices.b.data.ptr, matrices.c.data.ptr

    def call(keep: Any = scalars) -> None:
        del keep
        cublas.gemmEx(handle, 0, 0, n, n, n, one, b, kind, n, a, kind, n, zero, c, kind, n, compute, _GEMM_DEFAULT)

    return call


def _library(bench: Bench) -> str:
    if not bench.traits.is_gpu:
        build = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"NumPy {np.__version__} with {build['name']} {build['version']}, {bench.device.device.units} cores"
    return "cuBLAS gemmEx" if bench.traits.vendor == "nvidia" else "rocBLAS through CuPy's matmul"
