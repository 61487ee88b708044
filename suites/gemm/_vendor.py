"""The vendor's BLAS: cuBLASLt with its heuristics where nvmath-python is installed, else what CuPy binds.

The libraries think in columns, our matrices lie in rows, so the call is Cᵀ = Bᵀ·Aᵀ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpubench.api.libraries import hipblaslt
from gpubench.api.suite import Bench, Skip

from ._formats import FORMATS, Precision, Shape

NEEDS_NVMATH = "needs cuBLASLt through nvmath-python: pip install 'gpubench-suite[cuda13]' (or nvmath-python)"
_WORKSPACE_BYTES = 32 * 2**20  # what NVIDIA recommends on Hopper (cuBLAS documentation, cublasSetWorkspace)
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED
_THROUGH_HIPBLASLT = ("bfloat16", "float8_e4m3", "float8_e5m2")
_GEMM_DEFAULT = -1  # cublasGemmAlgo_t: the library's own heuristics
_THROUGH_GEMMEX = ("float64", "float32", "float16", "bfloat16")

Activation = Literal["none", "bias", "relu", "gelu"]
Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Vendor:
    """A product by the vendor's library: its call, and what is known of how it is done."""

    call: Call
    notes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Arrays:
    """The matrices of a product and, for an epilogue, the number that each column gets."""

    a: Any
    b: Any
    c: Any
    bias: Any = None


def vendor(bench: Bench, precision: Precision, shape: Shape, arrays: Arrays, activation: Activation = "none") -> Vendor:
    """The product by the best of what is here; raises Skip, in the library's words, where it has none."""
    if bench.traits.vendor != "nvidia":
        by = _hipblaslt if hipblaslt.is_on() and precision.a in _THROUGH_HIPBLASLT else _matmul
        return by(bench, precision, shape, arrays, activation)
    if _binding() is not None:
        return heuristics(bench, precision, shape, arrays, activation, 1)[0]
    plain = precision.a in _THROUGH_GEMMEX and not precision.needs_transposed
    if not plain or shape.batch > 1 or shape.pitch or activation != "none":
        raise Skip(NEEDS_NVMATH)
    return _gemm_ex(bench, precision, shape, arrays)


@functools.cache
def _binding() -> Any:
    try:
        from nvmath.bindings import cublasLt
    except ImportError:
        return None
    return cublasLt


@functools.cache
def _handle() -> int:
    return int(_binding().create())


def heuristics(
    bench: Bench, precision: Precision, shape: Shape, arrays: Arrays, activation: Activation, most: int
) -> list[Vendor]:
    """The algorithms that cuBLASLt's heuristics propose, its first choice first, at most `most`."""
    if bench.traits.vendor != "nvidia" or _binding() is None:
        raise Skip(NEEDS_NVMATH)
    lt = _binding()
    try:
        return _Problem(bench, lt, precision, shape, arrays, activation).proposals(most)
    except lt.cuBLASLtError as error:
        if error.status != _NOT_SUPPORTED:
            raise
        words = f"{lt.get_status_name(error.status)}, {lt.get_status_string(error.status)}"
        raise Skip(f"cuBLASLt on {precision.a} of {shape.words}: {words}") from error


