"""The formats of matrices and the precisions of products: how they are stored, computed and judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

_SPOILED_REAL = 0xFF  # a byte that makes NaN of every floating-point format
_SPOILED_INTEGER = 0x80  # 0x80808080 is no sum of products of int8 (data.cu knows it)


@dataclass(frozen=True, slots=True)
class Format:
    """A format as an array holds it: `storage` is a numpy dtype of its width, its own where numpy has it.

    `code` is its cudaDataType (library_types.h), `spoiled` a byte that no valid output repeats.
    """

    name: str
    storage: str
    code: int
    spoiled: int = _SPOILED_REAL

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.storage).itemsize)


FORMATS = {
    entry.name: entry
    for entry in (
        Format("float64", "float64", 1),
        Format("float32", "float32", 0),
        Format("float16", "float16", 2),
        Format("bfloat16", "uint16", 14),
        Format("float8_e4m3", "uint8", 28),
        Format("float8_e5m2", "uint8", 29),
        Format("int8", "int8", 3, _SPOILED_INTEGER),
        Format("int32", "int32", 10, _SPOILED_INTEGER),
    )
}


@dataclass(frozen=True, slots=True)
class Precision:
    """C = A·B in some formats, summed in some precision, held against the peak `limit`.

    `compute` is a cublasComputeType_t (cublas_api.h), `scalars` the format of alpha and beta. `narrow` and
    `sums` are the unit roundoffs of what the inputs become and the output is stored in, and of the sums: the
    relative error ‖C − R‖/‖R‖ may reach 4·narrow + √K·sums (Higham 2002, §3.1, random-walk growth).
    """

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
    def needs_transposed(self) -> bool:
        """Whether cuBLASLt takes only A as it lies and B transposed, the order of a layer's weights."""
        return self.c != self.a

    def bound(self, k: int) -> float:
        """The relative error that sums of k products may reach."""
        return 4 * self.narrow + math.sqrt(k) * self.sums


_HALF, _BRAIN, _SINGLE, _DOUBLE = 2.0**-11, 2.0**-8, 2.0**-24, 2.0**-53
# Hopper's tensor cores add FP8 products with about 14 bits (DeepSeek-V3 technical report, 2024, §3.3.2); two of slack.
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
    # the library has no product of two e5m2 matrices: gradients (e5m2) meet weights (e4m3)
    "float8_e5m2": Precision(
        "float8_e5m2", "float8_e4m3", "bfloat16", "tensor.float8", 68, "float32", _BRAIN, _EIGHT_SUMS
    ),
    "int8": Precision("int8", "int8", "int32", "tensor.int8", 72, "int32", 0.0, 0.0),
}

# float16 with sums in float16 too: half of the error's bound is theirs
HALF_SUMS = replace(PRECISIONS["float16"], compute=64, scalars="float16", sums=_HALF)


@dataclass(frozen=True, slots=True)
class Shape:
    """C (m × n) = A (m × k) · B (k × n), `batch` times, row by row; `order` says which of A, B lies transposed.

    `pitch` is how many elements lie from one row of A to the next, 0 where that is k.
    """

    m: int
    n: int
    k: int
    order: str = "nn"
    batch: int = 1
    pitch: int = 0

    @property
    def flops(self) -> float:
        """2·M·N·K a product: multiply and add."""
        return 2.0 * self.m * self.n * self.k * self.batch

    def moved(self, precision: Precision) -> float:
        """Bytes read and written at the least: each matrix once."""
        a, b, c = precision.formats
        each = self.m * self.k * a.itemsize + self.k * self.n * b.itemsize + self.m * self.n * c.itemsize
        return float(each * self.batch)

    @property
    def words(self) -> str:
        """`4096 × 6144 × 4096, B transposed`."""
        names = [name for name, order in zip("AB", self.order, strict=True) if order == "t"]
        tail = f", {' and '.join(names)} transposed" if names else ""
        return f"M×N×K {self.m}×{self.n}×{self.k}{tail}"
