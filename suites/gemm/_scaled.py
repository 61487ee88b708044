"""Measure FP8 and FP4 products by cuBLASLt whose operands have scales for parts of their rows.

A value is its bits times the scale of its part. The parts are 16, 32 or 128 elements along K of one row, 128 × 128
blocks, or whole rows. MXFP8 and NVFP4, of 32 and 16 elements, are types of `square`; no GPU has run them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._matrix.data import Operands
from .._matrix.formats import NVFP4, MatrixProduct, Precision, Scales, Shape
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

    def drawn(self, rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
        """Return random scales from 0.5 to 2 that the format has."""
        return rng.uniform(_LOW, _HIGH, shape).astype(np.float32)

    def shape(self, rows: int, k: int) -> tuple[int, int]:
        """Return the number of scales down the rows and along K."""
        return -(-rows // self.rows), -(-k // (self.along or k))

    def stored(self, scales: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Return scales, of shape `shape(…)`, as a flat array in the library's order.

        Blocks lie row after row, each row padded to a multiple of four scales; other scales lie column after column."""
        if self.rows == 1:
            return np.ascontiguousarray(scales.T).ravel()
        padded = np.zeros((len(scales), -(-scales.shape[1] // _STRIDE) * _STRIDE), np.float32)
        padded[:, : scales.shape[1]] = scales
        return padded.ravel()


@dataclass(frozen=True, slots=True)
class MicroFormat(ScaleFormat):
    """Scales in eight bits for a few elements along K, in tiles of 128 rows and four scales (Blackwell).

    `exponent_bits` is 8 for UE8M0 and 4 for UE4M3, whose bias is 7."""

    exponent_bits: int

    def drawn(self, rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
        codes = rng.integers(126, 129, shape) if self.exponent_bits == 8 else rng.integers(0x30, 0x41, shape)
        return self.value(codes)

    def value(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the values of codes, which must be normal numbers of UE4M3."""
        if self.exponent_bits == 8:
            return np.asarray(np.ldexp(np.float32(1), codes.astype(int) - 127))
        return np.asarray(np.ldexp(1 + (codes & 7) / np.float32(8), (codes.astype(int) >> 3) - 7))

    def places(self, rows: int, parts: int) -> npt.NDArray[np.int64]:
        """Return where the scale of each row and part lies (cuBLAS, "1D block scaling factors layout")."""
        row, part = np.arange(rows)[:, None], np.arange(parts)[None, :]
        tile = row // _PART * -(-parts // _STRIDE) + part // _STRIDE
        return tile * (_PART * _STRIDE) + row % 32 * 16 + row % _PART // 32 * _STRIDE + part % _STRIDE

    def stored(self, scales: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        rows, parts = scales.shape
        fraction, exponent = np.frexp(scales)  # a fraction from 0.5 to 1
        if self.exponent_bits == 8:
            codes = exponent - 1 + 127
        else:
            codes = (exponent - 1 + 7) * 8 + np.rint((2 * fraction - 1) * 8).astype(int)
        padded = np.zeros(-(-rows // _PART) * -(-parts // _STRIDE) * _PART * _STRIDE, np.uint8)
        padded[self.places(rows, parts)] = codes
        return padded


VECTORS = ScaleFormat("VEC128_32F", 1, _PART)
BLOCKS = ScaleFormat("BLK128x128_32F", _PART, _PART)
ROWS = ScaleFormat("OUTER_VEC_32F", 1, 0)
MX, NV = MicroFormat("VEC32_UE8M0", 1, 32, 8), MicroFormat("VEC16_UE4M3", 1, 16, 4)
FORMATS_OF: dict[str, tuple[ScaleFormat, ScaleFormat]] = {
    "block128": (VECTORS, BLOCKS),
    "vector128": (VECTORS, VECTORS),
    "row": (ROWS, ROWS),
    "mxfp8": (MX, MX),
    "nvfp4": (NV, NV),
}
MICRO = ("mxfp8", "nvfp4")  # types of `square` on Blackwell
# The values of the codes of E2M1 (OCP Microscaling Formats, 2023, table 5); the fourth bit is the sign.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_EMULATED = 32  # random rows and columns that the host computes from the bytes that the library was given


class ScaledOperands(Operands):
    """A and B (transposed) in FP8 with random scales from 0.5 to 2; the references are of the scaled values.

    `name` is the key of the scale formats in FORMATS_OF."""

    def __init__(self, bench: gb.Bench, precision: Precision, shape: Shape, name: str) -> None:
        super().__init__(bench, precision, shape)
        formats, rng = FORMATS_OF[name], self.rng
        rows = (shape.m, shape.n)
        scales = [
            scale_format.drawn(rng, scale_format.shape(count, shape.k))
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


class FourBitOperands(ScaledOperands):
    """A and B of NVFP4: the codes lie in bytes for the references, and two in a byte for the library."""

    def __init__(self, bench: gb.Bench, shape: Shape) -> None:
        super().__init__(bench, NVFP4, shape, "nvfp4")
        self.packed_a, self.packed_b = (bench.xp.empty(array.size // 2, "uint8") for array in (self.a, self.b))
        self._pack()

    def _pack(self) -> None:
        for codes, packed in ((self.a, self.packed_a), (self.b, self.packed_b)):
            self._make.run("pack_nibbles", packed.size, codes, np.uint64(packed.size), packed)

    @property
    def product(self) -> MatrixProduct:
        """The product of these operands with their scales, as the library takes it."""
        return replace(super().product, a=self.packed_a, b=self.packed_b)

    def redraw(self) -> None:
        """Fill A with the data of a new seed, and pack it."""
        super().redraw()
        self._pack()

    def check(self) -> gb.Observation:
        """Like Operands, and compare some rows and columns with a product that the host makes of the packed bytes."""
        errors, shape = super().check(), self.shape
        rows, columns = (np.sort(self.rng.permutation(side)[:_EMULATED]) for side in (shape.m, shape.n))
        a = self._emulated(self.packed_a, self.scales.a, rows, shape.m)
        b = self._emulated(self.packed_b, self.scales.b, columns, shape.n)
        bits = self._to_host(self.c).reshape(shape.m, shape.n)[np.ix_(rows, columns)].astype(np.uint32)
        result, expected = (bits << 16).view(np.float32).astype(float), a @ b.T
        error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
        bound = self.precision.bound(shape.k)
        gb.expect(
            error <= bound, f"C differs by {error:.2g} from the host's product of the packed bytes, above {bound:.2g}"
        )
        return errors

    def _emulated(self, packed: Any, stored: Any, lines: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float64]:
        """Return rows of an operand as doubles, by the host alone: shape (lines, k)."""
        parts = self.shape.k // NV.along
        pairs = self._to_host(packed).reshape(count, -1)[lines]
        values = _E2M1[np.stack((pairs & 15, pairs >> 4), -1)].reshape(len(lines), parts, -1)
        codes = self._to_host(stored)[NV.places(count, parts)[lines]]
        return np.asarray((values * NV.value(codes)[:, :, None]).reshape(len(lines), -1))


@topic.case(
    format=gb.points(("block128",), full=tuple(name for name in FORMATS_OF if name not in MICRO)),
    n=gb.points((4096,), (1024,), (2048, 4096, 8192)),
    when=on_nvidia,
)
def scaled(bench: gb.Bench, format: str, n: int) -> gb.Task:  # noqa: A002 - the name of the axis
    """Throughput of C = A·B of N×N matrices in float8_e4m3 with scales, B transposed: 2·N³ operations.

    `of dense` is the rate as a share of the same product without scales. Raises Skip if cuBLASLt does not support the
    scales. `square` measures MXFP8 and NVFP4."""
    precision = precision_of(bench, "float8_e4m3")
    operands = ScaledOperands(bench, precision, Shape(n, n, n, precision.order), format)
    task = _task(bench, operands, format, gb.POINT)
    plain = MatrixProduct(precision, operands.shape, operands.a, operands.b, bench.xp.empty_like(operands.c))
    stage = task.stages[""]
    probe = share_of_dense(bench, stage.call, heuristics(bench, plain, 1)[0].call)
    return replace(task, stages={"": replace(stage, probe=probe)})


def micro_product(bench: gb.Bench, dtype: str, n: int, effort: Any) -> gb.Task:
    """Return the product of N×N matrices of a type in MICRO as a task; raises Skip if GPU or cuBLASLt lack it."""
    if "block_scales" not in bench.traits.features:
        raise gb.Skip(f"{dtype} needs the block scales of sm_100 or newer, not {bench.traits.arch}")
    precision = precision_of(bench, "float8_e4m3")
    shape = Shape(n, n, n, precision.order)
    operands = FourBitOperands(bench, shape) if dtype == "nvfp4" else ScaledOperands(bench, precision, shape, dtype)
    return _task(bench, operands, dtype, effort)


def _task(bench: gb.Bench, operands: ScaledOperands, name: str, effort: Any) -> gb.Task:
    proposals = heuristics(bench, operands.product, 1)
    if not proposals:
        raise gb.Skip(f"cuBLASLt has no algorithm for products with scales by {name} on {bench.traits.arch}")
    notes = {**proposals[0].notes, "scales of A and B": " and ".join(operands.scales.modes), **operands.notes}
    return gb.Task.of(operands.stage(proposals[0].call, effort), check=operands.check, notes=notes)
