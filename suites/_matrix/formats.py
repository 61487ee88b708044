"""Define the formats of matrices, and the precisions and shapes of products: how they are stored and judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Activation = Literal["none", "bias", "relu", "gelu"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of matrix elements, such as bfloat16.

    `storage` is the NumPy dtype of its arrays, one of the same width if NumPy does not have the format."""

    name: str
    storage: str
    code: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.storage).itemsize)

    @property
    def bits(self) -> int:
        """Bits of one element as the library reads it."""
        return 4 if self.name == "float4_e2m1" else 8 * self.itemsize


FORMATS = {
    entry.name: entry
    for entry in (
        Format("float64", "float64", 1),
        Format("float32", "float32", 0),
        Format("float16", "float16", 2),
        Format("bfloat16", "uint16", 14),
        Format("float8_e4m3", "uint8", 28),
        Format("float8_e5m2", "uint8", 29),
        Format("float4_e2m1", "uint8", 33),  # a code in a byte; the library reads two from a byte
        Format("int8", "int8", 3),
        Format("int32", "int32", 10),
    )
}


@dataclass(frozen=True, slots=True)
class Precision:
    """The formats of A, B and C = A·B and the precision of its sums; rates are compared with the peak `limit`.

    `compute` is a cublasComputeType_t (cublas_api.h), `scalars` the format of alpha and beta. `narrow` is the unit
    roundoff of the rounded inputs and of the stored output, `sums` the unit roundoff of the sums: the relative error ‖C
    − R‖/‖R‖ may reach 4·narrow + √K·sums (Higham 2002, §3.1, random-walk growth)."""

    a: str
    b: str
    c: str
    limit: str
    compute: int
    scalars: str
    narrow: float
    sums: float

    @property
    def formats(self) -> tuple[Format, Format, Format]:
        """The formats of A, B and C."""
        return FORMATS[self.a], FORMATS[self.b], FORMATS[self.c]

    @property
    def is_exact(self) -> bool:
        """Whether every sum is exact, so that results are compared exactly."""
        return self.sums == 0

    @property
    def is_double(self) -> bool:
        """Whether sums are in double precision, so that a reference needs more than double precision."""
        return self.sums == _DOUBLE

    @property
    def rounds_inputs(self) -> bool:
        """Whether A and B are rounded before they are multiplied: TF32."""
        return self.a == "float32" and self.narrow > _SINGLE

    @property
    def needs_transposed(self) -> bool:
        """Whether cuBLASLt supports only A as it is and B transposed: the order of the weights of a layer."""
        return self.c != self.a

    @property
    def order(self) -> str:
        """The order of A and B in a case that does not choose one: `nn`, or the only one that the library takes."""
        return "nt" if self.needs_transposed else "nn"

    def bound(self, k: int) -> float:
        """Return the largest relative error ‖C − R‖/‖R‖ that sums of k products may have."""
        return 4 * self.narrow + math.sqrt(k) * self.sums


_HALF, _BRAIN, _SINGLE, _DOUBLE = 2.0**-11, 2.0**-8, 2.0**-24, 2.0**-53
# Hopper's tensor cores add FP8 products with about 14 bits (DeepSeek-V3 technical report, 2024, §3.3.2); two bits are
# added as tolerance.
_EIGHT_SUMS = 2.0**-12

PRECISIONS = {
    "float64": Precision("float64", "float64", "float64", "tensor.float64", 70, "float64", _DOUBLE, _DOUBLE),
    "float32": Precision("float32", "float32", "float32", "float32", 68, "float32", _SINGLE, _SINGLE),
    "tf32": Precision("float32", "float32", "float32", "tensor.tf32", 77, "float32", _HALF, _SINGLE),
    "float16": Precision("float16", "float16", "float16", "tensor.float16", 68, "float32", _HALF, _SINGLE),
    "bfloat16": Precision("bfloat16", "bfloat16", "bfloat16", "tensor.bfloat16", 68, "float32", _BRAIN, _SINGLE),
    "float8_e4m3": Precision(
        "float8_e4m3", "float8_e4m3", "bfloat16", "tensor.float8", 68, "float32", _BRAIN, _EIGHT_SUMS
    ),
    # The library has no product of two e5m2 matrices: it multiplies gradients (e5m2) by weights (e4m3).
    "float8_e5m2": Precision(
        "float8_e5m2", "float8_e4m3", "bfloat16", "tensor.float8", 68, "float32", _BRAIN, _EIGHT_SUMS
    ),
    "int8": Precision("int8", "int8", "int32", "tensor.int8", 72, "int32", 0.0, 0.0),
}

# NVFP4: four bits with a scale for 16 elements along K. Not a key of PRECISIONS, because there are none without scales.
NVFP4 = Precision("float4_e2m1", "float4_e2m1", "bfloat16", "tensor.float4", 68, "float32", _BRAIN, _EIGHT_SUMS)
# float16 with sums in float16 as well
HALF_SUMS = replace(PRECISIONS["float16"], compute=64, scalars="float16", sums=_HALF)


@dataclass(frozen=True, slots=True)
class Shape:
    """C (m × n) = A (m × k) · B (k × n), `batch` times, row-major; `order` says which of A and B is transposed (t).

    `pitch` is the distance of two rows of A in elements; 0 means k."""

    m: int
    n: int
    k: int
    order: str = "nn"
    batch: int = 1
    pitch: int = 0

    @classmethod
    def parsed(cls, text: str, order: str = "nn") -> Shape:
        """Return the shape that `text` writes as MxNxK, such as 4096x64x131072; raises ValueError for other texts."""
        m, n, k = (int(side) for side in text.split("x"))
        return cls(m, n, k, order)

    @property
    def flops(self) -> float:
        """2·M·N·K a product: multiply and add."""
        return 2.0 * self.m * self.n * self.k * self.batch

    def moved(self, precision: Precision) -> float:
        """Return the least number of bytes that all products of the batch read and write: each matrix once."""
        a, b, c = precision.formats
        a_bits, b_bits, c_bits = self.m * self.k * a.bits, self.k * self.n * b.bits, self.m * self.n * c.bits
        return (a_bits + b_bits + c_bits) / 8 * self.batch

    def __str__(self) -> str:
        """Return the sizes and the transposed matrices: `M×N×K 4096×6144×4096, B transposed`."""
        names = [name for name, order in zip("AB", self.order, strict=True) if order == "t"]
        tail = f", {' and '.join(names)} transposed" if names else ""
        return f"M×N×K {self.m}×{self.n}×{self.k}{tail}"


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of parts of A and B as float32 CuPy arrays in the library's order.

    `modes` are the names for A and for B in cublasLtMatmulMatrixScale_t."""

    a: Any
    b: Any
    modes: tuple[str, str]


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """C = A·B on flat CuPy arrays, with a fused activation if any; `bias` has a number for each column of C.

    `bias` must be given if `activation` is not `none`. `scales` belong to A and B; None means unscaled."""

    precision: Precision
    shape: Shape
    a: Any
    b: Any
    c: Any
    bias: Any = None
    activation: Activation = "none"
    scales: Scales | None = None
