"""Multiply matrices with hipBLASLt by ctypes: bfloat16, FP8 and int8, which CuPy does not bind on ROCm.

**No GPU has run it**, so each precision has to pass a check of a small product before it is measured, and
GPUBENCH_HIPBLASLT=0 turns it off. The table was checked: sizes and numbers against the headers of hipBLASLt 1.1 (ROCm
7.1), and the functions that need no GPU.

Matrices are stored row by row, which the library reads as their transposes: C = A·B is computed as Cᵀ = Bᵀ·Aᵀ."""

import ctypes
import functools
import os
from collections.abc import Mapping
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from gpubench.base.errors import GpubenchError, Unavailable

_SONAME = "libhipblaslt.so.1"
SWITCH = "GPUBENCH_HIPBLASLT"
WORKSPACE_BYTES = 2**25  # the default maximum of AMD's own benchmark
# hipblas-common.h, hipblaslt.h
OP_N, OP_T = 111, 112
COMPUTE_32F, COMPUTE_32I = 2, 9
REAL_32F, INTEGER_32 = 0, 10
LAYOUT_BATCH_COUNT, LAYOUT_STRIDED_BATCH_OFFSET = 0, 1
DESC_TRANSA, DESC_TRANSB = 0, 1
PREF_MAX_WORKSPACE_BYTES = 1
NOT_SUPPORTED = 7
# library_types.h of HIP: formats that CUDA has too have CUDA's numbers.
FORMATS: Mapping[str, int] = {"float16": 2, "bfloat16": 14, "float32": 0, "float8_e4m3": 28, "float8_e5m2": 29,
                                "float8_e4m3fnuz": 1000, "float8_e5m2fnuz": 1001, "int8": 3, "int32": 10}  # fmt: skip


class Algo(ctypes.Structure):
    """An algorithm: hipblasLtMatmulAlgo_t."""

    _fields_ = (("data", c_uint8 * 16), ("max_workspace_bytes", c_size_t))


class HeuristicResult(ctypes.Structure):
    """A proposal of the heuristics: hipblasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", Algo),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "Create": (POINTER(c_void_p),),
    "GetVersion": (c_void_p, POINTER(c_int)),
    "MatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatrixLayoutGetAttribute": (c_void_p, c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "MatrixLayoutDestroy": (c_void_p,),
    "MatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "MatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulDescGetAttribute": (c_void_p, c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "MatmulDescDestroy": (c_void_p,),
    "MatmulPreferenceCreate": (POINTER(c_void_p),),
    "MatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulPreferenceDestroy": (c_void_p,),
    "MatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, POINTER(HeuristicResult), POINTER(c_int)),
    "Matmul": (
        c_void_p, c_void_p,
        c_void_p, c_void_p, c_void_p,  # alpha, A
        c_void_p, c_void_p,  # B
        c_void_p, c_void_p, c_void_p,  # beta, C
        c_void_p, c_void_p,  # D
        POINTER(Algo), c_void_p, c_size_t, c_void_p,
    ),
}  # fmt: skip


class HipblasltError(GpubenchError):
    """The library refused a call; `status` is its hipblasStatus_t."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"hipblasLt{function}: status {status}")
        self.status = status


def is_on() -> bool:
    """Return whether products may use hipBLASLt: the user has not turned it off."""
    return os.environ.get(SWITCH) != "0"


