"""Call the vendor's BLAS: cuBLASLt with its heuristics through nvmath-python, or the libraries that CuPy binds.

The libraries are column-major and our matrices row-major, so the call is Cᵀ = Bᵀ·Aᵀ."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from .._checks import in_turn
from .formats import FORMATS, Format, MatrixProduct, Precision, Scales, Shape

NEEDS_NVMATH = f"needs cuBLASLt through nvmath-python: {gb.installation.for_gpu()}"
WORKSPACE_BYTES = 32 * 2**20  # NVIDIA's recommendation for Hopper (cuBLAS documentation, cublasSetWorkspace)
_PROPOSALS, _TIMED = 8, 4  # algorithms of which the fastest is chosen, and products that each computes
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED
_THROUGH_HIPBLASLT = ("bfloat16", "float8_e4m3", "float8_e5m2", "int8")
_TRIED = (96, 64, 160)  # rows, columns and inner elements of the product that hipBLASLt must compute rightly
_GEMM_DEFAULT = -1  # cublasGemmAlgo_t: the library's own heuristics
_THROUGH_GEMMEX = ("float64", "float32", "float16", "bfloat16")

Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ProductCall:
    """The call that computes a product, and notes on the library and the algorithm."""

    call: Call
    notes: Mapping[str, str]


def vendor(bench: gb.Bench, product: MatrixProduct, workspace: Any = None, units: int = 0) -> ProductCall:
    """Return the call of a product by the best library here; raises Skip, with a reason, if none supports the product.

    On NVIDIA it is cuBLASLt, planned for `units` SMs (0: all), where nvmath-python is installed, else cublasGemmEx; on
    AMD hipBLASLt for its precisions if it computes a small product rightly, else rocBLAS."""
    precision, shape = product.precision, product.shape
    if bench.traits.vendor != "nvidia":
        if precision.a not in _THROUGH_HIPBLASLT:
            return _matmul(bench, product)
        if wrong := _mistake(bench, precision):
            raise gb.Skip(f"hipBLASLt is not used for {precision.a}, because a small product is wrong: {wrong}")
        return _hipblaslt(bench, product)
    if _binding() is not None:
        return heuristics(bench, product, 1, workspace, units)[0]
    plain = precision.a in _THROUGH_GEMMEX and not precision.needs_transposed
    if not plain or shape.batch > 1 or shape.pitch or product.activation != "none":
        raise gb.Skip(NEEDS_NVMATH)
    return _gemm_ex(bench, product)


def alike(bench: gb.Bench, products: Sequence[MatrixProduct], workspace: Any) -> list[Call]:
    """Return the calls of products of one shape by the fastest of cuBLASLt's proposals, or of the best library here.

    Each proposal computes the first products in turn, so that none finds its weights in a cache."""
    if bench.traits.vendor != "nvidia" or _binding() is None:
        return [vendor(bench, product, workspace).call for product in products]
    proposed = [
        [proposal.call for proposal in heuristics(bench, product, _PROPOSALS, workspace)] for product in products
    ]
    rounds = [in_turn(*calls) for calls in zip(*proposed[:_TIMED], strict=True)]
    seconds = [bench.device.time(calls, 2, "hot", gated=False, lead=calls).device[0] for calls in rounds]
    return [calls[int(np.argmin(seconds))] for calls in proposed]


@functools.cache
def _binding() -> Any:
    """Return nvmath-python's module cublasLt, or None if it is not installed."""
    try:
        from nvmath.bindings import cublasLt
    except ImportError:
        return None
    return cublasLt


@functools.cache
def _handle() -> int:
    """Return the handle of cuBLASLt, which is created at the first call."""
    return int(_binding().create())


def heuristics(
    bench: gb.Bench, product: MatrixProduct, most: int, workspace: Any = None, units: int = 0
) -> list[ProductCall]:
    """Return at most `most` algorithms that cuBLASLt's heuristics propose, as calls, its first choice first.

    `workspace` and `units` are the same as for `vendor`. Raises Skip if cuBLASLt is unavailable or does not support the
    product."""
    lt = _binding() if bench.traits.vendor == "nvidia" else None
    if lt is None:
        raise gb.Skip(NEEDS_NVMATH)
    try:
        return _Problem(bench, lt, product, workspace, units).proposals(most)
    except lt.cuBLASLtError as error:
        if error.status != _NOT_SUPPORTED:
            raise
        reason = f"{lt.get_status_name(error.status)}, {lt.get_status_string(error.status)}"
        raise gb.Skip(f"cuBLASLt on {product.precision.a} of {product.shape}: {reason}") from error


