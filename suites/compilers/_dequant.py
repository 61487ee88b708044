"""Products with quantised weights: whether a provider restores them in registers or through memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Target, Task, Topic, View

from ..gemm._few import few_tokens_task
from ..gemm._formats import PRECISIONS, MatrixProduct, Shape
from ..gemm._gemv import GROUP, Vectors, Weights, tensor_call
from ..gemm._vendor import ProductCall, vendor
from ..inference._weights import product_bench
from ._layer import on_gpu_in_full, with_launches

_ROWS, _COLS = 14336, 4096  # of a projection of an 8B model's feed-forward network
_MOST_TOKENS = 64  # of skinny.cu

topic = Topic(
    views=[View("curve", "Quantised weights: by tokens", ("dequant_gemm",), "tokens", by=("weights", "by"), log_x=True)]
)

ProductOf = Callable[[Weights, Vectors], ProductCall]


def _restored(bench: Bench, tokens: int) -> ProductOf:
    """Return products whose weights our kernel writes as halves, for the vendor's library."""
    halves = bench.xp.empty(_ROWS * _COLS, "float16")

    def product_of(weights: Weights, held: Vectors) -> ProductCall:
        shape = Shape(tokens, weights.rows, weights.cols, "nt")
        product = vendor(bench, MatrixProduct(PRECISIONS["float16"], shape, held.x, halves, held.y))

        def call() -> None:
            weights.restore(halves)
            product.call()

        return ProductCall(call, {**product.notes, "restored": "by data.cu, as halves in memory"})

    return product_of


@dataclass(frozen=True, slots=True)
class EagerProduct:
    """A product in the operations of an array library: weights are unpacked, scaled and multiplied one by one."""

    xp: Any
    weights: Weights
    held: Vectors
    tokens: int

    def __call__(self) -> None:
        """Compute Y from the stored weights."""
        weights, xp = self.weights, self.xp
        count, bits = weights.rows * weights.cols, weights.kind.bits  # rows that fill up a tile lie behind them
        scales = weights.scales.view("float16")[: count // GROUP, None]
        restored = unpacked(xp, weights.words[: count * bits // 32], bits).reshape(-1, GROUP)
        restored = (restored * scales).reshape(weights.rows, weights.cols)
        x, y = (array.view("float16").reshape(self.tokens, -1) for array in (self.held.x, self.held.y))
        xp.matmul(x, restored.T, out=y)


def unpacked(xp: Any, words: Any, bits: int) -> Any:
    """Return the whole numbers of words of four or eight weights as halves; the order in a word is that of gemv.cu."""
    places = np.arange(4) if bits == 8 else np.arange(8) // 2 + 4 * (np.arange(8) % 2)
    shifts = xp.asarray((places * bits).astype(np.uint32))
    return (words[:, None] >> shifts & np.uint32(2**bits - 1)).astype("float16") - np.float16(2 ** (bits - 1))


def _product_of(bench: Bench, by: str, tokens: int) -> ProductOf:
    if by == "vendor":
        return _restored(bench, tokens)
    if by == "nvrtc":
        return lambda weights, held: ProductCall(tensor_call(bench, weights, held, tokens), {"library": "skinny.cu"})
    notes = {"library": f"CuPy {bench.xp.__version__}", "restored": "operation by operation, in memory"}
    return lambda weights, held: ProductCall(EagerProduct(bench.xp, weights, held, tokens), notes)


def _has_kernel(_target: Target, params: Mapping[str, Any]) -> bool:
    return bool(params["by"] != "nvrtc" or params["tokens"] <= _MOST_TOKENS)


@topic.case(
    weights=("int8", "int4"),
    tokens=(1, 16, 2048),
    by=("cupy", "vendor", "nvrtc"),
    when=on_gpu_in_full,
    where=_has_kernel,
)
def dequant_gemm(bench: Bench, weights: str, tokens: int, by: str) -> Task:
    """Y = X·Wᵀ with weights in groups of 128 that share a scale (14336 × 4096): bytes moved once, buffers in turn.

    `nvrtc` is our kernel, which restores weights in registers. `vendor` restores them to halves in memory, for one
    product of the vendor's library, and `cupy` does so operation by operation.
    """
    found = product_bench(bench)
    task = few_tokens_task(found, _product_of(found, by, tokens), weights, _ROWS, _COLS, tokens, tiled=by == "nvrtc")
    stage = task.stages[""]
    if tokens > _MOST_TOKENS:
        stage = replace(stage, quantity="flops", limit="tensor.float16")
    return with_launches(bench, replace(task, stages={"": stage}), "cupy")
