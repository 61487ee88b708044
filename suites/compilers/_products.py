"""Measure a product followed by a bias and GELU, and products with quantised weights, by several providers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn
from .._matrix.formats import PRECISIONS, MatrixProduct, Shape
from .._matrix.gemv import GROUP, Vectors, Weights, few_tokens_task, tensor_call
from .._matrix.vendor import ProductCall, vendor
from . import _providers as providers
from ._cases import dtype_of, in_full, runtime_of, task_of
from ._layer import on_gpu_in_full, with_launches
from ._operators import OPERATORS, Operator, Problem, Rows
from ._pointwise import BIAS_GELU_FUSED

_GELU = OPERATORS["bias-gelu"]
# of quantised weights
_ROWS, _COLS = 28672, 4096  # of an 8B model's feed-forward network
_MOST_TOKENS = 64  # of skinny.cu
_PROVIDERS = "cupy", "cupy-fused", "vendor", "torch", "inductor", "jax"

topic = gb.Topic(
    views=[
        gb.View("bars", "Product, bias and GELU: throughput by provider", ("gemm_gelu",), by=("by",)),
        gb.View(
            "curve",
            "Quantised weights: throughput by tokens",
            ("dequant_gemm",),
            "tokens",
            by=("weights", "by"),
            log_x=True,
        ),
    ]
)


def _gemm_gelu(xp: Any, a: Any, weights: Any, bias: Any) -> Any:
    return _GELU.expression(xp, xp.matmul(a, weights), bias)


def _fused(fuse: Any, a: Any, weights: Any, bias: Any, out: Any) -> Callable[[], None]:
    gelu = fuse.elementwise(*BIAS_GELU_FUSED)
    return lambda: gelu(a @ weights, bias, out)


_KERNELS = {"numba": _GELU.kernels["numba"], "cupy-fused": _fused}


class ProductProblem(Problem):
    """GELU(A·B + bias) with A of m × k elements and B of k × n, drawn so that the sums are N(0, 1).

    The inputs are `a`, `weights` (B) and `bias`, which has n elements."""

    operators = {"gemm_gelu": Operator("gemm_gelu", ("a", "weights", "bias"), _gemm_gelu, _KERNELS)}  # noqa: RUF012
    quantity = "flops"

    def __init__(self, bench: gb.Bench, m: int, n: int, k: int, dtype: str) -> None:
        self.k, self.flops = k, 2.0 * m * n * k
        super().__init__(bench, "gemm_gelu", m, n, dtype)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return {"a": (self.rows, self.k), "weights": (self.k, self.cols), "bias": (self.cols,)}[name]

    def _scaled(self, name: str, drawn: Any) -> Any:
        return drawn * np.float32(self.k**-0.5) if name == "weights" else drawn

    def expected(self) -> Rows:
        """Return the checked rows in double precision, from a product on the device, made once for the same inputs."""
        if not self._exact:
            weights, bias = (self.inputs[name].astype("float64") for name in ("weights", "bias"))
            product = self.inputs["a"][self.checked].astype("float64") @ weights
            self._exact = _GELU.outputs_of(np, self._to_host(product), self._to_host(bias))
        return self._exact

    def numba_call(self, compiled: Callable[[Any], Any], outputs: tuple[Any, ...]) -> Callable[[], None]:
        """Return a call of NumPy's product, and of numba's loop for the bias and GELU."""
        loop, (a, weights, bias) = compiled(self.operator.kernels["numba"]), self.inputs.values()
        return lambda: loop(np.matmul(a, weights), bias, *outputs)

    def vendor(self, bench: gb.Bench) -> providers.Built:
        """Return the operator as one call of the vendor's library, with a preallocated output."""
        outputs, (a, weights, bias) = providers.Outputs(bench, self), self.inputs.values()
        shape, out = Shape(self.rows, self.cols, self.k), outputs.arrays[0].ravel()
        operands = MatrixProduct(PRECISIONS[self.dtype], shape, a.ravel(), weights.ravel(), out, bias, "gelu")
        product = vendor(bench, operands)
        notes = {**product.notes, "precision": "sums in float32"}
        return providers.Built(product.call, outputs.rows, outputs.poison, notes)


@topic.case(
    m=lambda target: (256 if target.is_host else 4096,),
    n=lambda target: (1024 if target.is_host else 14336,),
    k=lambda target: (512 if target.is_host else 4096,),
    dtype=lambda target: (dtype_of(target.is_host),),
    by=lambda target: providers.HOST_QUICK if target.is_host else _PROVIDERS,
    runtime=runtime_of,
    when=in_full,
)
def gemm_gelu(bench: gb.Bench, m: int, n: int, k: int, dtype: str, by: str) -> gb.Task:
    """Throughput of a matrix product, a bias for each column and GELU (approximation with tanh): 2·M·N·K operations.

    `by` names the compiler or library. `vendor` is one call of cuBLASLt with the bias and GELU in its epilogue. The
    others take the product from a library and compute the bias and GELU in their own way."""
    return task_of(bench, ProductProblem(bench, m, n, k, dtype), by)


def _eager_product(xp: Any, weights: Weights, vectors: Vectors, tokens: int) -> Callable[[], None]:
    """Return a call of Y = X·Wᵀ that unpacks, scales and multiplies in operations of the library `xp`, one by one."""
    bits, count = weights.kind.bits, weights.rows * weights.cols  # padding rows that fill up a tile lie behind them
    packed, scales = weights.words[: count * bits // 32, None], weights.scales.view("float16")[: count // GROUP, None]
    x, y = (array.view("float16").reshape(tokens, -1) for array in (vectors.x, vectors.y))
    places = np.arange(4) if bits == 8 else np.arange(8) // 2 + 4 * (np.arange(8) % 2)  # as gemv.cu has them
    shifts = xp.asarray((places * bits).astype(np.uint32))

    def call() -> None:
        numbers = (packed >> shifts & np.uint32(2**bits - 1)).astype("float16")
        centred = (numbers - np.float16(2 ** (bits - 1))).reshape(-1, GROUP)
        xp.matmul(x, (centred * scales).reshape(weights.rows, weights.cols).T, out=y)

    return call


def _product_of(bench: gb.Bench, by: str, tokens: int) -> Callable[[Weights, Vectors], ProductCall]:
    """Return the function that makes the call of the provider `by` for given weights and vectors of `tokens` tokens."""
    halves = bench.xp.empty(_ROWS * _COLS if by == "vendor" else 0, "float16")

    def product_of(weights: Weights, vectors: Vectors) -> ProductCall:
        if by == "nvrtc":
            notes = {"library": weights.source(tokens)}
            return ProductCall(tensor_call(bench, weights, vectors, tokens), notes)
        if by == "cupy":
            notes = {"library": f"CuPy {bench.xp.__version__}", "restored": "operation by operation, in memory"}
            return ProductCall(_eager_product(bench.xp, weights, vectors, tokens), notes)
        shape = Shape(tokens, weights.rows, weights.cols, "nt")
        product = vendor(bench, MatrixProduct(PRECISIONS["float16"], shape, vectors.x, halves, vectors.y))
        call = in_turn(partial(weights.restore, halves), product.call)
        return ProductCall(call, {**product.notes, "restored": "by data.cu, as halves in memory"})

    return product_of


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