class _Problem:
    """A product as cuBLASLt describes it; holds the memory that its calls point to.

    `lt` is nvmath-python's module cublasLt. Without a `workspace` it allocates one of WORKSPACE_BYTES."""

    def __init__(self, bench: gb.Bench, lt: Any, product: MatrixProduct, workspace: Any = None, units: int = 0) -> None:
        self._lt, self._product = lt, product
        precision = product.precision
        self._stream = bench.xp.cuda.get_current_stream().ptr
        self._workspace = bench.xp.empty(WORKSPACE_BYTES, "uint8") if workspace is None else workspace
        self._scalars = np.array([1, 0], FORMATS[precision.scalars].storage)
        self._desc = lt.matmul_desc_create(precision.compute, FORMATS[precision.scalars].code)
        attribute, epilogues = lt.MatmulDescAttribute, lt.Epilogue
        epilogue = {
            "none": epilogues.DEFAULT,
            "bias": epilogues.BIAS,
            "relu": epilogues.RELU_BIAS,
            "gelu": epilogues.GELU_BIAS,
        }[product.activation]
        first, second = (int(order == "t") for order in reversed(product.shape.order))
        attributes = {attribute.TRANSA: first, attribute.TRANSB: second, attribute.EPILOGUE: int(epilogue)}
        if product.activation != "none":
            attributes[attribute.BIAS_POINTER] = product.bias.data.ptr
            attributes[attribute.BIAS_DATA_TYPE] = precision.formats[2].code
        if units:
            attributes[attribute.SM_COUNT_TARGET] = units
        if product.scales is not None:
            attributes |= self._scale_attributes(product.scales)
        for name, value in attributes.items():
            self._set("matmul_desc", self._desc, name, value)
        self._layouts = self._create_layouts()

    def _set(self, kind: str, handle: int, attribute: Any, value: int) -> None:
        """Set an attribute of `handle`, whose `kind` is matmul_desc, matrix_layout or matmul_preference."""
        cell = np.array([value], getattr(self._lt, f"get_{kind}_attribute_dtype")(attribute))
        getattr(self._lt, f"{kind}_set_attribute")(handle, attribute, cell.ctypes.data, cell.nbytes)

    def _scale_attributes(self, scales: Scales) -> dict[Any, int]:
        """Return the attributes of scaled operands, keyed by MatmulDescAttribute; the library's A is our B."""
        attribute, modes = self._lt.MatmulDescAttribute, self._lt.MatmulMatrixScale
        if unknown := [name for name in scales.modes if not hasattr(modes, name)]:
            raise gb.Skip(f"this nvmath-python has no scales {unknown[0]}: pip install -U nvmath-python")
        mode_a, mode_b = (int(getattr(modes, name)) for name in scales.modes)
        return {
            attribute.A_SCALE_MODE: mode_b,
            attribute.A_SCALE_POINTER: scales.b.data.ptr,
            attribute.B_SCALE_MODE: mode_a,
            attribute.B_SCALE_POINTER: scales.a.data.ptr,
        }

    def _create_layouts(self) -> tuple[int, int, int]:
        """Return the handles of the library's layouts of B, A and C, whose rows are the library's columns."""
        shape = self._product.shape
        m, n, k = shape.m, shape.n, shape.k
        kind_a, kind_b, kind_c = self._product.precision.formats
        b = (n, k) if shape.order[1] == "n" else (k, n)
        a = (k, m) if shape.order[0] == "n" else (m, k)
        return (
            self._create_layout(kind_b.code, *b, b[0], k * n),
            self._create_layout(kind_a.code, *a, shape.pitch or a[0], m * k),
            self._create_layout(kind_c.code, n, m, n, m * n),
        )

    def _create_layout(self, code: int, high: int, wide: int, pitch: int, size: int) -> int:
        """Return the handle of a new matrix layout for `high` × `wide` elements of the format `code`, column-major."""
        layout = int(self._lt.matrix_layout_create(code, high, wide, pitch))
        attribute = self._lt.MatrixLayoutAttribute
        self._set("matrix_layout", layout, attribute.BATCH_COUNT, self._product.shape.batch)
        self._set("matrix_layout", layout, attribute.STRIDED_BATCH_OFFSET, size)
        return layout

    def proposals(self, most: int) -> list[ProductCall]:
        """Return at most `most` proposed algorithms as calls, the heuristics' first choice first."""
        lt = self._lt
        preference = lt.matmul_preference_create()
        attribute = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        self._set("matmul_preference", preference, attribute, WORKSPACE_BYTES)
        results = np.zeros(most, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, "int32")
        b, a, c = self._layouts
        lt.matmul_algo_get_heuristic(
            _handle(), self._desc, b, a, c, c, preference, most, results.ctypes.data, count.ctypes.data
        )
        lt.matmul_preference_destroy(preference)
        algorithms = [results[i : i + 1] for i in range(int(count[0]))]
        return [ProductCall(self._call(algorithm), self._notes(algorithm)) for algorithm in algorithms]

    def _call(self, algorithm: Any) -> Call:
        """Return the call of the product by `algorithm`, an element of the array of heuristic results, shape (1,)."""
        matmul, handle, desc, stream = self._lt.matmul, _handle(), self._desc, self._stream
        b, a, c = self._layouts
        at_a, at_b, at_c = (array.data.ptr for array in (self._product.a, self._product.b, self._product.c))
        alpha, beta = self._scalars.ctypes.data, self._scalars.ctypes.data + self._scalars.itemsize
        algo, workspace = algorithm.ctypes.data, self._workspace.data.ptr

        def call(keep: Any = (self, algorithm)) -> None:
            del keep
            matmul(
                handle, desc, alpha, at_b, b, at_a, a, beta, at_c, c, at_c, c, algo, workspace, WORKSPACE_BYTES, stream
            )

        return call

    def _notes(self, algorithm: Any) -> Mapping[str, str]:
        """Return the notes `library` (with its version), `algorithm` and `workspace` (its bytes) of one proposal."""
        lt = self._lt
        attribute = lt.MatmulAlgoConfigAttribute
        read = functools.partial(self._attribute, algorithm)
        tile = _enumerator_name(lt.MatmulTile, read(attribute.TILE_ID))
        stages = _enumerator_name(lt.MatmulStages, read(attribute.STAGES_ID))
        cluster = _enumerator_name(lt.ClusterShape, read(attribute.CLUSTER_SHAPE_ID))
        waves = float(algorithm["waves_count"][0])
        algorithm_id = f"{read(attribute.ID)}: tile {tile}, stages {stages}, cluster {cluster}"
        return {
            "library": f"cuBLASLt {lt.get_version()}",
            "algorithm": f"{algorithm_id}, split-K {read(attribute.SPLITK_NUM)}, {waves:.2f} waves",
            "workspace": f"{int(algorithm['workspace_size'][0])} of {WORKSPACE_BYTES} bytes",
        }

    def _attribute(self, algorithm: Any, attribute: Any) -> int:
        """Return an attribute of `algorithm`, an element of the heuristic results, as the library stores it."""
        cell = np.zeros(1, self._lt.get_matmul_algo_config_attribute_dtype(attribute))
        written = np.zeros(1, "uint64")
        self._lt.matmul_algo_config_get_attribute(
            algorithm.ctypes.data, attribute, cell.ctypes.data, cell.nbytes, written.ctypes.data
        )
        return int(cell[0])