class _Problem:
    """A product as cuBLASLt describes it; holds what its calls point to."""

    def __init__(
        self, bench: Bench, lt: Any, precision: Precision, shape: Shape, arrays: Arrays, activation: Activation
    ) -> None:
        self._lt, self._arrays = lt, arrays
        self._stream = bench.xp.cuda.get_current_stream().ptr
        self._workspace = bench.xp.empty(_WORKSPACE_BYTES, "uint8")
        self._scalars = np.array([1, 0], FORMATS[precision.scalars].storage)
        self._desc = lt.matmul_desc_create(precision.compute, FORMATS[precision.scalars].code)
        attribute = lt.MatmulDescAttribute
        first, second = (int(order == "t") for order in reversed(shape.order))
        self._describe(attribute.TRANSA, first)
        self._describe(attribute.TRANSB, second)
        self._describe(attribute.EPILOGUE, int(_epilogue(lt, activation)))
        if activation != "none":
            self._describe(attribute.BIAS_POINTER, arrays.bias.data.ptr)
            self._describe(attribute.BIAS_DATA_TYPE, precision.formats[2].code)
        self._layouts = self._laid_out(precision, shape)

    def _describe(self, attribute: Any, value: int) -> None:
        cell = np.array([value], self._lt.get_matmul_desc_attribute_dtype(attribute))
        self._lt.matmul_desc_set_attribute(self._desc, attribute, cell.ctypes.data, cell.nbytes)

    def _laid_out(self, precision: Precision, shape: Shape) -> tuple[int, int, int]:
        """The layouts of B, A and C, whose rows are columns here."""
        m, n, k = shape.m, shape.n, shape.k
        kind_a, kind_b, kind_c = precision.formats
        b = (n, k) if shape.order[1] == "n" else (k, n)
        a = (k, m) if shape.order[0] == "n" else (m, k)
        return (
            self._layout(kind_b.code, *b, b[0], k * n, shape.batch),
            self._layout(kind_a.code, *a, shape.pitch or a[0], m * k, shape.batch),
            self._layout(kind_c.code, n, m, n, m * n, shape.batch),
        )

    def _layout(self, code: int, high: int, wide: int, pitch: int, size: int, batch: int) -> int:
        lt = self._lt
        layout = int(lt.matrix_layout_create(code, high, wide, pitch))
        attribute = lt.MatrixLayoutAttribute
        for name, value in ((attribute.BATCH_COUNT, batch), (attribute.STRIDED_BATCH_OFFSET, size)):
            cell = np.array([value], lt.get_matrix_layout_attribute_dtype(name))
            lt.matrix_layout_set_attribute(layout, name, cell.ctypes.data, cell.nbytes)
        return layout

    def proposals(self, most: int) -> list[Vendor]:
        lt = self._lt
        preference = lt.matmul_preference_create()
        attribute = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        cell = np.array([_WORKSPACE_BYTES], lt.get_matmul_preference_attribute_dtype(attribute))
        lt.matmul_preference_set_attribute(preference, attribute, cell.ctypes.data, cell.nbytes)
        found = np.zeros(most, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, "int32")
        b, a, c = self._layouts
        lt.matmul_algo_get_heuristic(
            _handle(), self._desc, b, a, c, c, preference, most, found.ctypes.data, count.ctypes.data
        )
        lt.matmul_preference_destroy(preference)
        return [Vendor(self._call(found[i : i + 1]), self._notes(found[i : i + 1])) for i in range(int(count[0]))]

    def _call(self, algorithm: Any) -> Call:
        matmul, handle, desc, stream = self._lt.matmul, _handle(), self._desc, self._stream
        b, a, c = self._layouts
        at_a, at_b, at_c = (array.data.ptr for array in (self._arrays.a, self._arrays.b, self._arrays.c))
        one, zero = self._scalars.ctypes.data, self._scalars.ctypes.data + self._scalars.itemsize
        algo, workspace = algorithm.ctypes.data, self._workspace.data.ptr

        def call(keep: Any = (self, algorithm)) -> None:
            del keep
            matmul(
                handle, desc, one, at_b, b, at_a, a, zero, at_c, c, at_c, c, algo, workspace, _WORKSPACE_BYTES, stream
            )

        return call

    def _notes(self, algorithm: Any) -> Mapping[str, str]:
        lt = self._lt
        attribute = lt.MatmulAlgoConfigAttribute
        read = functools.partial(self._configured, algorithm)
        tile = _named(lt.MatmulTile, read(attribute.TILE_ID))
        stages = _named(lt.MatmulStages, read(attribute.STAGES_ID))
        cluster = _named(lt.ClusterShape, read(attribute.CLUSTER_SHAPE_ID))
        waves = float(algorithm["waves_count"][0])
        words = f"{read(attribute.ID)}: tile {tile}, stages {stages}, cluster {cluster}"
        return {
            "library": f"cuBLASLt {lt.get_version()}",
            "algorithm": f"{words}, split-K {read(attribute.SPLITK_NUM)}, {waves:.2f} waves",
            "workspace": f"{int(algorithm['workspace_size'][0])} of {_WORKSPACE_BYTES} bytes",
        }

    def _configured(self, algorithm: Any, attribute: Any) -> int:
        cell = np.zeros(1, self._lt.get_matmul_algo_config_attribute_dtype(attribute))
        written = np.zeros(1, "uint64")
        self._lt.matmul_algo_config_get_attribute(
            algorithm.ctypes.data, attribute, cell.ctypes.data, cell.nbytes, written.ctypes.data
        )
        return int(cell[0])


