"""Measure FP8 products by cuBLASLt whose operands have scales for parts of their rows.

A value is its 8 bits times the scale of its part. The parts are 128 elements along K of one row, 128 × 128 blocks,
or whole rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._matrix.data import Operands
from .._matrix.formats import MatrixProduct, Precision, Scales, Shape
from .._matrix.product import on_nvidia, precision_of
from .._matrix.vendor import heuristics
from ._beside import share_of_dense

_PART = 128  # one scale covers this many elements along K, and this many rows in a format by blocks
_STRIDE = 4  # scales of a row of blocks begin at a multiple of this number
_LOW, _HIGH = 0.5, 2.0

topic = gb.Topic(views=[gb.View("bars", "Scaled FP8 GEMM throughput by format", ("scaled",))])


@dataclass(frozen=True, slots=True)
class ScaleFormat:
    """The `rows` and the elements `along` K that share a scale (0: all of K), and the library's name of that `mode`."""

    mode: str
    rows: int
    along: int

    def shape(self, rows: int, k: int) -> tuple[int, int]:
        """Return the number of scales down the rows and along K."""
        return -(-rows // self.rows), -(-k // (self.along or k))

    def stored(self, scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return scales, of shape `shape(…)`, as a flat array in the library's order.

        Blocks lie row after row, each row padded to a multiple of four scales; other scales lie column after column."""
        if self.rows == 1:
            return np.ascontiguousarray(scales.T).ravel()
        padded = np.zeros((len(scales), -(-scales.shape[1] // _STRIDE) * _STRIDE), np.float32)
        padded[:, : scales.shape[1]] = scales
        return padded.ravel()


VECTORS = ScaleFormat("VEC128_32F", 1, _PART)
BLOCKS = ScaleFormat("BLK128x128_32F", _PART, _PART)
ROWS = ScaleFormat("OUTER_VEC_32F", 1, 0)
FORMATS_OF = {"block128": (VECTORS, BLOCKS), "vector128": (VECTORS, VECTORS), "row": (ROWS, ROWS)}


class ScaledOperands(Operands):
    """A and B (transposed) in FP8 with random scales from 0.5 to 2; the references are of the scaled values.

    `name` is the key of the scale formats in FORMATS_OF."""

    def __init__(self, bench: gb.Bench, precision: Precision, shape: Shape, name: str) -> None:
        super().__init__(bench, precision, shape)
        formats, rng = FORMATS_OF[name], self.rng
        rows = (shape.m, shape.n)
        scales = [
            rng.uniform(_LOW, _HIGH, scale_format.shape(count, shape.k)).astype(np.float32)
            for scale_format, count in zip(formats, rows, strict=True)
        ]
        pairs = zip(formats, scales, strict=True)
        a, b = (bench.xp.asarray(scale_format.stored(factors)) for scale_format, factors in pairs)
        self.scales = Scales(a, b, (formats[0].mode, formats[1].mode))
        # A row of scales for each row of A, and for each row of B as B is stored.
        self._factors = [
            bench.xp.asarray(np.repeat(factors.astype(float), scale_format.rows, axis=0)[:count])
            for scale_format, factors, count in zip(formats, scales, rows, strict=True)
        ]

    @property
    def product(self) -> MatrixProduct:
        """The product of these operands with their scales."""
        return replace(super().product, scales=self.scales)

    def _a_rows(self, a: Any, lines: Any, absolute: bool = False) -> Any:
        """Like Operands, but return rows of A times their scales."""
        return _scaled(super()._a_rows(a, lines, absolute), self._factors[0][lines])

    def _b_columns(self, b: Any, first: int, count: int, absolute: bool = False) -> Any:
        """Like Operands, but return columns of B times their scales."""
        stored = super()._b_columns(b, first, count, absolute).T
        return _scaled(stored, self._factors[1][first : first + count]).T


def _scaled(values: Any, factors: Any) -> Any:
    """Return `values`, (rows, k), times the factors of their parts along K, (rows, parts); device doubles."""
    rows, parts = factors.shape
    return (values.reshape(rows, parts, -1) * factors[:, :, None]).reshape(values.shape)


@topic.case(
    format=gb.points(("block128",), full=tuple(FORMATS_OF)),
    n=gb.points((4096,), (1024,), (2048, 4096, 8192)),
    when=on_nvidia,
)
def scaled(bench: gb.Bench, format: str, n: int) -> gb.Task:  # noqa: A002 - the name of the axis
    """Throughput of C = A·B of N×N matrices in FP8 with scales, B transposed: 2·N³ operations, scaling not counted.

    `of dense` is the rate as a share of the same product without scales. Raises Skip if cuBLASLt does not support the
    scales."""
    precision = precision_of(bench, "float8_e4m3")
    operands = ScaledOperands(bench, precision, Shape(n, n, n, precision.order), format)
    proposals = heuristics(bench, operands.product, 1)
    if not proposals:
        raise gb.Skip(f"cuBLASLt has no algorithm for FP8 with scales by {format} on {bench.traits.arch}")
    plain = replace(operands.product, scales=None, c=bench.xp.empty_like(operands.c))
    dense = heuristics(bench, plain, 1)[0]
    probe = share_of_dense(bench, proposals[0].call, dense.call)
    stage = replace(operands.stage(proposals[0].call, gb.POINT), probe=probe)
    modes = " and ".join(operands.scales.modes)
    notes = {**proposals[0].notes, "scales of A and B": modes, **operands.notes}
    return gb.Task.of(stage, check=operands.check, notes=notes)