def _enumerator_name(kind: Any, value: int) -> str:
    """Return the binding's name of a value without its prefix, or the number if the binding has no name for it."""
    return next((entry.name.partition("_")[2] for entry in kind if entry.value == value), str(value))


def _gemm_ex(bench: gb.Bench, product: MatrixProduct) -> ProductCall:
    """Return a call of cublasGemmEx, as CuPy binds it, by one algorithm of the library's own choice."""
    from cupy_backends.cuda.libs import cublas

    precision, shape = product.precision, product.shape
    m, n, k = shape.m, shape.n, shape.k
    handle = bench.xp.cuda.get_cublas_handle()
    scalars = np.array([1, 0], FORMATS[precision.scalars].storage)
    alpha, beta = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    kind, compute = precision.formats[0].code, precision.compute
    first, second = (int(order == "t") for order in reversed(shape.order))
    wide_b, wide_a = (k if first else n), (m if second else k)
    a, b, c = (array.data.ptr for array in (product.a, product.b, product.c))

    def call(keep: Any = (scalars, product)) -> None:
        """Queue the product; `keep` holds the memory to which the arguments point."""
        del keep
        cublas.gemmEx(
            handle, first, second, n, m, k, alpha, b, kind, wide_b, a, kind, wide_a, beta, c, kind, n, compute,
            _GEMM_DEFAULT,
        )  # fmt: skip

    version = int(cublas.getVersion(handle))
    return ProductCall(call, {"library": f"cuBLAS {version} gemmEx", "algorithm": "the library's own choice"})