def _named(kind: Any, value: int) -> str:
    """What the binding calls a value, without the kind's prefix; the number where the library is the newer one."""
    return next((entry.name.partition("_")[2] for entry in kind if entry.value == value), str(value))


def _epilogue(lt: Any, activation: Activation) -> Any:
    kinds = lt.Epilogue
    return {"none": kinds.DEFAULT, "bias": kinds.BIAS, "relu": kinds.RELU_BIAS, "gelu": kinds.GELU_BIAS}[activation]


def _gemm_ex(bench: Bench, precision: Precision, shape: Shape, arrays: Arrays) -> Vendor:
    """cublasGemmEx, as CuPy binds it: one algorithm of the library's own choice."""
    from cupy_backends.cuda.libs import cublas

    m, n, k = shape.m, shape.n, shape.k
    handle = bench.xp.cuda.get_cublas_handle()
    scalars = np.array([1, 0], FORMATS[precision.scalars].storage)
    one, zero = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    kind, compute = precision.formats[0].code, precision.compute
    first, second = (int(order == "t") for order in reversed(shape.order))
    wide_b, wide_a = (k if first else n), (m if second else k)
    a, b, c = (array.data.ptr for array in (arrays.a, arrays.b, arrays.c))

    def call(keep: Any = (scalars, arrays)) -> None:
        del keep
        cublas.gemmEx(
            handle, first, second, n, m, k, one, b, kind, wide_b, a, kind, wide_a, zero, c, kind, n, compute,
            _GEMM_DEFAULT,
        )  # fmt: skip

    version = int(cublas.getVersion(handle))
    return Vendor(call, {"library": f"cuBLAS {version} gemmEx", "algorithm": "the library's own choice"})


def _matmul(bench: Bench, precision: Precision, shape: Shape, arrays: Arrays, activation: Activation) -> Vendor:
    """RocBLAS through CuPy's matmul: float64, float32 and float16, no batches and no epilogues."""
    if precision.needs_transposed or precision.a == "bfloat16" or shape.batch > 1 or activation != "none":
        raise Skip(f"CuPy binds no product of {precision.a} of this kind on {bench.traits.vendor} GPUs")
    a = arrays.a.reshape((shape.m, shape.k) if shape.order[0] == "n" else (shape.k, shape.m))
    b = arrays.b.reshape((shape.k, shape.n) if shape.order[1] == "n" else (shape.n, shape.k))
    a, b = (each.T if order == "t" else each for each, order in zip((a, b), shape.order, strict=True))
    c = arrays.c.reshape(shape.m, shape.n)
    return Vendor(lambda: bench.xp.matmul(a, b, out=c), {"library": "rocBLAS through CuPy's matmul"})


def _hipblaslt(bench: Bench, precision: Precision, shape: Shape, arrays: Arrays, activation: Activation) -> Vendor:
    """The first choice of hipBLASLt, no epilogues; never run on an AMD GPU, and off unless it is turned on."""
    if activation != "none":
        raise Skip(f"no fused {activation} on {bench.traits.vendor} GPUs")
    m, n, k = shape.m, shape.n, shape.k
    kind_a, kind_b, kind_c = (each.name for each in precision.formats)
    across, down = (order == "t" for order in shape.order)
    a = hipblaslt.Operand(arrays.a.data.ptr, kind_a, *((k, m) if across else (m, k)), shape.pitch)
    b = hipblaslt.Operand(arrays.b.data.ptr, kind_b, *((n, k) if down else (k, n)))
    c = hipblaslt.Operand(arrays.c.data.ptr, kind_c, m, n)
    try:
        product = hipblaslt.Product(a, b, c, (across, down), shape.batch)
    except hipblaslt.HipblasltError as error:
        if error.status != hipblaslt.NOT_SUPPORTED:
            raise
        raise Skip(f"hipBLASLt on {precision.a} of {shape.words}: not supported") from error
    workspace = bench.xp.empty(hipblaslt.WORKSPACE_BYTES, "uint8")
    stream = int(bench.xp.cuda.get_current_stream().ptr)
    notes = {
        "library": "hipBLASLt",
        "algorithm": "the heuristics' first choice",
        "workspace": f"{product.workspace_bytes} of {hipblaslt.WORKSPACE_BYTES} bytes",
    }

    def call(keep: Any = arrays) -> None:
        del keep
        product.queue(workspace.data.ptr, stream)

    return Vendor(call, notes)