class HipblasltLibrary:
    """The loaded library; every method raises HipblasltError if a call fails."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._functions = {name: getattr(handle, f"hipblasLt{name}") for name in _FUNCTIONS}
        for name, arguments in _FUNCTIONS.items():
            self._functions[name].argtypes = arguments
            self._functions[name].restype = c_int

    def __call__(self, name: str, *arguments: Any) -> None:
        status = self._functions[name](*arguments)
        if status:
            raise HipblasltError(name, status)

    def create(self, name: str, *arguments: Any) -> c_void_p:
        """Return the handle of the object that the function `hipblasLt` + `name` (`MatmulDescCreate`) creates."""
        created = c_void_p()
        self(name, byref(created), *arguments)
        return created

    def layout(self, kind: str, rows: int, cols: int, pitch: int, batch: int = 1, apart: int = 0) -> c_void_p:
        """Return the handle of the layout of a batch of matrices, stored by column, `pitch` elements apart."""
        handle = self.create("MatrixLayoutCreate", FORMATS[kind], rows, cols, pitch)
        for attribute, value in ((LAYOUT_BATCH_COUNT, c_int32(batch)), (LAYOUT_STRIDED_BATCH_OFFSET, c_int64(apart))):
            self("MatrixLayoutSetAttribute", handle, attribute, byref(value), ctypes.sizeof(value))
        return handle

    def description(self, transpose_first: bool, transpose_second: bool, is_integer: bool = False) -> c_void_p:
        """Return the handle of the description of a product with sums in float32, or in int32 if `is_integer`."""
        sums = (COMPUTE_32I, INTEGER_32) if is_integer else (COMPUTE_32F, REAL_32F)
        handle = self.create("MatmulDescCreate", *sums)
        for attribute, transposed in ((DESC_TRANSA, transpose_first), (DESC_TRANSB, transpose_second)):
            value = c_int32(OP_T if transposed else OP_N)
            self("MatmulDescSetAttribute", handle, attribute, byref(value), ctypes.sizeof(value))
        return handle


@functools.cache
def load() -> HipblasltLibrary:
    """Return hipBLASLt of the user's ROCm, loaded once. Raises Unavailable if it cannot be loaded."""
    try:
        return HipblasltLibrary(ctypes.CDLL(_SONAME))
    except OSError as error:
        raise Unavailable(
            f"hipBLASLt is not usable here ({error})", "install the complete ROCm 7, including hipblaslt"
        ) from error


@functools.cache
def _context() -> c_void_p:
    return load().create("Create")


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix at `address`, row by row, with `pitch` elements from one row to the next (0: dense)."""

    address: int
    kind: str
    rows: int
    cols: int
    pitch: int = 0


class Product:
    """C = factor·A·B of matrices stored row by row; `transposed` says of a and b whether it is used transposed."""

    def __init__(
        self, a: Operand, b: Operand, c: Operand, transposed: tuple[bool, bool], batch: int = 1, factor: int = 1
    ) -> None:
        """Describe the product of `a` and `b` into `c`, and choose the library's best algorithm."""
        self._library = library = load()
        self._operands = b, a, c
        is_integer = c.kind == "int32"
        self._desc = library.description(transposed[1], transposed[0], is_integer)
        self._layouts = tuple(
            library.layout(
                operand.kind,
                operand.cols,
                operand.rows,
                operand.pitch or operand.cols,
                batch,
                operand.rows * operand.cols,
            )
            for operand in self._operands
        )
        self._scalars = ((c_int32 if is_integer else c_float) * 2)(factor, 0)
        self._proposal = self._propose()

    def _propose(self) -> HeuristicResult:
        """Return the best algorithm by the library's heuristics. Raises HipblasltError if there is none."""
        library, proposal, count = self._library, HeuristicResult(), c_int()
        preference, workspace_limit = library.create("MatmulPreferenceCreate"), c_uint64(WORKSPACE_BYTES)
        library(
            "MatmulPreferenceSetAttribute",
            preference,
            PREF_MAX_WORKSPACE_BYTES,
            byref(workspace_limit),
            ctypes.sizeof(workspace_limit),
        )
        b, a, c = self._layouts
        arguments = (_context(), self._desc, b, a, c, c, preference, 1, byref(proposal), byref(count))
        library("MatmulAlgoGetHeuristic", *arguments)
        library("MatmulPreferenceDestroy", preference)
        if not count.value:
            raise HipblasltError("MatmulAlgoGetHeuristic", NOT_SUPPORTED)
        return proposal

    @property
    def workspace_bytes(self) -> int:
        """Return the bytes of the workspace that the algorithm uses."""
        return int(self._proposal.workspace_bytes)

    def queue(self, workspace: int, stream: int) -> None:
        """Queue the product on a stream, with WORKSPACE_BYTES bytes on the device at the address `workspace`."""
        b, a, c = self._layouts
        at_b, at_a, at_c = (operand.address for operand in self._operands)
        alpha, beta = ctypes.addressof(self._scalars), ctypes.addressof(self._scalars) + ctypes.sizeof(c_float)
        self._library(
            "Matmul", _context(), self._desc, alpha, at_b, b, at_a, a, beta, at_c, c, at_c, c,
            byref(self._proposal.algo), workspace, WORKSPACE_BYTES, stream,
        )  # fmt: skip
