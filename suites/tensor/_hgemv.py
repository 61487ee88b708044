"""Measure the HGEMV ladder: kernels for y = W·x of halves, from one thread per row to rows that several warps share."""

from collections.abc import Callable
from functools import partial

import numpy as np

from gpubench.api import suite as gb

from .._matrix.formats import PRECISIONS, MatrixProduct, Shape
from .._matrix.gemv import Vectors, Weights, few_tokens_task
from .._matrix.vendor import ProductCall, vendor
from ._kernels import resource_notes

_THREADS = 256  # threads per block, as in hgemv.cu
_TOGETHER = 2  # rows that a warp processes at once, as in hgemv.cu
_QUICK = "16384x4096"
_SHAPES = ("4096x4096", _QUICK, "8192x28672")

topic = gb.Topic(
    views=[gb.View("bars", "HGEMV ladder: bandwidth of each kernel", ("hgemv",), by=("shape",))],
)


RUNGS = ("naive", "warp", "vectorised", "rows", "split")


def rows_of_block(rung: str, warp: int) -> int:
    """Return how many rows of W a block of the kernel `rung` computes, if a warp has `warp` lanes."""
    return {"naive": _THREADS, "rows": _THREADS // warp * _TOGETHER, "split": _TOGETHER}.get(rung, _THREADS // warp)


def _product_of(bench: gb.Bench, rung: str) -> Callable[[Weights, Vectors], ProductCall]:
    """Return the function that makes the call of the kernel `rung`, or of the vendor's library, for given weights."""
    resident = bench.traits.architecture.resident_threads // _THREADS
    kernel = None if rung == "vendor" else bench.kernel("hgemv.cu", rung, RESIDENT=resident)

    def product_of(weights: Weights, vectors: Vectors) -> ProductCall:
        rows, cols = weights.rows, weights.cols
        if kernel is None:
            shape = Shape(1, rows, cols, "nt")
            return vendor(bench, MatrixProduct(PRECISIONS["float16"], shape, vectors.x, weights.words, vectors.y))
        grid = (-(-rows // rows_of_block(rung, bench.traits.warp)),)
        args = (weights.words, vectors.x, vectors.y, np.uint32(rows), np.uint32(cols))
        notes = {"grid": f"{grid[0]} blocks", **resource_notes(bench, kernel, _THREADS)}
        return ProductCall(partial(kernel, grid, (_THREADS,), args), notes)

    return product_of


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
    return few_tokens_task(bench, _product_of(bench, rung), "float16", rows, cols, 1, tiled=False)
