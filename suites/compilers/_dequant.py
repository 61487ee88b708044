"""Measure products with quantised weights, which providers restore in registers or through memory."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._matrix.formats import PRECISIONS, MatrixProduct, Shape
from .._matrix.gemv import GROUP, Vectors, Weights, few_tokens_task, tensor_call
from .._matrix.vendor import ProductCall, vendor
from ._layer import on_gpu_in_full, with_launches

_ROWS, _COLS = 28672, 4096  # of an 8B model's feed-forward network
_MOST_TOKENS = 64  # of skinny.cu

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Quantised weights: throughput by tokens",
            ("dequant_gemm",),
            "tokens",
            by=("weights", "by"),
            log_x=True,
        )
    ]
)

ProductOf = Callable[[Weights, Vectors], ProductCall]


def _restoring_products(bench: gb.Bench, tokens: int) -> ProductOf:
    """Return a function that makes calls of a product with `tokens` tokens."""
    halves = bench.xp.empty(_ROWS * _COLS, "float16")

    def product_of(weights: Weights, vectors: Vectors) -> ProductCall:
        """Return a call that restores the weights and multiplies."""
        shape = Shape(tokens, weights.rows, weights.cols, "nt")
        product = vendor(bench, MatrixProduct(PRECISIONS["float16"], shape, vectors.x, halves, vectors.y))

        def call() -> None:
            weights.restore(halves)
            product.call()

        return ProductCall(call, {**product.notes, "restored": "by data.cu, as halves in memory"})

    return product_of


class EagerProduct:
    """A product in the operations of an array library: weights are unpacked, scaled and multiplied one by one.

    `xp` is the library, such as CuPy. A call reads X of shape (tokens, cols) from `vectors` and writes Y to it."""

    def __init__(self, xp: Any, weights: Weights, vectors: Vectors, tokens: int) -> None:
        self._xp, self._shape, self._bits = xp, (weights.rows, weights.cols), weights.kind.bits
        count = weights.rows * weights.cols  # padding rows that fill up a tile lie behind them
        self._words = weights.words[: count * self._bits // 32, None]
        self._scales = weights.scales.view("float16")[: count // GROUP, None]
        self._x, self._y = (array.view("float16").reshape(tokens, -1) for array in (vectors.x, vectors.y))
        places = np.arange(4) if self._bits == 8 else np.arange(8) // 2 + 4 * (np.arange(8) % 2)  # as gemv.cu has them
        self._shifts = xp.asarray((places * self._bits).astype(np.uint32))

    def __call__(self) -> None:
        """Compute Y = X·Wᵀ from the packed weights."""
        numbers = (self._words >> self._shifts & np.uint32(2**self._bits - 1)).astype("float16")
        centred = (numbers - np.float16(2 ** (self._bits - 1))).reshape(-1, GROUP)
        self._xp.matmul(self._x, (centred * self._scales).reshape(self._shape).T, out=self._y)


def _product_of(bench: gb.Bench, by: str, tokens: int) -> ProductOf:
    """Return the function that makes the call of the provider `by` for given weights and vectors of `tokens` tokens."""
    if by == "vendor":
        return _restoring_products(bench, tokens)
    if by == "nvrtc":
        return lambda weights, vectors: ProductCall(
            tensor_call(bench, weights, vectors, tokens), {"library": "skinny.cu"}
        )
    notes = {"library": f"CuPy {bench.xp.__version__}", "restored": "operation by operation, in memory"}
    return lambda weights, vectors: ProductCall(EagerProduct(bench.xp, weights, vectors, tokens), notes)


def _has_kernel(_target: gb.Target, params: Mapping[str, Any]) -> bool:
    return bool(params["by"] != "nvrtc" or params["tokens"] <= _MOST_TOKENS)


@topic.case(
    weights=("int8", "int4"),
    tokens=(1, 16, 2048),
    by=("cupy", "vendor", "nvrtc"),
    when=on_gpu_in_full,
    where=_has_kernel,
)
def dequant_gemm(bench: gb.Bench, weights: str, tokens: int, by: str) -> gb.Task:
    """Y = X·Wᵀ with quantised weights (28672 × 4096) in groups of 128 that share a scale.

    Up to 64 tokens the figure is the bandwidth, beyond them the throughput; copies of the weights are used in turn, so
    that they come from memory. `nvrtc` is our kernel, which restores weights in registers. `vendor` restores them to
    halves in memory, for one product of the vendor's library, and `cupy` does so operation by operation."""
    task = few_tokens_task(bench, _product_of(bench, by, tokens), weights, _ROWS, _COLS, tokens, tiled=by == "nvrtc")
    stage = task.stages[""]
    if tokens > _MOST_TOKENS:
        stage = replace(stage, quantity="flops", limit="tensor.float16")
    return with_launches(bench, replace(task, stages={"": stage}), "cupy")