def _matmul(bench: gb.Bench, product: MatrixProduct) -> ProductCall:
    """Return a call of rocBLAS through CuPy's matmul; raises Skip for other types than float64, float32 and float16."""
    precision, shape = product.precision, product.shape
    if precision.needs_transposed or precision.a == "bfloat16" or shape.pitch or product.activation != "none":
        raise gb.Skip(f"CuPy does not support this kind of {precision.a} product on {bench.traits.vendor} GPUs")

    def matrices(array: Any, kind: Format, rows: int, columns: int, order: str = "n") -> Any:
        stored_shape = (rows, columns) if order == "n" else (columns, rows)
        matrix = array.view(kind.storage)[: shape.batch * rows * columns].reshape(shape.batch, *stored_shape)
        matrix = matrix if order == "n" else matrix.swapaxes(1, 2)
        return matrix if shape.batch > 1 else matrix[0]

    kind_a, kind_b, kind_c = precision.formats
    a = matrices(product.a, kind_a, shape.m, shape.k, shape.order[0])
    b = matrices(product.b, kind_b, shape.k, shape.n, shape.order[1])
    c = matrices(product.c, kind_c, shape.m, shape.n)
    return ProductCall(lambda: bench.xp.matmul(a, b, out=c), {"library": "rocBLAS through CuPy's matmul"})


_mistakes: dict[tuple[str, Precision], str] = {}  # by device and precision, of this process


def _mistake(bench: gb.Bench, precision: Precision) -> str:
    """Return what is wrong with a small product by hipBLASLt, empty if it is right; each precision is tried once."""
    key = (bench.device.device.id, precision)
    if key not in _mistakes:
        from .data import Operands  # which knows this module's products

        operands = Operands(bench, precision, Shape(*_TRIED, precision.order))
        bench.poison(operands.c)
        _hipblaslt(bench, operands.product).call()
        bench.device.synchronize()
        try:
            operands.check()
            _mistakes[key] = ""
        except gb.WrongAnswer as error:
            _mistakes[key] = str(error)
    return _mistakes[key]


def _hipblaslt(bench: gb.Bench, product: MatrixProduct) -> ProductCall:
    """Return a call of hipBLASLt's first choice; raises Skip for epilogues and unsupported products."""
    precision, shape = product.precision, product.shape
    if product.activation != "none":
        raise gb.Skip(f"a fused {product.activation} is unsupported on {bench.traits.vendor} GPUs")
    m, n, k = shape.m, shape.n, shape.k
    kind_a, kind_b, kind_c = (kind.name for kind in precision.formats)
    factor = 1
    if kind_a.startswith("float8") and "ocp_float8" not in bench.traits.features:
        # The same bits have half the value in CDNA 3's formats, whose exponents have a bias that is larger by 1.
        kind_a, kind_b, factor = f"{kind_a}fnuz", f"{kind_b}fnuz", 4
    across, down = (order == "t" for order in shape.order)
    a = lib.hipblaslt.Operand(product.a.data.ptr, kind_a, *((k, m) if across else (m, k)), shape.pitch)
    b = lib.hipblaslt.Operand(product.b.data.ptr, kind_b, *((n, k) if down else (k, n)))
    c = lib.hipblaslt.Operand(product.c.data.ptr, kind_c, m, n)
    try:
        queued = lib.hipblaslt.Product(a, b, c, (across, down), shape.batch, factor)
    except lib.hipblaslt.HipblasltError as error:
        if error.status != lib.hipblaslt.NOT_SUPPORTED:
            raise
        raise gb.Skip(f"hipBLASLt on {precision.a} of {shape}: not supported") from error
    workspace = bench.xp.empty(lib.hipblaslt.WORKSPACE_BYTES, "uint8")
    stream = int(bench.xp.cuda.get_current_stream().ptr)
    notes = {
        "library": "hipBLASLt",
        "algorithm": "the heuristics' first choice",
        "workspace": f"{queued.workspace_bytes} of {lib.hipblaslt.WORKSPACE_BYTES} bytes",
    }

    def call(keep: Any = product) -> None:
        del keep
        queued.queue(workspace.data.ptr, stream)

    return ProductCall(call, notes)
