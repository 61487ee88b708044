"""Measure the HGEMV ladder: kernels for y = W·x of halves, from one thread per row to rows that several warps share."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import flipping
from .._matrix.data import Maker
from .._matrix.formats import FORMATS, PRECISIONS, MatrixProduct, Shape
from .._matrix.gemv import Vectors, Weights, compared
from .._matrix.rotation import copies_of, rotated, rotation_notes
from .._matrix.vendor import vendor
from ._kernels import resource_notes

_THREADS = 256  # threads per block, as in hgemv.cu
_TOGETHER = 2  # rows that a warp processes at once, as in hgemv.cu
_QUICK = "16384x4096"
_SHAPES = ("4096x4096", _QUICK, "8192x28672")
_HALF = FORMATS["float16"]

Call = Callable[[], None]

topic = gb.Topic(
    views=[gb.View("bars", "HGEMV ladder: bandwidth of each kernel", ("hgemv",), by=("shape",))],
)


RUNGS = ("naive", "warp", "vectorised", "rows", "split")


def rows_of_block(rung: str, warp: int) -> int:
    """Return how many rows of W a block of the kernel `rung` computes, if a warp has `warp` lanes."""
    return {"naive": _THREADS, "rows": _THREADS // warp * _TOGETHER, "split": _TOGETHER}.get(rung, _THREADS // warp)


class _RungCalls:
    """Calls of one rung of the ladder with the vector `x`, a flat float16 array on the device.

    `rung` is one of RUNGS, or `vendor` for the vendor library's product. `weights` gives the number of rows."""

    def __init__(self, bench: gb.Bench, rung: str, weights: Weights, x: Any) -> None:
        self._bench, self._rung, self._x = bench, rung, x
        self.notes: Mapping[str, str] = {}
        if rung != "vendor":
            self._kernel = bench.kernel("hgemv.cu", rung)
            self._grid = (-(-weights.rows // rows_of_block(rung, bench.traits.warp)),)
            self.notes = {"grid": f"{self._grid[0]} blocks", **resource_notes(bench, self._kernel, _THREADS)}

    def call(self, weights: Weights, y: Any) -> Call:
        """Return the call that computes y = W·x with the copy `weights` of W; `y` is a float16 array on the device."""
        rows, cols = weights.rows, weights.cols
        if self._rung == "vendor":
            product = MatrixProduct(PRECISIONS["float16"], Shape(1, rows, cols, "nt"), self._x, weights.words, y)
            by_vendor = vendor(self._bench, product)
            self.notes = by_vendor.notes
            return by_vendor.call
        args = (weights.words, self._x, y, np.uint32(rows), np.uint32(cols))
        return lambda: self._kernel(self._grid, (_THREADS,), args)


@topic.case(
    rung=gb.points((*RUNGS, "vendor"), ("split",)),
    shape=gb.points((_QUICK,), full=_SHAPES),
    when=gb.on_gpu,
    where=lambda target, params: target.tier != "quick" or params["rung"] in ("naive", "split"),
)
def hgemv(bench: gb.Bench, rung: str, shape: str) -> gb.Task:
    """Bandwidth of one kernel of the HGEMV ladder, `rung`: y = W·x of float16 with sums in float32.

    It counts 2·(M·N + N + M) bytes moved. `shape` is rows × columns of W; copies of W are used in turn, so that they
    come from memory."""
    rows, cols = (int(side) for side in shape.split("x"))
    bench.need(1.2 * 2 * max(_HALF.itemsize * rows * cols, 4 * bench.target.device.cache_bytes) + 2**31)
    make, rng = Maker(bench), bench.rng
    seeds = [int(seed) for seed in rng.integers(2**63, size=2)]
    weights = Weights(make, "float16", rows, cols, seeds[0])
    copies: list[Weights] = copies_of(bench, weights)
    x, ys = make.drawn(_HALF, cols, seeds[1]), bench.xp.empty((len(copies), rows), _HALF.storage)
    ladder = _RungCalls(bench, rung, weights, x)
    calls = [ladder.call(copy, y) for copy, y in zip(copies, ys, strict=True)]

    def check() -> gb.Observation:
        """Compare one y with the product in double precision and every other y, bit by bit, with that y.

        Returns the errors of the compared y."""
        written = make.written(ys)
        first = int(written[0]) if written.size else 0
        differing = make.differing(ys, first)
        gb.expect(differing == 0, f"{differing} words of {len(written)} copies of y differ from the first copy")
        return compared(make, weights, Vectors(x, ys[first]), 1)

    moved = float(weights.nbytes + _HALF.itemsize * (rows + cols))
    stage = rotated(calls, moved, 2.0 * rows * cols, gb.POINT, (ys,), flipping(x))
    notes = {**ladder.notes, **rotation_notes(rows, cols, copies)}
    return gb.Task.of(stage, check=check, notes=notes)
