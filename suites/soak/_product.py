"""Repeat products of the vendor's BLAS on fixed matrices: each must equal the first one bit by bit.

A library gives the same bits for the same product on GPUs of one architecture with the same number of SMs, if it
uses one stream and no atomics, as here (NVIDIA, cuBLAS documentation, "Results Reproducibility")."""

import hashlib
import itertools
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._identical import bits, effort, expect_identical, invert

_OUTPUTS = 4  # products that are timed together, each into its own memory, so that all are compared
_ROWS = 8  # rows of the first product that are compared with a product in float64
# Error of a row relative to its norm: rounding to the type, and sums of thousands of products in float32 or float64.
_TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}
_DRAWN = 2**22  # elements that are drawn at random; a larger matrix repeats them

topic = gb.Topic(
    views=[gb.View("bars", "Soak: product throughput", ("product",), by=("dtype", "size"), series="self")],
)


def _dtypes(target: gb.Target) -> Any:
    supported = tuple(dtype for dtype in _TOLERANCES if dtype in target.device.dtypes) or ("float64",)
    return gb.points(supported[-1:] if target.is_host else supported[:1], full=supported)


def _sizes(target: gb.Target) -> Any:
    return gb.points((512,), (128,), (1024,)) if target.is_host else gb.points((4096,), (1024,), (8192,))


@topic.case(dtype=_dtypes, size=_sizes, headline={"dtype": "float64"})
def product(bench: gb.Bench, dtype: str, size: int) -> gb.Task:
    """Throughput of products of `size` × `size` matrices of N(0,1), each compared bit by bit with the first one.

    A product counts as 2·size³ operations."""
    if dtype not in bench.device.device.dtypes and bench.traits.is_gpu:
        raise gb.Skip(f"{bench.device.device.name} does not support {dtype}")
    return _Product(bench, dtype, size).task()


class _Product:
    """Products of two fixed `size` × `size` matrices of `dtype`, the first product, and memory for further products.

    Raises Skip without enough free memory, and WrongAnswer if the first product is wrong."""

    def __init__(self, bench: gb.Bench, dtype: str, size: int) -> None:
        self._bench, self._size = bench, size
        nbytes = size * size * np.dtype(dtype).itemsize
        bench.need((3 + _OUTPUTS) * nbytes + size * size * 9)  # the columns in float64, and the mask of a comparison
        rng = bench.rng
        self._left, self._right = (bench.xp.asarray(_drawn(rng, size, dtype)) for _ in range(2))
        self._first = bench.xp.empty((size, size), dtype)
        self._outputs = [bench.xp.empty_like(self._first) for _ in range(_OUTPUTS)]
        self._kernel = f"product of {dtype} matrices of {size} × {size}"
        self._multiply(self._first)
        bench.device.synchronize()
        self._expect_right(_TOLERANCES[dtype])
        self._digest = hashlib.sha256(bench.device.to_host(bits(self._first)).tobytes()).hexdigest()

    def _multiply(self, out: Any) -> None:
        self._bench.xp.matmul(self._left, self._right, out=out)

    def _expect_right(self, tolerance: float) -> None:
        """Raise WrongAnswer if the relative error of about eight rows of the first product is above `tolerance`."""
        xp = self._bench.xp
        rows = slice(0, self._size, max(self._size // _ROWS, 1))
        expected = xp.matmul(self._left[rows].astype(np.float64), self._right.astype(np.float64))
        seen = self._first[rows].astype(np.float64)
        error = float(xp.linalg.norm(seen - expected) / xp.linalg.norm(expected))
        gb.expect(
            error <= tolerance,
            f"{self._kernel}: the first product has a relative error of {error:.3g}, above {tolerance:g}",
        )

    def task(self) -> gb.Task:
        """Return the task; each call of its stage times four products and compares all of them."""
        stage = gb.Stage(
            self._call,
            gb.Work(flops=2.0 * self._size**3),
            "flops",
            clock="self",
            effort=effort(self._bench),
            checked=True,
        )
        notes = {"soak.digest": self._digest, "kernel": self._kernel}
        return gb.Task.of(stage, check=lambda: None, notes=notes)

    def _call(self) -> float:
        """Compute a product into each output, compare all outputs, and return the mean seconds of a product."""
        for out in self._outputs:
            invert(out, self._first, self._bench)
        turns = itertools.cycle(self._outputs)
        timing = self._bench.device.time(lambda: self._multiply(next(turns)), _OUTPUTS, gated=False)
        self._bench.device.synchronize()
        for out in self._outputs:
            expect_identical(self._bench, self._kernel, out, self._first)
        return timing.device[0]


def _drawn(rng: np.random.Generator, size: int, dtype: str) -> Any:
    count = size * size
    return np.resize(rng.standard_normal(min(count, _DRAWN), np.float32), count).astype(dtype).reshape(size, size)
