"""Measure a matrix product followed by a bias and GELU, by several providers."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _providers as providers
from ._cases import in_full, runtime_of, task_of
from ._operators import OPERATORS, Operator, Problem, Rows

topic = gb.Topic(views=[gb.View("bars", "Product, bias and GELU: throughput by provider", ("gemm_gelu",), by=("by",))])


def _gemm_gelu(xp: Any, a: Any, weights: Any, bias: Any) -> Any:
    return OPERATORS["bias-gelu"].expression(xp, xp.matmul(a, weights), bias)


class ProductProblem(Problem):
    """GELU(A·B + bias) with A of m × k elements and B of k × n, drawn so that the sums are N(0, 1).

    The inputs are `a`, `weights` (B) and `bias`, which has n elements."""

    operators = {"gemm_gelu": Operator("gemm_gelu", ("a", "weights", "bias"), _gemm_gelu)}  # noqa: RUF012
    quantity = "flops"

    def __init__(self, bench: gb.Bench, m: int, n: int, k: int, dtype: str) -> None:
        self.k = k
        super().__init__(bench, "gemm_gelu", m, n, dtype)
        self._exact: Rows = ()

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input."""
        return {"a": (self.rows, self.k), "weights": (self.k, self.cols), "bias": (self.cols,)}[name]

    def _scaled(self, name: str, drawn: Any) -> Any:
        return drawn * np.float32(self.k**-0.5) if name == "weights" else drawn

    @property
    def work(self) -> gb.Work:
        """The operations of the product, and the bytes that cannot be avoided."""
        return gb.Work(moved=self.moved, flops=2.0 * self.rows * self.cols * self.k)

    @property
    def limit(self) -> str:
        """The peak of products of this precision."""
        return "float32" if self.dtype == "float32" else f"tensor.{self.dtype}"

    def change(self) -> None:
        """Negate the first matrix, and forget the expected rows."""
        super().change()
        self._exact = ()

    def expected(self) -> Rows:
        """Return the checked rows in double precision, from a product on the device, made once for the same inputs."""
        if not self._exact:
            wide = [self.inputs[name].astype("float64") for name in ("weights", "bias")]
            product = self.inputs["a"][self.checked].astype("float64") @ wide[0]
            rows, bias = (self._to_host(array) for array in (product, wide[1]))
            self._exact = OPERATORS["bias-gelu"].outputs_of(np, rows, bias)
        return self._exact


def _by(target: gb.Target) -> Any:
    return providers.HOST_QUICK if target.is_host else ("cupy", "cupy-fused", "vendor", "torch", "inductor", "jax")


def _m(target: gb.Target) -> Any:
    return (256,) if target.is_host else (4096,)


def _n(target: gb.Target) -> Any:
    return (1024,) if target.is_host else (14336,)


def _k(target: gb.Target) -> Any:
    return (512,) if target.is_host else (4096,)


def _dtypes(target: gb.Target) -> Any:
    return ("float32",) if target.is_host else ("float16",)


@topic.case(m=_m, n=_n, k=_k, dtype=_dtypes, by=_by, runtime=runtime_of, when=in_full)
def gemm_gelu(bench: gb.Bench, m: int, n: int, k: int, dtype: str, by: str) -> gb.Task:
    """Throughput of a matrix product, a bias for each column and GELU (approximation with tanh): 2·M·N·K operations.

    `by` names the compiler or library. `vendor` is one call of cuBLASLt with the bias and GELU in its epilogue. The
    others take the product from a library and compute the bias and GELU in their own way."""
    return task_of(bench, ProductProblem(bench, m, n, k, dtype), by)
